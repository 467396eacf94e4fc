//! Pinned links: which program hangs on which cgroup, and whether it still does.
//!
//! A link outlives the process that made it, and its cgroup may outlive neither: systemd makes a new cgroup at
//! every restart of a unit, and the link of the old one stays pinned without effect. So each is looked at before
//! it is relied on. The kernel tells all that is needed in `/proc/self/fdinfo`, without further rights.
#![expect(unsafe_code, reason = "opening a pinned object and replacing its program need the bpf system call")]

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::cgroup::Cgroup;
use super::pins::PinDir;

/// A pinned link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Where it is pinned.
    pub path: PathBuf,
    /// The kernel's number of the link, which stays when its program is replaced.
    pub id: u32,
    /// Name of the program, as the pin is called.
    pub program: String,
    /// The kernel's number of the cgroup; 0 = the cgroup is gone, and the link without effect.
    pub cgroup_id: u64,
    /// The kernel's number of the program.
    pub program_id: u32,
    /// Digest of the program's instructions, in hexadecimal.
    pub tag: String,
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

/// The link of a program on a cgroup, if it is there and works.
pub(super) fn on(dir: &PinDir, cgroup: &Cgroup, program: &str) -> Option<Link> {
    read(&place(dir, cgroup).join(program)).ok().filter(|link| link.cgroup_id == cgroup.id)
}

/// Whether a program has no working link on a cgroup. What cannot be looked at may well be there.
pub(super) fn is_gone(dir: &PinDir, cgroup: &Cgroup, program: &str) -> bool {
    match read(&place(dir, cgroup).join(program)) {
        Ok(link) => link.cgroup_id != cgroup.id,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Puts another program behind a pinned link, in one step of the kernel: no event is lost, none seen twice.
///
/// # Errors
/// The link cannot be opened, or the kernel refuses (before 5.7 it cannot do so).
pub(super) fn replace(link: &Link, program: BorrowedFd<'_>) -> io::Result<()> {
    const BPF_LINK_UPDATE: libc::c_int = 29;
    let open = open(&link.path)?;
    let attributes = LinkUpdate {
        link_fd: open.as_raw_fd() as u32,
        new_prog_fd: program.as_raw_fd() as u32,
        flags: 0,
        old_prog_fd: 0,
    };
    // SAFETY: the attributes live through the call, which only reads them; both descriptors are open.
    let done = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_LINK_UPDATE, &raw const attributes, size_of::<LinkUpdate>())
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Takes a pinned link's program off at once, and the pin away. Without the first the kernel lets go of the program
/// some time after the pin, so that whoever attaches next may find the place taken; and never while somebody holds the
/// link open.
///
/// # Errors
/// The pin cannot be removed.
pub(crate) fn take_off(pin: &Path) -> io::Result<()> {
    const BPF_LINK_DETACH: libc::c_int = 34;
    if let Ok(link) = open(pin) {
        let attributes = link.as_raw_fd() as u32;
        // What it hung on may be gone already, and kernels before 5.9 do not know the command: the pin goes all the same.
        // SAFETY: the attributes are the descriptor alone; they live through the call, which only reads them.
        let _detached =
            unsafe { libc::syscall(libc::SYS_bpf, BPF_LINK_DETACH, &raw const attributes, size_of::<u32>()) };
    }
    fs::remove_file(pin)
}

/// The directory for the links of a cgroup.
pub(super) fn place(dir: &PinDir, cgroup: &Cgroup) -> PathBuf {
    dir.links().join(cgroup.id.to_string())
}

/// Unpins the links of cgroups that are gone.
///
/// # Errors
/// A directory cannot be listed or changed.
pub(super) fn sweep(dir: &PinDir) -> io::Result<()> {
    remove(dir, |link| link.is_ok_and(|link| link.cgroup_id == 0))
}

/// Unpins, and so detaches, the links of every other cgroup.
///
/// # Errors
/// A directory cannot be listed or changed.
pub(super) fn keep_only(dir: &PinDir, cgroup: &Cgroup) -> io::Result<()> {
    remove(dir, |link| link.is_ok_and(|link| link.cgroup_id != cgroup.id))
}

/// Unpins, and so detaches, every link of a program.
///
/// # Errors
/// A directory cannot be listed or changed.
pub(super) fn remove_program(dir: &PinDir, program: &str) -> io::Result<()> {
    remove(dir, |link| link.is_ok_and(|link| link.program == program))
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
    let link = open(path)?;
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", link.as_raw_fd()))?;
    parse(path, &info).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a link to a cgroup"))
}

fn parse(path: &Path, info: &str) -> Option<Link> {
    let field =
        |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    Some(Link {
        path: path.to_owned(),
        id: field("link_id")?.parse().ok()?,
        program: path.file_name()?.to_str()?.to_owned(),
        cgroup_id: field("cgroup_id")?.parse().ok()?,
        program_id: field("prog_id")?.parse().ok()?,
        tag: field("prog_tag")?.to_owned(),
    })
}

/// The attributes of `BPF_LINK_UPDATE`.
#[repr(C)]
struct LinkUpdate {
    link_fd: u32,
    new_prog_fd: u32,
    flags: u32,
    old_prog_fd: u32,
}

/// The attributes of `BPF_OBJ_GET`.
#[repr(C)]
struct ObjGet {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    const BPF_OBJ_GET: libc::c_int = 7;
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attributes = ObjGet { pathname: path.as_ptr() as u64, bpf_fd: 0, file_flags: 0 };
    // SAFETY: the attributes and the string they point to live through the call, which only reads them.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, BPF_OBJ_GET, &raw const attributes, size_of::<ObjGet>()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just made, and that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

#[cfg(test)]
mod tests {
    use super::parse;
    use std::path::Path;

    #[test]
    fn reads_what_the_kernel_tells_of_a_cgroup_link() {
        let info = "pos:\t0\nflags:\t02000000\nlink_type:\tcgroup\nlink_id:\t5\nprog_tag:\t0a1b2c3d4e5f6071\n\
                    prog_id:\t42\ncgroup_id:\t4097\nattach_type:\t3\n";
        let link = parse(Path::new("/pins/links/4097/release"), info).unwrap();
        assert_eq!((link.program.as_str(), link.cgroup_id, link.program_id), ("release", 4097, 42));
        assert_eq!(link.id, 5);
        assert_eq!(link.tag, "0a1b2c3d4e5f6071");
        assert_eq!(parse(Path::new("/pins/links/1/x"), "link_type:\txdp\nprog_id:\t1\n"), None);
    }
}
