//! The listening port, which can be closed and opened again.
//!
//! A second socket that never listens holds the port, so that nobody else gets it while the door is closed: a
//! connection is then refused by the kernel, as if no engine ran.
//! Invariant: whether connections are accepted changes before `open` or `close` returns.

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Handle;

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: u32 = 1024;

/// One port.
#[derive(Debug)]
pub(super) struct Door {
    addr: SocketAddr,
    _reserved: TcpSocket,
    /// Listening sockets belong to it.
    runtime: Handle,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` while closed.
    listener: Option<TcpListener>,
    /// Who accepts.
    waiter: Option<Waker>,
}

impl Door {
    /// An open door at `listen`; port 0 takes any free one. Needs a runtime.
    pub(super) fn new(listen: SocketAddr) -> io::Result<Self> {
        let reserved = bind(listen)?;
        let addr = reserved.local_addr()?;
        let listener = Some(bind(addr)?.listen(BACKLOG)?);
        let state = Mutex::new(State { listener, waiter: None });
        Ok(Self { addr, _reserved: reserved, runtime: Handle::current(), state })
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Refuses connections, and resets those not yet accepted.
    pub(super) fn close(&self) {
        self.state.lock().listener = None;
    }

    /// Takes connections again.
    pub(super) fn open(&self) -> io::Result<()> {
        let _context = self.runtime.enter();
        let mut state = self.state.lock();
        if state.listener.is_none() {
            state.listener = Some(bind(self.addr)?.listen(BACKLOG)?);
            if let Some(waiter) = state.waiter.take() {
                waiter.wake();
            }
        }
        Ok(())
    }

    /// The next connection, for one task at a time. Dropping the future loses none.
    pub(super) async fn accept(&self) -> io::Result<TcpStream> {
        std::future::poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// The same; never ready if there is no door.
    pub(super) async fn accept_at(door: Option<&Self>) -> io::Result<TcpStream> {
        match door {
            Some(door) => door.accept().await,
            None => std::future::pending().await,
        }
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<TcpStream>> {
        let mut state = self.state.lock();
        state.waiter = Some(cx.waker().clone());
        match &state.listener {
            Some(listener) => listener.poll_accept(cx).map_ok(|(stream, _)| stream),
            None => Poll::Pending,
        }
    }
}

fn bind(addr: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // For the socket that holds the port, and for connections of before that have not quite ended.
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use super::*;

    fn door() -> Arc<Door> {
        Arc::new(Door::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap())
    }

    #[tokio::test]
    async fn a_closed_door_refuses_and_an_opened_one_accepts_again() {
        let door = door();
        let accepted = tokio::spawn({
            let door = Arc::clone(&door);
            async move { door.accept().await }
        });
        for _ in 0..2 {
            door.close();
            let refused = TcpStream::connect(door.addr()).await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        }
        door.open().unwrap();
        let client = TcpStream::connect(door.addr()).await.unwrap();
        let server = accepted.await.unwrap().unwrap();
        assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
    }

    #[tokio::test]
    async fn an_open_door_is_not_shared() {
        let door = door();
        assert_eq!(Door::new(door.addr()).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
