//! Where things are: the checkout, the target directory, and the files in both that several verbs share.
//!
//! Nothing here touches a file. Invariant: no path of the machine that compiled xtask is used; the checkout is
//! the one the command was run in.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The checkout and its target directory.
#[derive(Clone, Debug)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    /// `CARGO_TARGET_DIR`, else `target` in the checkout; absolute.
    pub(crate) target: PathBuf,
}

impl Workspace {
    /// Finds the checkout around the current directory.
    ///
    /// # Errors
    /// When the current directory is not inside a checkout.
    pub(crate) fn find() -> Result<Self> {
        let here = env::current_dir().context("the current directory cannot be read")?;
        let root = here
            .ancestors()
            .find(|dir| dir.join("xtask/src/source_hash.rs").is_file())
            .context("not inside an Unlatch checkout: run this where its Cargo.toml is")?
            .to_path_buf();
        let target = match env::var_os("CARGO_TARGET_DIR").filter(|dir| !dir.is_empty()) {
            Some(dir) => here.join(dir),
            None => root.join("target"),
        };
        Ok(Self { root, target })
    }

    /// Tools that `setup` installs; below it `bin/`.
    pub(crate) fn tools(&self) -> PathBuf {
        self.target.join("tools")
    }

    pub(crate) fn tool(&self, name: &str) -> PathBuf {
        self.tools().join("bin").join(name)
    }

    /// An object that `ebpf` built here.
    pub(crate) fn built_object(&self, name: &str) -> PathBuf {
        self.target.join(format!("bpf/{name}.o"))
    }

    /// The hash of the sources of every [`Self::built_object`]; `router-user/build.rs` reads it.
    pub(crate) fn built_sources(&self) -> PathBuf {
        self.target.join("bpf/objects.sources")
    }

    /// An object in the checkout, for machines without a BPF toolchain.
    pub(crate) fn committed_object(&self, name: &str) -> PathBuf {
        self.root.join(format!("router-ebpf/object/{name}.o"))
    }

    /// What made every [`Self::committed_object`].
    pub(crate) fn committed_versions(&self) -> PathBuf {
        self.root.join("router-ebpf/object/versions.toml")
    }

    /// `path` relative to the checkout where it is inside, for messages.
    pub(crate) fn show(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }
}

/// The first of `names` that is an executable in `PATH`, `/usr/sbin` or `/sbin`: the latter two are not in the
/// `PATH` of an ordinary user on Debian, but hold bpftool and ip.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}
