//! The socket whose end tells the kernel that this process is gone.
//!
//! It is never bound and carries nothing. When the last descriptor of it closes, on exit or by a signal, the
//! program at `sock_release` finds the slot by the socket's cookie, zeroes what this process counted, and frees
//! the slot. It is close-on-exec: a child that kept it would keep the slot.
#![expect(unsafe_code, reason = "an unbound socket and its cookie need the C interface")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A live anchor; dropping it frees the slot.
#[derive(Debug)]
pub(super) struct Anchor {
    _socket: OwnedFd,
    cookie: u64,
}

impl Anchor {
    /// # Errors
    /// What `socket` or `getsockopt` says.
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: no pointer is passed.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that was just made, and that nobody else owns.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut cookie: u64 = 0;
        let mut len = size_of::<u64>() as libc::socklen_t;
        // SAFETY: `cookie` and `len` are valid for writing, and `len` says how much.
        let failed = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_COOKIE,
                (&raw mut cookie).cast(),
                &raw mut len,
            )
        };
        if failed != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { _socket: socket, cookie })
    }

    /// The kernel's number of the socket; never 0.
    pub(super) const fn cookie(&self) -> u64 {
        self.cookie
    }
}
