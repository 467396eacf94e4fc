//! A piece of memory that other processes, and the kernel's programs, write at the same time.
//!
//! Owns one mapping and hands out atomic cells of it by byte offset, checked against its length. It knows no
//! layout. Invariant: nothing outside this file makes a pointer or a plain reference into shared memory.
#![expect(unsafe_code, reason = "mapping memory, and viewing it as atomics")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A shared or private mapping.
#[derive(Debug)]
pub(super) struct Region {
    base: NonNull<u8>,
    len: usize,
}

/// Whether stores are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

impl Region {
    /// Maps the first `len` bytes of a BPF array that was made with `BPF_F_MMAPABLE`.
    ///
    /// # Errors
    /// What `mmap` says.
    pub(super) fn of_map(fd: BorrowedFd<'_>, len: usize, access: Access) -> io::Result<Self> {
        let prot = match access {
            Access::Read => libc::PROT_READ,
            Access::Write => libc::PROT_READ | libc::PROT_WRITE,
        };
        Self::map(len, prot, libc::MAP_SHARED, fd.as_raw_fd())
    }

    /// `len` bytes of zeros that only this process sees.
    ///
    /// # Errors
    /// What `mmap` says.
    pub(super) fn private(len: usize) -> io::Result<Self> {
        Self::map(len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    fn map(len: usize, prot: libc::c_int, flags: libc::c_int, fd: libc::c_int) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice; nothing in memory is replaced.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("invariant: mmap without MAP_FIXED never gives page 0");
        Ok(Self { base, len })
    }

    /// The 32-bit cell at a byte offset.
    ///
    /// # Panics
    /// If the cell is not aligned or not wholly inside.
    pub(super) fn u32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.len, "cell outside of the mapping");
        // SAFETY: aligned (the base is page-aligned) and inside, as asserted; lives as long as `self`; every
        // process and program accesses shared cells as atomics or through aligned single stores.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// The 64-bit cell at a byte offset.
    ///
    /// # Panics
    /// If the cell is not aligned or not wholly inside.
    pub(super) fn u64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len, "cell outside of the mapping");
        // SAFETY: as for `u32`.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`, unmapped once; cells borrow `self`, so none is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

// SAFETY: the mapping belongs to the process, not to a thread, and is only accessed through atomics.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}
