//! One question to a row of servers: over UDP, and over TCP where the answer does not fit. Each step has its time.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use rand::TryRng;
use rand::rngs::SysRng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::system::Resolv;
use super::wire::{self, Kind, Reply};
use super::{Answer, Failure};

/// Bytes of a datagram that are read; without EDNS none has more than 512.
const DATAGRAM_BYTES_MAX: usize = 4096;

/// Asks the servers in turn until one answers, or says that there is nothing. Each is asked `attempts` times, unless
/// all of them answered that they cannot.
///
/// # Errors
/// There is nothing, or none of them answers; of several failures the one that says most.
pub(super) async fn ask(name: &str, kind: Kind, resolv: &Resolv) -> Result<Answer, Failure> {
    let mut failure = Failure::Timeout;
    for _ in 0..resolv.attempts {
        let mut refused = 0;
        for server in &resolv.servers {
            match ask_one(name, kind, *server, resolv.timeout).await {
                Err(e @ (Failure::Refused(_) | Failure::Unreadable)) => {
                    refused += 1;
                    failure = e;
                }
                Err(Failure::Timeout) => {}
                Err(e @ Failure::Unreachable(_)) if failure == Failure::Timeout => failure = e,
                Err(Failure::Unreachable(_)) => {}
                done => return done,
            }
        }
        if refused == resolv.servers.len() {
            break;
        }
    }
    Err(failure)
}

async fn ask_one(name: &str, kind: Kind, server: SocketAddr, time: Duration) -> Result<Answer, Failure> {
    let id = SysRng.try_next_u32().map_err(|_| Failure::Unreachable(io::ErrorKind::Other))? as u16;
    let question = wire::question(name, kind, id)?;
    let reply = match in_time(time, by_udp(&question, kind, server)).await? {
        Reply::Truncated => in_time(time, by_tcp(&question, kind, server)).await?,
        whole => whole,
    };
    match reply {
        Reply::Is(answer) => answer,
        Reply::Truncated => Err(Failure::Unreadable),
    }
}

async fn in_time(time: Duration, asked: impl Future<Output = io::Result<Reply>>) -> Result<Reply, Failure> {
    match timeout(time, asked).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(e)) if e.kind() == io::ErrorKind::InvalidData => Err(Failure::Unreadable),
        Ok(Err(e)) => Err(Failure::Unreachable(e.kind())),
        Err(_) => Err(Failure::Timeout),
    }
}

/// From a port of its own, so that a reply must guess that and the question's number.
async fn by_udp(question: &[u8], kind: Kind, server: SocketAddr) -> io::Result<Reply> {
    let any = match server {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    socket.send(question).await?;
    let mut bytes = [0; DATAGRAM_BYTES_MAX];
    loop {
        let read = socket.recv(&mut bytes).await?;
        // What is no reply to this question is somebody else's.
        if let Some(reply) = wire::reply(&bytes[..read], question, kind) {
            return Ok(reply);
        }
    }
}

async fn by_tcp(question: &[u8], kind: Kind, server: SocketAddr) -> io::Result<Reply> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(question.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), question].concat()).await?;
    let mut bytes = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut bytes).await?;
    wire::reply(&bytes, question, kind).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
