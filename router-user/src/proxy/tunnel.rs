//! Upgrades (WebSocket): after the engine's 101 the connection is a tunnel, counted for its whole life.
//!
//! Nothing is switched before the engine agreed; any other answer is passed on like every answer. Invariant: the
//! flight ends when the tunnel does, so a tunnel is never forgotten in the engine's count.

use std::io;

use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Version};
use hyper_util::rt::TokioIo;
use router_policy::Outcome;
use tokio::io::{AsyncWriteExt, copy_bidirectional};

use super::flight::Flight;
use crate::accept::Client;
use crate::forward::conn::Conn;
use crate::forward::stream::Progress;

/// What a client asked to switch to, and its side of the connection if it comes to that.
#[derive(Debug)]
pub(super) struct Wanted {
    protocol: HeaderValue,
    client_side: OnUpgrade,
}

impl Wanted {
    /// The upgrade a request asks for. Only WebSocket is one: others may be ignored (RFC 9110, 7.8), and h2c is.
    pub(super) fn of<B>(request: &mut Request<B>) -> Option<Self> {
        let protocol = request.headers().get(header::UPGRADE)?;
        let is_meant = request.version() == Version::HTTP_11 && names_upgrade(request.headers());
        if !is_meant || !protocol.as_bytes().eq_ignore_ascii_case(b"websocket") {
            return None;
        }
        let protocol = protocol.clone();
        Some(Self { protocol, client_side: hyper::upgrade::on(request) })
    }

    /// What asks the next hop for the same, or tells the client that it got it.
    pub(super) fn announcement(&self) -> [(HeaderName, HeaderValue); 2] {
        [(header::CONNECTION, HeaderValue::from_static("Upgrade")), (header::UPGRADE, self.protocol.clone())]
    }

    /// Runs the tunnel in a task of its own, which ends with its worker.
    pub(super) fn start(self, mut conn: Conn, flight: Flight, client: &Client) {
        client.tunnel.begin();
        let (permit, client_side) = (client.permit.clone(), self.client_side);
        tokio::spawn(async move {
            flight.ended(run(client_side, &mut conn).await);
            conn.rest();
            drop((conn, permit));
        });
    }
}

/// Bytes both ways until both sides ended. A side that ends alone is told to the other, which may go on.
async fn run(client_side: OnUpgrade, conn: &mut Conn) -> Outcome {
    let Ok(client) = client_side.await else { return Outcome::ClientGone };
    let mut client = TokioIo::new(client);
    let (engine, begun) = conn.tunnel();
    let ended = match client.write_all(&begun).await {
        Ok(()) => copy_bidirectional(&mut client, engine).await,
        Err(error) => Err(error),
    };
    ended.map_or_else(of_break, |_bytes| Outcome::Completed)
}

/// A tunnel that broke is the client's doing as far as anyone can tell from an error of either socket.
fn of_break(error: io::Error) -> Outcome {
    tracing::debug!(%error, "a tunnel broke");
    Outcome::ClientGone
}

fn names_upgrade(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::CONNECTION).into_iter();
    let mut tokens = values.flat_map(|value| value.as_bytes().split(|&b| b == b','));
    tokens.any(|token| token.trim_ascii().eq_ignore_ascii_case(b"upgrade"))
}
