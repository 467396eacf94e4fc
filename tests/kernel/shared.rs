//! What several processes of a case note together, one at a time.
#![expect(unsafe_code, reason = "memory that processes share")]

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sandbox::Sandbox;

/// Where the requests are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Noted {
    /// Sent, and no byte of the answer yet.
    pub(crate) awaiting: u64,
    /// Begun, and not ended.
    pub(crate) streaming: u64,
    /// In flight for the routers: from the pick to the last byte read.
    pub(crate) held: u64,
    /// Sent at all.
    pub(crate) sent: u64,
}

#[repr(C)]
struct Page {
    is_locked: AtomicBool,
    is_over: AtomicBool,
    noted: Noted,
}

struct Unlock<'a>(&'a AtomicBool);

impl Drop for Unlock<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The page; a process that is killed while it holds the lock holds it for ever.
pub(crate) struct Truth(NonNull<Page>);

// SAFETY: the notes are touched under the lock only, all else is atomic.
unsafe impl Sync for Truth {}

impl Truth {
    /// The one page of the sandbox.
    pub(crate) fn open(sandbox: &Sandbox) -> Self {
        let path = sandbox.bpffs.with_file_name("truth");
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path).unwrap();
        file.set_len(size_of::<Page>() as u64).unwrap();
        // SAFETY: a new mapping of a file that is as long; a page of zeros is unlocked, and counts nothing.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Page>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(page, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Self(NonNull::new(page.cast()).unwrap())
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped until the process ends, and aligned as pages are; `noted` is read under the lock only.
        unsafe { self.0.as_ref() }
    }

    /// Does something and notes it, while nobody else does.
    pub(crate) fn note<T>(&self, what: impl FnOnce(&mut Noted) -> T) -> T {
        let page = self.page();
        while page.is_locked.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        // Of a test that fails too: the others must end.
        let _unlock = Unlock(&page.is_locked);
        // SAFETY: the lock is held, so nobody else looks.
        what(unsafe { &mut (*self.0.as_ptr()).noted })
    }

    /// Tells all to stop.
    pub(crate) fn end(&self) {
        self.page().is_over.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.page().is_over.load(Ordering::Relaxed)
    }
}
