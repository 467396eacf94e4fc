//! Operators' calls to an engine's own paths: one call, one connection, whole bodies.
//!
//! The engine gets its own key and nothing of the caller's but what is asked. Bounded: calls at once, the answer's
//! size, the time of the whole.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http1::handshake;
use hyper::header::{AUTHORIZATION, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpSocket;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Mark, Target};

/// Calls at once, over all engines: each may hold an answer.
const CALLS_MAX: usize = 8;
/// Bytes of an answer.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Time for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the whole: waking an engine or loading an adapter takes its time.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// Too many at once.
    #[error("too many calls at once")]
    Busy,
    /// The path cannot be sent.
    #[error("this is no path of an engine")]
    Path,
    /// No connection came about.
    #[error("cannot connect: {0}")]
    Connect(std::io::Error),
    /// What came is no answer.
    #[error("the answer broke off: {0}")]
    Broken(Box<dyn std::error::Error + Send + Sync>),
    /// It is larger than is read.
    #[error("the answer is larger than 16 MiB")]
    TooLarge,
    /// Not in time.
    #[error("no answer in time")]
    Timeout,
}

/// Sends operators' calls.
pub struct Relay {
    calls: Semaphore,
    mark: Option<Mark>,
}

impl Relay {
    /// `mark` is called with each socket before it connects.
    #[must_use]
    pub fn new(mark: Option<Mark>) -> Self {
        Self { calls: Semaphore::new(CALLS_MAX), mark }
    }

    /// Sends one request, whose path is one below the engine's base path, and gives the whole answer. Dropping the
    /// future closes the connection.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn ask(
        &self,
        target: Arc<Target>,
        request: Request<Bytes>,
    ) -> Result<Response<Bytes>, RelayError> {
        let _call = self.calls.try_acquire().map_err(|_full| RelayError::Busy)?;
        timeout(TIMEOUT, self.ask_in_time(&target, request)).await.unwrap_or(Err(RelayError::Timeout))
    }

    async fn ask_in_time(
        &self,
        target: &Target,
        request: Request<Bytes>,
    ) -> Result<Response<Bytes>, RelayError> {
        let request = addressed(target, request)?;
        let stream = timeout(CONNECT_TIMEOUT, self.connect(target))
            .await
            .unwrap_or_else(|_late| Err(std::io::ErrorKind::TimedOut.into()))
            .map_err(RelayError::Connect)?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let mut driver = JoinSet::new();
        // The sender tells how the connection ends.
        driver.spawn(async move { drop(connection.await) });
        let (parts, body) = sender.send_request(request).await.map_err(broken)?.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|e| match e.is::<LengthLimitError>() {
            true => RelayError::TooLarge,
            false => RelayError::Broken(e),
        })?;
        Ok(Response::from_parts(parts, body.to_bytes()))
    }

    async fn connect(&self, target: &Target) -> std::io::Result<tokio::net::TcpStream> {
        let socket = if target.addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        if let Some(mark) = &self.mark {
            mark(socket.as_fd(), target.id);
        }
        socket.connect(target.addr).await
    }
}

fn broken(error: hyper::Error) -> RelayError {
    RelayError::Broken(Box::new(error))
}

/// The request as the engine gets it.
fn addressed(target: &Target, request: Request<Bytes>) -> Result<Request<Full<Bytes>>, RelayError> {
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    parts.uri = format!("{}{path}", target.base_path).parse::<Uri>().map_err(|_| RelayError::Path)?;
    parts.headers.insert(HOST, target.authority.clone());
    parts.headers.insert(USER_AGENT, HeaderValue::from_static("unlatch"));
    parts.headers.remove(AUTHORIZATION);
    if let Some(key) = &target.authorization {
        parts.headers.insert(AUTHORIZATION, key.clone());
    }
    Ok(Request::from_parts(parts, Full::new(body)))
}
