//! Questions to an engine, over one kept connection that is not the data plane's. What an answer means is
//! [`super::life`]'s and [`super::scrape`]'s, what follows from a row of them [`super::watch`]'s. Redirects are not followed, and
//! no client's credentials are ever used: only the backend's own. Invariant: an answer's bytes and its time are
//! bounded.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use router_policy::BackendId;
use tokio::net::TcpSocket;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::Target;
use super::answer::{Sink, Whole};

/// Called with each socket before it connects, so that the kernel's counts know it for a probe.
pub type Mark = Arc<dyn Fn(BorrowedFd<'_>, BackendId) + Send + Sync>;

/// A connection is used for so long at most: one that is kept does not tell that the port is gone, as it is with engines
/// that were told to end.
const KEPT_FOR: Duration = Duration::from_secs(2);

/// Bytes of a body read past, of an answer whose status is all that counts.
const IGNORED_BYTES_MAX: usize = 64 << 10;

/// An answer of any status.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its whole body; empty unless the status is 200.
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No connection came about: the engine is not there.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// Connected, but no whole answer in time: a busy engine does so too.
    #[error("no answer in time")]
    Timeout,
    /// The answer is larger than is read.
    #[error("the answer is too large")]
    TooLarge,
    /// The answer is packed in a way that is not read.
    #[error("the answer cannot be read: {0}")]
    Unreadable(&'static str),
    /// The connection broke off, or what came is no HTTP.
    #[error("no usable answer")]
    Broken(#[source] hyper::Error),
}

impl AskError {
    /// Nobody listens.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Connect(source) if source.kind() == io::ErrorKind::ConnectionRefused)
    }
}

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// The whole path.
    pub path: &'a str,
    /// Sent as `Authorization`.
    pub authorization: Option<&'a HeaderValue>,
    /// JSON to post; `None` = it is a GET.
    pub body: Option<Bytes>,
}

/// One address of an engine and the connection for questions to it. Dropping it closes the connection.
pub struct Prober {
    target: Arc<Target>,
    addr: SocketAddr,
    authority: HeaderValue,
    mark: Option<Mark>,
    timeout: Duration,
    connection: Option<Connection>,
}

struct Connection {
    since: Instant,
    sender: SendRequest<Full<Bytes>>,
    /// Drives the connection; ends with it.
    _driver: JoinSet<()>,
}

impl Prober {
    /// A prober that is not connected. `timeout` is for each question, connecting included.
    #[must_use]
    pub fn new(target: Arc<Target>, timeout: Duration, mark: Option<Mark>) -> Self {
        let (addr, authority) = (target.addr, target.authority.clone());
        Self { target, addr, authority, mark, timeout, connection: None }
    }

    /// The same for the port that has the engine's metrics; `None` if that is the same port.
    #[must_use]
    pub fn of_metrics(target: &Arc<Target>, timeout: Duration, mark: Option<Mark>) -> Option<Self> {
        let (addr, authority) = target.metrics.port_of_its_own.clone()?;
        Some(Self { target: Arc::clone(target), addr, authority, mark, timeout, connection: None })
    }

    /// The engine asked.
    #[must_use]
    pub const fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// Asks for a path below the backend's base path, with its key. What is larger is too large.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn ask(&mut self, path: &str, bytes_max: usize) -> Result<Answer, AskError> {
        self.ask_with(path, None, bytes_max).await
    }

    /// The same, with JSON to post.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn post(&mut self, path: &str, json: Bytes, bytes_max: usize) -> Result<Answer, AskError> {
        self.ask_with(path, Some(json), bytes_max).await
    }

    async fn ask_with(
        &mut self,
        path: &str,
        json: Option<Bytes>,
        bytes_max: usize,
    ) -> Result<Answer, AskError> {
        let target = Arc::clone(&self.target);
        let path = format!("{}{path}", target.base_path);
        let mut body = Whole::new(bytes_max);
        let question = Question { path: &path, authorization: target.authorization.as_ref(), body: json };
        let status = self.ask_into(&question, &mut body).await?;
        Ok(Answer { status, body: body.into_bytes() })
    }

    /// Asks, and gives the body to `sink` if the status is 200. A kept connection that turns out closed is replaced
    /// once. Dropping the future closes the connection.
    ///
    /// # Errors
    /// Why there is no answer.
    pub(super) async fn ask_into(
        &mut self,
        question: &Question<'_>,
        sink: &mut impl Sink,
    ) -> Result<StatusCode, AskError> {
        let deadline = Instant::now() + self.timeout;
        if let Some(kept) = self.connection.take_if(|kept| kept.since.elapsed() < KEPT_FOR) {
            match timeout_at(deadline, self.ask_over(kept, question, sink)).await {
                Ok(Err(AskError::Broken(_))) => {}
                Ok(other) => return other,
                Err(_) => return Err(AskError::Timeout),
            }
        }
        self.connection = None;
        let fresh = timeout_at(deadline, self.connect())
            .await
            .unwrap_or_else(|_| Err(AskError::Connect(io::ErrorKind::TimedOut.into())))?;
        let asked = timeout_at(deadline, self.ask_over(fresh, question, sink)).await;
        asked.unwrap_or(Err(AskError::Timeout))
    }

    async fn connect(&self) -> Result<Connection, AskError> {
        let socket = if self.addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
        let socket = socket.map_err(AskError::Connect)?;
        if let Some(mark) = &self.mark {
            mark(socket.as_fd(), self.target.id);
        }
        let stream = socket.connect(self.addr).await.map_err(AskError::Connect)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(AskError::Broken)?;
        let mut driver = JoinSet::new();
        // The sender tells how the connection ends.
        driver.spawn(async move { drop(connection.await) });
        Ok(Connection { since: Instant::now(), sender, _driver: driver })
    }

    /// Asks over a connection, which is kept if it may be used again.
    async fn ask_over(
        &mut self,
        mut over: Connection,
        question: &Question<'_>,
        sink: &mut impl Sink,
    ) -> Result<StatusCode, AskError> {
        over.sender.ready().await.map_err(AskError::Broken)?;
        let response = over.sender.send_request(self.request(question)).await.map_err(AskError::Broken)?;
        let status = response.status();
        let wanted = status == StatusCode::OK;
        if wanted {
            sink.begin(response.headers())?;
        }
        let (mut body, mut ignored) = (response.into_body(), 0);
        while let Some(frame) = body.frame().await {
            let Ok(piece) = frame.map_err(AskError::Broken)?.into_data() else { continue };
            if wanted {
                sink.take(&piece)?;
                continue;
            }
            ignored += piece.len();
            if ignored > IGNORED_BYTES_MAX {
                // The status is all that counts; the connection is given up for it.
                return Ok(status);
            }
        }
        if wanted {
            sink.end()?;
        }
        self.connection = Some(over);
        Ok(status)
    }

    fn request(&self, question: &Question<'_>) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(question.body.clone().unwrap_or_default()));
        *request.uri_mut() =
            question.path.parse().expect("invariant: the configuration lets only paths of a URL through");
        if question.body.is_some() {
            *request.method_mut() = Method::POST;
        }
        let headers = request.headers_mut();
        headers.insert(HOST, self.authority.clone());
        if question.body.is_some() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        headers.insert(USER_AGENT, HeaderValue::from_static("unlatch"));
        if let Some(key) = question.authorization {
            headers.insert(AUTHORIZATION, key.clone());
        }
        request
    }
}
