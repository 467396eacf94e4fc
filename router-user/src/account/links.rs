//! Pinned links: which program hangs on which cgroup or device, and whether it still does.
//!
//! A link outlives the process that made it, and its cgroup may outlive neither: systemd makes a new cgroup at
//! every restart of a unit, and the link of the old one stays pinned without effect. So each is looked at before
//! it is relied on. The kernel tells all that is needed in `/proc/self/fdinfo`, without further rights.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use super::cgroup::Cgroup;
use super::device::{self, Device};
use super::pins::PinDir;
use super::sys;

/// Where a link hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// On the cgroup of this number.
    Cgroup(u64),
    /// On the network device of this number.
    Device(u32),
    /// Nowhere: cgroup or device is gone, and the link without effect.
    Gone,
}

/// A pinned link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Where it is pinned.
    pub path: PathBuf,
    /// The kernel's number of the link, which stays when its program is replaced.
    pub id: u32,
    /// Name of the program, as the pin is called.
    pub program: String,
    /// Where it hangs.
    pub at: At,
    /// The kernel's number of the program.
    pub program_id: u32,
    /// Digest of the program's instructions, in hexadecimal.
    pub tag: String,
}

impl Link {
    /// Where it hangs, as people read it.
    #[must_use]
    pub fn place(&self) -> String {
        match self.at {
            At::Cgroup(id) => format!("cgroup {id}"),
            At::Device(ifindex) => format!("device {}", self.device().unwrap_or_else(|| ifindex.to_string())),
            At::Gone => "nothing".to_owned(),
        }
    }

    /// The name of its device, if it is one of this process's network namespace.
    #[must_use]
    pub fn device(&self) -> Option<String> {
        let At::Device(ifindex) = self.at else { return None };
        let spot = Spot::device(ifindex, device::namespace().ok()?);
        let directory = self.path.parent()?.file_name()?;
        (directory.to_str() == Some(&spot.directory)).then(|| device::name(ifindex))?
    }
}

/// Where a program is to hang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    /// The directory for the links there.
    directory: String,
    at: At,
}

impl Spot {
    fn device(ifindex: u32, namespace: u64) -> Self {
        Self { directory: format!("dev-{ifindex}-{namespace}"), at: At::Device(ifindex) }
    }
}

impl From<&Cgroup> for Spot {
    fn from(cgroup: &Cgroup) -> Self {
        Self { directory: cgroup.id.to_string(), at: At::Cgroup(cgroup.id) }
    }
}

impl From<&Device> for Spot {
    fn from(device: &Device) -> Self {
        Self::device(device.ifindex, device.namespace)
    }
}

/// Every link pinned in a directory of pins, in order of path. What cannot be read as one is left out.
///
/// # Errors
/// A directory that exists cannot be listed.
pub(super) fn pinned(dir: &PinDir) -> io::Result<Vec<Link>> {
    let mut links = Vec::new();
    for directory in entries(&dir.links())? {
        links.extend(entries(&directory)?.into_iter().filter_map(|path| read(&path).ok()));
    }
    Ok(links)
}

/// The link of a program at a spot, if it is there and works.
pub(super) fn on(dir: &PinDir, spot: &Spot, program: &str) -> Option<Link> {
    read(&place(dir, spot).join(program)).ok().filter(|link| link.at == spot.at)
}

