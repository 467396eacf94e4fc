//! An engine of raw sockets that does what a test tells it, byte for byte.
//!
//! Probes of the router (`GET /v1/models`, `/metrics`, `/health`) are answered by themselves and not recorded; what
//! `/metrics` says is [`Backend::say`]'s.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

pub use crate::exchange::{Exchange, Then};
use crate::wait::{self, DEADLINE};

/// One request as it arrived.
#[derive(Clone, Debug, Default)]
pub struct Received {
    /// Number of the connection it came on, from 0.
    pub connection: usize,
    /// Request line and headers, as they came.
    pub head: String,
    /// The body, as it came (chunks joined).
    pub body: Vec<u8>,
}

impl Received {
    /// The values of a header, in order.
    #[must_use]
    pub fn all(&self, name: &str) -> Vec<&str> {
        header_values(&self.head, name)
    }

    /// A header's only value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        match self.all(name)[..] {
            [] => None,
            [only] => Some(only),
            ref several => panic!("{name} must come once: {several:?}"),
        }
    }

    /// The request line.
    #[must_use]
    pub fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }
}

/// Values of a header in the text of a head.
#[must_use]
pub fn header_values<'h>(head: &'h str, name: &str) -> Vec<&'h str> {
    let fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    fields.filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.trim()).collect()
}

type Script = dyn Fn(&Received, &mut Exchange) -> Then + Send + Sync;

/// A scripted engine; ends with its value.
#[derive(Debug)]
pub struct Backend {
    addr: SocketAddr,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

/// What `/health` says, and how late.
#[derive(Clone, Default)]
struct Health {
    answer: Option<(&'static str, &'static str)>,
    delay: Duration,
}

#[derive(Default)]
struct State {
    stop: AtomicBool,
    received: Mutex<Vec<Received>>,
    /// Open connections, by a number of their own.
    streams: Mutex<BTreeMap<usize, TcpStream>>,
    connections: AtomicUsize,
    scrapes: AtomicUsize,
    metrics: Mutex<Option<String>>,
    health: Mutex<Health>,
    models: Mutex<Option<Vec<String>>>,
    key: Mutex<Option<String>>,
    probes: Mutex<Vec<Received>>,
    closed: Arc<AtomicUsize>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("received", &self.received).finish_non_exhaustive()
    }
}

impl Backend {
    /// An engine that does `script` with every request.
    #[must_use]
    pub fn start(script: impl Fn(&Received, &mut Exchange) -> Then + Send + Sync + 'static) -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), script)
    }

    /// An engine at a given address.
    #[must_use]
    pub fn start_at(
        addr: SocketAddr,
        script: impl Fn(&Received, &mut Exchange) -> Then + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(addr).unwrap();
        let addr = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let thread =
            std::thread::spawn(move || accept(&listener, &shared, &(Arc::new(script) as Arc<Script>)));
        Self { addr, state, thread: Some(thread) }
    }

