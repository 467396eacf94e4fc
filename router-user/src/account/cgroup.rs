//! Where this process is in the cgroup v2 tree, and which cgroups are above it.
//!
//! A program attached to a cgroup sees the sockets of processes in it and below. Hybrid hierarchies (v1 and v2
//! side by side) are the reason for reading the mount table instead of assuming a place.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A cgroup: its directory, and the kernel's number for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cgroup {
    pub(super) path: PathBuf,
    pub(super) id: u64,
}

/// Why no cgroup can be used.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// No cgroup2 file system is mounted.
    #[error("no cgroup2 file system is mounted")]
    NotMounted,
    /// `/proc/self/cgroup` has no line of the v2 hierarchy, or one outside of the mount.
    #[error("this process is in no cgroup below the cgroup2 mount {}", .0.display())]
    NotInside(PathBuf),
    /// The chosen cgroup is not an ancestor: it would not see this process's sockets.
    #[error("this process ({}) is not in or below the cgroup {}", .own.display(), .chosen.display())]
    NotAbove {
        /// The cgroup of this process.
        own: PathBuf,
        /// The chosen one.
        chosen: PathBuf,
    },
    /// A directory cannot be looked at.
    #[error("cannot open cgroup {}", .path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// The cgroup to attach to, and those above it up to the mount (nearest first, without itself).
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) attach: Cgroup,
    pub(super) ancestors: Vec<Cgroup>,
}

/// The place that was chosen, or this process's own cgroup.
///
/// # Errors
/// [`CgroupError`], each of which leaves nothing to attach to.
pub(super) fn place(chosen: Option<&Path>) -> Result<Place, CgroupError> {
    let read =
        |path: &str| fs::read_to_string(path).map_err(|source| CgroupError::Io { path: path.into(), source });
    let (root, mounted) = mount(&read("/proc/self/mountinfo")?).ok_or(CgroupError::NotMounted)?;
    let own = own_path(&read("/proc/self/cgroup")?, &root, &mounted)
        .ok_or_else(|| CgroupError::NotInside(mounted.clone()))?;
    let own = canonical(&own)?;
    let attach = match chosen {
        Some(path) => canonical(path)?,
        None => own.clone(),
    };
    if !own.starts_with(&attach) {
        return Err(CgroupError::NotAbove { own, chosen: attach });
    }
    let mounted = canonical(&mounted)?;
    let above = attach.ancestors().skip(1).take_while(|path| path.starts_with(&mounted));
    let ancestors = above.map(cgroup).collect::<Result<_, _>>()?;
    Ok(Place { attach: cgroup(&attach)?, ancestors })
}

/// The cgroup that was chosen, wherever it is, or the root of the mount: this process need not be in it.
///
/// # Errors
/// [`CgroupError`].
pub(super) fn anywhere(chosen: Option<&Path>) -> Result<Place, CgroupError> {
    let path = match chosen {
        Some(path) => path.to_owned(),
        None => {
            let mounts = fs::read_to_string("/proc/self/mountinfo");
            let mounts =
                mounts.map_err(|source| CgroupError::Io { path: "/proc/self/mountinfo".into(), source })?;
            mount(&mounts).ok_or(CgroupError::NotMounted)?.1
        }
    };
    Ok(Place { attach: cgroup(&canonical(&path)?)?, ancestors: Vec::new() })
}

fn canonical(path: &Path) -> Result<PathBuf, CgroupError> {
    path.canonicalize().map_err(|source| CgroupError::Io { path: path.into(), source })
}

/// A cgroup's number is the inode of its directory.
fn cgroup(path: &Path) -> Result<Cgroup, CgroupError> {
    let id = path.metadata().map_err(|source| CgroupError::Io { path: path.into(), source })?.ino();
    Ok(Cgroup { path: path.to_owned(), id })
}

/// Root and mount point of the first cgroup2 file system in a mount table.
fn mount(mountinfo: &str) -> Option<(PathBuf, PathBuf)> {
    mountinfo.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut fields = place.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        kind.starts_with("cgroup2 ").then(|| (unescape(root).into(), unescape(point).into()))
    })
}

/// The directory of the process's v2 cgroup below the mount point.
fn own_path(cgroups: &str, root: &Path, mounted: &Path) -> Option<PathBuf> {
    let own = cgroups.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(mounted.join(Path::new(own).strip_prefix(root).ok()?))
}

/// The mount table writes space, tab, newline and backslash as three octal digits.
fn unescape(field: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(field.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

#[cfg(test)]
mod tests {
    use super::{mount, own_path};
    use std::path::Path;

    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices
41 31 0:38 / /sys/fs/cgroup/my\\040unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";

    #[test]
    fn finds_the_v2_mount_of_a_hybrid_hierarchy() {
        let (root, point) = mount(HYBRID).unwrap();
        assert_eq!(
            (root.as_path(), point.as_path()),
            (Path::new("/"), Path::new("/sys/fs/cgroup/my unified"))
        );
        assert_eq!(mount("31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"), None);
    }

    #[test]
    fn own_path_is_taken_below_the_mounted_root() {
        let own = |text: &str, root: &str| own_path(text, Path::new(root), Path::new("/mnt"));
        assert_eq!(own("4:memory:/x\n0::/a/b\n", "/").unwrap(), Path::new("/mnt/a/b"));
        assert_eq!(own("0::/a/b\n", "/a").unwrap(), Path::new("/mnt/b"));
        assert_eq!(own("0::/a/b\n", "/c"), None);
        assert_eq!(own("4:memory:/x\n", "/"), None);
    }
}
