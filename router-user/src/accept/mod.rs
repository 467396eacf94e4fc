//! 1. Client connections: one listening socket, a cap, and HTTP/1.1 on each connection.
//!
//! Every worker accepts from the same socket: an idle worker takes the next connection, so that few long-lived
//! connections still spread over the workers (with `SO_REUSEPORT` the kernel would spread them by hash, and four
//! connections could all land on one worker). Without that option a port in use is an error at start.
//!
//! Does not know what a request is for: it hands requests to a [`Service`]. Invariant: a connection that was
//! accepted holds a permit of the cap until its task has ended, whichever way.

pub mod checked;
mod framing;
pub mod limit;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::body::{Body, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OwnedSemaphorePermit;

use crate::shutdown::{Ending, Phase};
use checked::{Checked, Reset, Tunnel};
use limit::{Connections, Counters};

/// After an accept error that will not pass at once (no descriptors left), so long is waited.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// And so often each worker says so.
const ACCEPT_SAID_AGAIN: Duration = Duration::from_secs(10);

/// Connections the kernel completes before we accept them.
const BACKLOG: i32 = 1024;

/// Fields of a request's head; beyond it hyper answers 431. hyper has room for them made for every head, twice 7 KiB: a
/// size of its own for the allocator. With 256 it was that of connections' buffers, and each took ten times as long.
const HEAD_FIELDS_MAX: usize = 224;

/// A silent connection is probed after this long, so that a vanished client frees its engine.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);

/// Who asks.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its address.
    pub addr: SocketAddr,
    /// Its IP address as a header value.
    pub ip: HeaderValue,
    /// To be begun when the connection stops being HTTP.
    pub tunnel: Tunnel,
    /// Its place below the cap: what outlives the connection's task, as a tunnel does, keeps it.
    pub permit: Arc<OwnedSemaphorePermit>,
}

impl Client {
    fn new(addr: SocketAddr, permit: OwnedSemaphorePermit) -> Self {
        let ip = addr.ip().to_canonical().to_string();
        let ip = HeaderValue::from_str(&ip).expect("invariant: an address is visible ASCII");
        Self { addr, ip, tunnel: Tunnel::default(), permit: Arc::new(permit) }
    }
}

/// What answers requests. Dropping the future means that the client left.
pub trait Service: Send + Sync + 'static {
    /// The response's body.
    type Body: Body<Data = bytes::Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + 'static;

    /// Answers one request.
    fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        client: Arc<Client>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// Bounds of the downstream side; see `config::Limits`.
#[derive(Clone, Copy, Debug)]
pub struct AcceptLimits {
    /// Request line and headers. Up to twice this much is read, so that the error can be a proper one.
    pub head_bytes_max: usize,
    /// Time for a head to arrive; also how long a connection may idle between two requests.
    pub head_timeout: Duration,
}

/// Binds the one listening socket. What is set here is inherited by every accepted connection.
///
/// # Errors
/// The address is in use, not ours, or not allowed.
pub fn bind(addr: SocketAddr) -> io::Result<std::net::TcpListener> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    // So that a restart does not wait for TIME_WAIT; a live listener is still "address in use".
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE)?;
    bind(socket.as_fd(), &addr)?;
    listen(socket.as_fd(), BACKLOG)?;
    Ok(socket.into())
}

