//! Why the kernel is not used, in words for one line of a log.

use std::io;
use std::path::{Path, PathBuf};

use router_common::limits::{MAX_LOCAL_PORTS, MAX_WORKERS};

use super::cgroup::CgroupError;
use super::device::DeviceError;

/// Why the kernel is not used.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// Capabilities are missing.
    #[error("{0}")]
    Capabilities(String),
    /// No cgroup to attach to.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// No network device to attach to.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Routers that run use the pins with the other hook.
    #[error(
        "routers that run attach elsewhere (--kernel-hook) with the same pins; choose others (--pin-dir)"
    )]
    OtherHook,
    /// Pins need a BPF file system.
    #[error("{} is not on a BPF file system{}", .path.display(), mount_failed(.mount))]
    NotBpffs {
        /// The directory of pins.
        path: PathBuf,
        /// Why it could not be mounted, if that was tried.
        mount: Option<io::Error>,
    },
    /// Something under the directory of pins cannot be read or changed.
    #[error("cannot use {}: {source}", .path.display())]
    Pins {
        /// What.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// What is pinned is not ours, or of another layout.
    #[error("{} has another layout ({found}); it is left alone", .path.display())]
    Layout {
        /// The pin.
        path: PathBuf,
        /// What it is.
        found: String,
    },
    /// Nothing is pinned there.
    #[error("nothing is pinned under {}", .0.display())]
    NothingPinned(PathBuf),
    /// The binary was built without the programs.
    #[error("this binary was built without the BPF object; `cargo xtask ebpf` builds it")]
    NoObject,
    /// The kernel refused the object or its maps.
    #[error("cannot load the BPF object: {0}")]
    Load(String),
    /// The kernel refused a program: one that counts cannot be shared without, or any in mode `on`.
    #[error("cannot attach {0}")]
    Program(String),
    /// Too many router processes.
    #[error("all {MAX_WORKERS} slots for router processes are taken")]
    NoSlot,
    /// Another agent uses the pins.
    #[error("another agent is running on the same pins; choose others (--pin-dir), or stop it")]
    AgentRuns,
    /// More ports than there are rows.
    #[error("all {MAX_LOCAL_PORTS} rows for engine ports are in use")]
    NoPort,
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl KernelError {
    pub(crate) fn pins(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Pins { path, source }
    }

    pub(super) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

fn mount_failed(mount: &Option<io::Error>) -> String {
    mount.as_ref().map(|error| format!(", and mounting one failed: {error}")).unwrap_or_default()
}

/// What the verifier says after its verdict.
const VERIFIER_TALLY: [&str; 3] = ["processed ", "verification time ", "stack depth "];

/// An error and its causes on one line; of a verifier's log only the end, where the verdict is.
pub(crate) fn one_line(error: &dyn std::error::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        let is_telling =
            |line: &&str| !line.is_empty() && !VERIFIER_TALLY.iter().any(|tally| line.starts_with(tally));
        let mut lines = text.lines().map(str::trim).filter(is_telling);
        let first = lines.next().unwrap_or_default().to_owned();
        let part = match lines.next_back() {
            Some(last) => format!("{first} … {last}"),
            None => first,
        };
        if !parts.iter().any(|before| before.contains(&part)) {
            parts.push(part);
        }
        next = error.source();
    }
    parts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::{KernelError, one_line};
    use std::io;

    #[test]
    fn an_error_with_a_log_becomes_one_line() {
        let inner = io::Error::other(
            "Permission denied\n 0: r1 = r10\n 1: exit\nR0 !read_ok\n\
             processed 2 insns (limit 1000000)\n",
        );
        let error = KernelError::Io { what: "load", source: inner };
        assert_eq!(one_line(&error), "load: Permission denied … R0 !read_ok");
    }
}