/// Whether a program has no working link at a spot. What cannot be looked at may well be there.
pub(super) fn is_gone(dir: &PinDir, spot: &Spot, program: &str) -> bool {
    match read(&place(dir, spot).join(program)) {
        Ok(link) => link.at != spot.at,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Puts another program behind a pinned link, in one step of the kernel: no event is lost, none seen twice.
///
/// # Errors
/// The link cannot be opened, or the kernel refuses (before 5.7 it cannot do so).
pub(super) fn replace(link: &Link, program: BorrowedFd<'_>) -> io::Result<()> {
    sys::replace(sys::open(&link.path)?.as_fd(), program)
}

/// Takes a pinned link's program off at once, and the pin away. Without the first the kernel lets go of the program
/// some time after the pin, so that whoever attaches next may find the place taken; and never while somebody holds the
/// link open.
///
/// # Errors
/// The pin cannot be removed.
pub(crate) fn take_off(pin: &Path) -> io::Result<()> {
    if let Ok(link) = sys::open(pin) {
        // What it hung on may be gone already, and kernels before 5.9 cannot: the pin goes all the same.
        let _detached = sys::detach(link.as_fd());
    }
    fs::remove_file(pin)
}

/// The directory for the links of a spot.
pub(super) fn place(dir: &PinDir, spot: &Spot) -> PathBuf {
    dir.links().join(&spot.directory)
}

/// Unpins the links of cgroups and devices that are gone.
///
/// # Errors
/// A directory cannot be listed or changed.
pub(super) fn sweep(dir: &PinDir) -> io::Result<()> {
    remove_where(dir, |link| link.at == At::Gone)
}

/// Unpins, and so detaches, the links of every other spot.
///
/// # Errors
/// A directory cannot be listed or changed.
pub(super) fn keep_only(dir: &PinDir, spots: &[Spot]) -> io::Result<()> {
    let kept: Vec<PathBuf> = spots.iter().map(|spot| place(dir, spot)).collect();
    remove_where(dir, |link| !kept.iter().any(|place| link.path.starts_with(place)))
}

/// Unpins, and so detaches, such links.
///
/// # Errors
/// A directory cannot be listed or changed.
pub(super) fn remove_where(dir: &PinDir, unwanted: impl Fn(&Link) -> bool) -> io::Result<()> {
    remove(dir, |link| link.is_ok_and(|link| unwanted(&link)))
}

/// Unpins, and so detaches, every link.
///
/// # Errors
/// A directory cannot be listed or changed.
pub(super) fn remove_all(dir: &PinDir) -> io::Result<()> {
    remove(dir, |_| true)
}

fn remove(dir: &PinDir, unwanted: impl Fn(io::Result<Link>) -> bool) -> io::Result<()> {
    for directory in entries(&dir.links())? {
        for path in entries(&directory)? {
            if unwanted(read(&path)) {
                take_off(&path)?;
            }
        }
        if entries(&directory)?.is_empty() {
            fs::remove_dir(&directory)?;
        }
    }
    Ok(())
}

/// Paths in a directory, in order; none if it does not exist.
fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let listed = match fs::read_dir(directory) {
        Ok(listed) => listed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut paths = listed.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> io::Result<Link> {
    let link = sys::open(path)?;
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", link.as_raw_fd()))?;
    parse(path, &info)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a link to a cgroup or a device"))
}

fn parse(path: &Path, info: &str) -> Option<Link> {
    let field =
        |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    Some(Link {
        path: path.to_owned(),
        id: field("link_id")?.parse().ok()?,
        program: path.file_name()?.to_str()?.to_owned(),
        at: at(field)?,
        program_id: field("prog_id")?.parse().ok()?,
        tag: field("prog_tag")?.to_owned(),
    })
}

fn at<'a>(field: impl Fn(&str) -> Option<&'a str>) -> Option<At> {
    if let Some(id) = field("cgroup_id") {
        return Some(match id.parse().ok()? {
            0 => At::Gone,
            id => At::Cgroup(id),
        });
    }
    Some(match field("ifindex")?.parse().ok()? {
        0 => At::Gone,
        ifindex => At::Device(ifindex),
    })
}

#[cfg(test)]
mod tests {
    use super::{At, parse};
    use std::path::Path;

    #[test]
    fn reads_what_the_kernel_tells_of_a_link_to_a_device() {
        let info =
            "link_type:\ttcx\nlink_id:\t6\nprog_tag:\t0a\nprog_id:\t43\nifindex:\t2\nattach_type:\t46\n";
        let at = |info: &str| parse(Path::new("/pins/links/dev-2-9/tcx_egress"), info).unwrap().at;
        assert_eq!(at(info), At::Device(2));
        assert_eq!(at(&info.replace("ifindex:\t2", "ifindex:\t0")), At::Gone);
    }

    #[test]
    fn reads_what_the_kernel_tells_of_a_cgroup_link() {
        let info = "pos:\t0\nflags:\t02000000\nlink_type:\tcgroup\nlink_id:\t5\nprog_tag:\t0a1b2c3d4e5f6071\n\
                    prog_id:\t42\ncgroup_id:\t4097\nattach_type:\t3\n";
        let link = parse(Path::new("/pins/links/4097/release"), info).unwrap();
        assert_eq!((link.program.as_str(), link.at, link.program_id), ("release", At::Cgroup(4097), 42));
        assert_eq!(link.id, 5);
        assert_eq!(link.tag, "0a1b2c3d4e5f6071");
        assert_eq!(parse(Path::new("/pins/links/1/x"), "link_type:\txdp\nprog_id:\t1\n"), None);
        let gone = parse(Path::new("/p/1/x"), &info.replace("4097", "0")).unwrap();
        assert_eq!(gone.at, At::Gone);
    }
}
