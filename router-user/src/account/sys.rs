//! The few calls of the `bpf` system call that aya has not: of links of whatever kind, and of iterators over a map.
#![expect(unsafe_code, reason = "a system call")]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const BPF_OBJ_GET: libc::c_int = 7;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_LINK_UPDATE: libc::c_int = 29;
const BPF_ITER_CREATE: libc::c_int = 33;
const BPF_LINK_DETACH: libc::c_int = 34;
const BPF_TRACE_ITER: u32 = 28;

/// Opens a pinned object.
///
/// # Errors
/// What the kernel says.
pub(super) fn open(path: &Path) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        pathname: u64,
        bpf_fd: u32,
        file_flags: u32,
    }
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the attributes are those of the command, and the string they point to lives through the call.
    unsafe {
        descriptor(BPF_OBJ_GET, &Attributes { pathname: path.as_ptr() as u64, bpf_fd: 0, file_flags: 0 })
    }
}

/// Puts another program behind a link, in one step of the kernel.
///
/// # Errors
/// The kernel refuses (before 5.7 it cannot do so).
pub(super) fn replace(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        link_fd: u32,
        new_prog_fd: u32,
        flags: u32,
        old_prog_fd: u32,
    }
    let attributes = Attributes {
        link_fd: link.as_raw_fd() as u32,
        new_prog_fd: program.as_raw_fd() as u32,
        flags: 0,
        old_prog_fd: 0,
    };
    // SAFETY: the attributes are those of the command; both descriptors are open.
    unsafe { bpf(BPF_LINK_UPDATE, &attributes) }.map(drop)
}

/// Takes a link's program off, while the link is held open by anybody.
///
/// # Errors
/// What it hung on is gone, or the kernel (before 5.9) does not know the command.
pub(super) fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        link_fd: u32,
    }
    // SAFETY: the attributes are those of the command; the descriptor is open.
    unsafe { bpf(BPF_LINK_DETACH, &Attributes { link_fd: link.as_raw_fd() as u32 }) }.map(drop)
}

/// Makes a program the one that looks at all there is of its kind, or, with a map, at all that is in it.
///
/// # Errors
/// What the kernel says.
pub(super) fn link_iterator(program: BorrowedFd<'_>, map: Option<BorrowedFd<'_>>) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        prog_fd: u32,
        target_fd: u32,
        attach_type: u32,
        flags: u32,
        iter_info: u64,
        iter_info_len: u32,
        rest: u32,
    }
    let map = map.map(|map| map.as_raw_fd() as u32);
    let attributes = Attributes {
        prog_fd: program.as_raw_fd() as u32,
        target_fd: 0,
        attach_type: BPF_TRACE_ITER,
        flags: 0,
        iter_info: map.as_ref().map_or(0, |map| std::ptr::from_ref(map) as u64),
        iter_info_len: map.map_or(0, |_| size_of::<u32>() as u32),
        rest: 0,
    };
    // SAFETY: the attributes are those of the command; what they point to lives through the call.
    unsafe { descriptor(BPF_LINK_CREATE, &attributes) }
}

/// Starts an iterator: reading the file to its end runs it once.
///
/// # Errors
/// What the kernel says.
pub(super) fn iterate(link: BorrowedFd<'_>) -> io::Result<File> {
    #[repr(C)]
    struct Attributes {
        link_fd: u32,
        flags: u32,
    }
    // SAFETY: the attributes are those of the command.
    let fd =
        unsafe { descriptor(BPF_ITER_CREATE, &Attributes { link_fd: link.as_raw_fd() as u32, flags: 0 }) };
    fd.map(File::from)
}

/// # Safety
/// As for [`bpf`], and the command makes a descriptor.
unsafe fn descriptor<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise.
    let fd = unsafe { bpf(command, attributes)? };
    // SAFETY: a descriptor that was just made, and that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

/// # Safety
/// The attributes are those of the command, which reads them and what they point to.
unsafe fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<libc::c_long> {
    // SAFETY: the caller's promise; they live through the call.
    let done =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}