    /// An engine that answers `200` with a small body.
    #[must_use]
    pub fn ok() -> Self {
        Self::start(|_, exchange| exchange.answer("200 OK", r#"{"ok":true}"#))
    }

    /// Its address.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The requests so far, without probes.
    #[must_use]
    pub fn received(&self) -> Vec<Received> {
        self.state.received.lock().clone()
    }

    /// The only request so far.
    ///
    /// # Panics
    /// There is none, or more than one.
    #[must_use]
    #[track_caller]
    pub fn only(&self) -> Received {
        let received = self.received();
        assert_eq!(received.len(), 1, "one request must have come");
        received.into_iter().next().unwrap()
    }

    /// Waits until so many requests have come.
    #[track_caller]
    pub fn wait_received(&self, count: usize) {
        wait::until("requests arrive", || self.state.received.lock().len() >= count);
    }

    /// Waits until so many connections were closed under [`Exchange::wait_closed`].
    #[track_caller]
    pub fn wait_closed(&self, count: usize) {
        wait::until("the router closes the connection", || self.state.closed.load(Ordering::SeqCst) >= count);
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        // Wakes the accepting thread.
        let _refused = TcpStream::connect(self.addr);
        for stream in self.state.streams.lock().values() {
            let _closed = stream.shutdown(Shutdown::Both);
        }
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

impl Backend {
    /// Waits until the router's watch knows that the engine serves: it asks for the load only then.
    #[track_caller]
    pub fn wait_probed(&self) {
        wait::until("the router asks for the load", || self.state.scrapes.load(Ordering::SeqCst) > 0);
    }

    /// What `/metrics` says from now on; before that it is a 404.
    pub fn say(&self, metrics: &str) {
        *self.state.metrics.lock() = Some(metrics.to_owned());
    }

    /// What `/health` says from now on: status and body; before that it is a 404.
    pub fn feel(&self, status: &'static str, body: &'static str) {
        self.state.health.lock().answer = Some((status, body));
    }

    /// So late an answer of `/health` comes.
    pub fn dawdle(&self, delay: Duration) {
        self.state.health.lock().delay = delay;
    }

    /// Its port refuses connections from now on; those that are there stay open.
    pub fn stop_listening(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        let _wakes = TcpStream::connect(self.addr);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    /// What `/v1/models` lists from now on; before that it is `m`.
    pub fn list(&self, models: &[&str]) {
        *self.state.models.lock() = Some(models.iter().map(|&model| model.to_owned()).collect());
    }

    /// From now on everything without this key, probes too, is answered 401 and not recorded.
    pub fn demand(&self, key: &str) {
        *self.state.key.lock() = Some(format!("Bearer {key}"));
    }

    /// The probes so far.
    #[must_use]
    pub fn probes(&self) -> Vec<Received> {
        self.state.probes.lock().clone()
    }

    /// The engine dies; its port refuses connections from now on.
    #[must_use]
    pub fn die(self) -> Refusing {
        let addr = self.addr;
        drop(self);
        Refusing::at(addr)
    }
}

/// A port that refuses connections for as long as the value lives: bound, but nobody listens.
#[derive(Debug)]
pub struct Refusing {
    addr: SocketAddr,
    _socket: OwnedFd,
}

impl Refusing {
    fn at(addr: SocketAddr) -> Self {
        use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        // Connections of an engine that was there before may linger.
        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        bind(&socket, &addr).unwrap();
        let addr = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
        Self { addr, _socket: socket }
    }

    /// The port.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }
}

fn accept(listener: &TcpListener, state: &Arc<State>, script: &Arc<Script>) {
    for number in 0.. {
        let Ok((stream, _)) = listener.accept() else { return };
        if state.stop.load(Ordering::SeqCst) {
            return;
        }
        stream.set_nodelay(true).unwrap();
        // A router in a debug build that scans twenty bodies of 20 MB writes none of them meanwhile.
        let patience = if wait::is_long() { 30 * DEADLINE } else { DEADLINE };
        stream.set_read_timeout(Some(patience)).unwrap();
        state.streams.lock().insert(number, stream.try_clone().unwrap());
        let (state, script) = (Arc::clone(state), Arc::clone(script));
        std::thread::spawn(move || {
            serve(stream, &state, &*script);
            // Every descriptor of the socket must go for it to be closed.
            state.streams.lock().remove(&number);
        });
    }
}

/// One connection: requests, one after another.
fn serve(mut stream: TcpStream, state: &State, script: &Script) {
    let mut number = None;
    loop {
        let Some(mut request) = read_request(&mut stream) else { return };
        let mut exchange =
            Exchange { stream: stream.try_clone().unwrap(), closed: Arc::clone(&state.closed) };
        let demanded = state.key.lock().clone();
        let then = match probe(&request, state) {
            _ if demanded.is_some_and(|key| request.all("authorization") != [key]) => {
                exchange.answer("401 Unauthorized", r#"{"error":{"message":"no key"}}"#)
            }
            Some((status, body)) => {
                state.probes.lock().push(request.clone());
                let then = exchange.answer(status, &body);
                if request.line().contains("/metrics ") {
                    state.scrapes.fetch_add(1, Ordering::SeqCst);
                }
                then
            }
            None => {
                let next = || state.connections.fetch_add(1, Ordering::SeqCst);
                request.connection = *number.get_or_insert_with(next);
                state.received.lock().push(request.clone());
                script(&request, &mut exchange)
            }
        };
        match then {
            Then::KeepAlive => {}
            Then::Close | Then::Reset => {
                if then == Then::Reset {
                    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
                }
                return;
            }
        }
    }
}

fn probe(request: &Received, state: &State) -> Option<(&'static str, String)> {
    let path = request.line().strip_prefix("GET ")?.strip_suffix(" HTTP/1.1")?;
    if path.ends_with("/v1/models") {
        let listed = state.models.lock().clone().unwrap_or_else(|| vec!["m".to_owned()]);
        let listed = listed.iter().map(|id| format!(r#"{{"id":"{id}","object":"model"}}"#));
        let listed = listed.collect::<Vec<_>>().join(",");
        return Some(("200 OK", format!(r#"{{"object":"list","data":[{listed}]}}"#)));
    }
    if path.ends_with("/health") {
        let Health { answer, delay } = state.health.lock().clone();
        std::thread::sleep(delay);
        if let Some((status, body)) = answer {
            return Some((status, body.to_owned()));
        }
    }
    if path.ends_with("/metrics")
        && let Some(text) = &*state.metrics.lock()
    {
        return Some(("200 OK", text.clone()));
    }
    let is_probe = ["/metrics", "/health", "/slots"].iter().any(|p| path.ends_with(p));
    is_probe.then(|| ("404 Not Found", String::new()))
}

/// Reads one request with a length or in chunks; `None` when the connection ends.
fn read_request(stream: &mut TcpStream) -> Option<Received> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(read_byte(stream)?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut body = Vec::new();
    if let [length] = header_values(&head, "content-length")[..] {
        body.resize(length.parse().unwrap(), 0);
        stream.read_exact(&mut body).ok()?;
    } else if header_values(&head, "transfer-encoding") == ["chunked"] {
        while let Some(chunk) = read_chunk(stream)? {
            body.extend(chunk);
        }
    }
    Some(Received { connection: 0, head, body })
}

/// One chunk; `Some(None)` is the last.
pub(crate) fn read_chunk(stream: &mut TcpStream) -> Option<Option<Vec<u8>>> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.push(read_byte(stream)?);
    }
    let text = std::str::from_utf8(&line).unwrap().trim();
    let mut data = vec![0; usize::from_str_radix(text, 16).unwrap() + 2];
    stream.read_exact(&mut data).ok()?;
    data.truncate(data.len() - 2);
    Some((!data.is_empty()).then_some(data))
}

fn read_byte(stream: &mut TcpStream) -> Option<u8> {
    let mut byte = [0];
    stream.read_exact(&mut byte).ok()?;
    Some(byte[0])
}
