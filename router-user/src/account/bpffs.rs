//! The BPF file system that pins must lie on; mounted at its usual place if nobody did, as bpftool does.
#![expect(unsafe_code, reason = "statfs and mount")]

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::error::KernelError;

/// Where Linux expects the BPF file system; the one place where this process mounts it by itself.
const USUAL: &str = "/sys/fs/bpf";

const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

/// Makes sure that `dir` will lie on a BPF file system.
///
/// # Errors
/// [`KernelError::NotBpffs`]; [`KernelError::Pins`] if nothing can be found out.
pub(crate) fn ensure(dir: &Path) -> Result<(), KernelError> {
    let existing = dir.ancestors().find(|path| path.exists()).unwrap_or_else(|| Path::new("/"));
    if is_bpffs(existing).map_err(KernelError::pins(existing))? {
        return Ok(());
    }
    if !dir.starts_with(USUAL) || !Path::new(USUAL).is_dir() {
        return Err(KernelError::NotBpffs { path: dir.to_owned(), mount: None });
    }
    mount().map_err(|error| KernelError::NotBpffs { path: dir.to_owned(), mount: Some(error) })
}

fn is_bpffs(path: &Path) -> io::Result<bool> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    let mut stat = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: a terminated string, and memory for the answer.
    if unsafe { libc::statfs(path.as_ptr(), stat.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: statfs succeeded, so it filled the struct.
    Ok(unsafe { stat.assume_init() }.f_type == BPF_FS_MAGIC)
}

fn mount() -> io::Result<()> {
    // SAFETY: five terminated strings or flags; the kernel copies them.
    let failed = unsafe {
        libc::mount(
            c"bpf".as_ptr(),
            c"/sys/fs/bpf".as_ptr(),
            c"bpf".as_ptr(),
            0,
            c"mode=0700".as_ptr().cast(),
        )
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
