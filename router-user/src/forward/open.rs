//! The open connections of one worker, so that those of an engine that is going can be ended from outside of the tasks
//! that wait on them.
//!
//! Engines that are told to end close their port at once, and some keep their streams open without another byte. A
//! stream that is waited for costs nothing while it is silent, and no timer of its own says that the port is gone; so
//! whoever knows that asks the kernel here which connections are silent (`TCP_INFO`) and shuts them down, which their
//! tasks see as the engine's end. Listing costs once a connection, nothing a request. Invariant: a descriptor is listed
//! only while it is open: [`Listed`] goes before the socket does.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use router_policy::BackendId;
use rustix::net::Shutdown;

use super::socket::tcp_info;

/// Where `tcpi_last_data_sent` and `tcpi_last_data_recv` lie in Linux's `struct tcp_info`: milliseconds.
const LAST_SENT_AT: usize = 44;
const LAST_RECEIVED_AT: usize = 52;

/// Open connections.
#[derive(Debug, Default)]
pub(super) struct Open(Mutex<BTreeMap<RawFd, BackendId>>);

/// A connection's place in the list, until it is dropped.
#[derive(Debug)]
pub(super) struct Listed {
    open: Arc<Open>,
    fd: RawFd,
}

impl Open {
    /// Lists a connection to a backend.
    pub(super) fn list(self: &Arc<Self>, socket: &impl AsRawFd, id: BackendId) -> Listed {
        let fd = socket.as_raw_fd();
        self.0.lock().insert(fd, id);
        Listed { open: Arc::clone(self), fd }
    }

    /// Ends the connections to a backend on which nothing was sent or received for so long; how many. A system call a
    /// connection.
    #[expect(unsafe_code, reason = "a descriptor that another owns")]
    pub(super) fn end_silent(&self, id: BackendId, silence: Duration) -> usize {
        let open = self.0.lock();
        let of_backend = open.iter().filter(|(_, backend)| **backend == id);
        let ended = of_backend.filter(|(fd, _)| {
            // SAFETY: it is open as long as it is listed, and nobody takes it from the list while the lock is held.
            let socket = unsafe { BorrowedFd::borrow_raw(**fd) };
            is_silent(socket, silence) && rustix::net::shutdown(socket, Shutdown::Both).is_ok()
        });
        ended.count()
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.open.0.lock().remove(&self.fd);
    }
}

fn is_silent(socket: BorrowedFd<'_>, silence: Duration) -> bool {
    let Some(info) = tcp_info::<{ LAST_RECEIVED_AT + 4 }>(socket) else { return false };
    [LAST_SENT_AT, LAST_RECEIVED_AT].into_iter().all(|at| {
        let ms = info[at..at + 4].try_into().map_or(0, u32::from_ne_bytes);
        Duration::from_millis(ms.into()) >= silence
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use router_policy::BackendId;

    use super::Open;

    #[test]
    fn only_what_is_listed_of_that_backend_and_silent_is_ended() {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let addr = listener.local_addr().unwrap();
        let pair = || (TcpStream::connect(addr).unwrap(), listener.accept().unwrap().0);
        let open = Arc::new(Open::default());
        let [a, b] = [0, 1].map(|row| BackendId::new(row).unwrap());
        let [(silent, _s), (other, _o), (young, mut talks), (gone, _g)] = [(); 4].map(|()| pair());
        let lists = [(&silent, a), (&other, b), (&young, a)].map(|(socket, id)| open.list(socket, id));
        drop(open.list(&gone, a));
        let silence = Duration::from_millis(300);
        assert_eq!(open.end_silent(a, silence), 0, "all are young");
        let begun = Instant::now();
        while begun.elapsed() < silence + Duration::from_millis(50) {
            std::io::Write::write_all(&mut talks, b"x").unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(open.end_silent(a, silence), 1);
        assert_eq!({ &silent }.read(&mut [0]).unwrap(), 0, "it ended");
        for lives in [&other, &gone] {
            lives.set_nonblocking(true).unwrap();
            assert!({ lives }.read(&mut [0]).is_err(), "it is open, and nothing came");
        }
        assert_eq!({ &young }.read(&mut [0]).unwrap(), 1);
        drop(lists);
        assert_eq!(open.end_silent(a, Duration::ZERO), 0);
    }
}