/// Accepts on this worker until draining begins, then returns at once: connections end by themselves, and
/// [`Connections::drained`] waits for them. Dropping the future stops accepting too.
///
/// # Errors
/// The listener cannot be registered with the worker's runtime.
pub async fn serve<S: Service>(
    listener: std::net::TcpListener,
    service: Arc<S>,
    limits: AcceptLimits,
    connections: Arc<Connections>,
    mut ending: Ending,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let http = http(limits);
    let mut http_once = http.clone();
    http_once.keep_alive(false);
    let mut said: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            // Stopping first: a busy listener must not put it off.
            biased;
            () = ending.reached(Phase::Draining) => return Ok(()),
            accepted = accept_one(&listener, &connections) => accepted,
        };
        match accepted {
            Ok((stream, addr, permit)) => {
                let client = Client::new(addr, permit);
                let counters = Arc::clone(connections.counters());
                // Owned by its permit: the process waits for all permits, then drops the runtime and its tasks.
                let is_leaving = ending.phase() >= Phase::Leaving;
                tokio::spawn(connection(
                    if is_leaving { &http_once } else { &http },
                    stream,
                    client,
                    Arc::clone(&service),
                    ending.clone(),
                    counters,
                ));
            }
            Err(error) => {
                connections.counters().accept_errors.inc();
                if !is_of_one_connection(&error) {
                    if said.is_none_or(|at| at.elapsed() >= ACCEPT_SAID_AGAIN) {
                        said = Some(Instant::now());
                        tracing::warn!(%error, "cannot accept a connection");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Waits for room below the cap, then for a connection.
async fn accept_one(
    listener: &TcpListener,
    connections: &Connections,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let permit = connections.permit().await;
    let (stream, addr) = listener.accept().await?;
    Ok((stream, addr, permit))
}

/// The client gave up while it waited in the queue: nothing is wrong with the listener.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

fn http(limits: AcceptLimits) -> http1::Builder {
    let mut http = http1::Builder::new();
    let head_bytes_max = limits.head_bytes_max.saturating_mul(2);
    // hyper takes 100 fields by default, and some clients send more.
    http.max_headers(HEAD_FIELDS_MAX);
    // Beyond this hyper answers 431 without a body.
    http.timer(TokioTimer::new()).header_read_timeout(limits.head_timeout).max_header_size(head_bytes_max);
    // Room for a head. Bodies pass through the same buffer, and one that stays in a processor's cache is cheaper
    // than fewer reads: a 1 MB body costs 5 to 10 % less than with 400 KiB.
    http.max_buf_size(head_bytes_max.max(128 << 10));
    http
}

/// One connection, until the client leaves, or the router does and its request has ended. One that came while the router
/// was leaving is still asked once.
fn connection<S: Service>(
    http: &http1::Builder,
    stream: TcpStream,
    client: Client,
    service: Arc<S>,
    ending: Ending,
    counters: Arc<Counters>,
) -> impl Future<Output = ()> + Send + use<S> {
    // One that comes while the router leaves is closed after its first answer anyway.
    let goes = if ending.phase() >= Phase::Leaving { Phase::Draining } else { Phase::Leaving };
    let (reset, is_1_0) = (Reset::default(), Arc::new(AtomicBool::new(false)));
    let stream = Checked::new(stream, client.tunnel.clone(), reset.clone());
    let (client, last_is_1_0) = (Arc::new(client), Arc::clone(&is_1_0));
    let answer = service_fn(move |request: Request<Incoming>| {
        let version = request.version();
        last_is_1_0.store(version == Version::HTTP_10, Ordering::Relaxed);
        // Boxed, since hyper has room for an answer as long as for the connection.
        let answer = Box::pin(Arc::clone(&service).answer(request, Arc::clone(&client)));
        Answering { answer, version }
    });
    // Boxed, since what an async block waits for has room in it twice.
    let mut conn = Box::pin(http.serve_connection(TokioIo::new(stream), answer).with_upgrades());
    async move {
        let ended = ending.tell(goes, conn.as_mut(), |conn| conn.graceful_shutdown()).await;
        // An HTTP/1.0 answer that broke must end in another way than one that is whole: by a reset.
        if ended.as_ref().is_err_and(hyper::Error::is_user) && is_1_0.load(Ordering::Relaxed) {
            reset.at_close();
        }
        counters.ended(&ended);
    }
}

/// An answer on its way, as hyper wants it.
struct Answering<F> {
    answer: Pin<Box<F>>,
    /// The request's.
    version: Version,
}

impl<F: Future<Output = Response<B>>, B: Body> Future for Answering<F> {
    type Output = Result<Response<B>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut response = ready!(self.answer.as_mut().poll(cx));
        if self.version == Version::HTTP_10 {
            announce_end(&mut response);
        }
        Poll::Ready(Ok(response))
    }
}

/// An HTTP/1.0 client knows the end of an answer without a length by the connection's: hyper says `keep-alive` to
/// one that asked, and closes all the same.
fn announce_end<B: Body>(response: &mut Response<B>) {
    if response.body().size_hint().exact().is_none() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
}

impl Counters {
    fn ended(&self, ended: &hyper::Result<()>) {
        match ended {
            Ok(()) => {}
            Err(error) if error.is_parse_too_large() => {
                self.heads_too_large.inc();
            }
            Err(error) if error.is_parse() => {
                self.malformed.inc();
            }
            Err(error) if error.is_timeout() => {
                self.head_timeouts.inc();
            }
            Err(_client_left) => {
                self.broken_off.inc();
            }
        }
    }
}
