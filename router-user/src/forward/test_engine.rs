//! The engine's side of connections, for unit tests.

use std::net::SocketAddr;
use std::time::Duration;

use router_policy::BackendId;
use tokio::net::TcpListener;

use super::Peer;
use super::conn::Conn;
use super::connect::{Connector, Hooks};

/// A listener, as an engine has one.
pub(super) struct Engine {
    listener: TcpListener,
    pub(super) peer: Peer,
}

impl Engine {
    pub(super) async fn new() -> Self {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let addr = listener.local_addr().unwrap();
        Self { listener, peer: Peer { id: BackendId::new(3).unwrap(), addr } }
    }

    /// A connection and the engine's end of it.
    pub(super) async fn conn(&self) -> (Conn, tokio::net::TcpStream) {
        let connector = Connector::new(Duration::from_secs(5), Hooks::default());
        let conn = connector.connect(self.peer).await.unwrap();
        let theirs = self.listener.accept().await.unwrap().0;
        (conn, theirs)
    }
}

/// Waits until it is so, 5 s at most.
pub(super) async fn until(what: impl Fn() -> bool) {
    let poll = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), poll).await.expect("it must come about within 5 s");
}
