//! Cgroups of ours, and commands in them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// A cgroup of ours, removed with its value.
pub(super) struct Cgroup(pub(super) PathBuf);

impl Cgroup {
    /// A cgroup below ours.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn new(own: &Path, name: &str) -> Result<Self> {
        let path = own.join(format!("unlatch-bench-{}-{name}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The kernel lets a process go a little after it was waited for.
        let end = Instant::now() + Duration::from_secs(2);
        while fs::remove_dir(&self.0).is_err() && self.0.exists() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A command that moves into a cgroup before it becomes the program.
pub(super) fn in_cgroup(cgroup: &Path, program: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", r#"echo $$ > "$0/cgroup.procs" && exec "$@""#]).arg(cgroup).arg(program);
    command
}

/// The directory of this process's cgroup2, also where version 1 is mounted beside it.
///
/// # Errors
/// There is none.
pub(super) fn own_cgroup() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let mount = mount.and_then(|line| line.split(' ').nth(4)).context("cgroup2 is not mounted")?;
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).context("no line of cgroup2")?;
    Ok(Path::new(mount).join(own))
}
