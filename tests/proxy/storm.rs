//! A thousand clients at once while one engine of two dies again and again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use router_tests::backend::{Backend, Exchange, Received, Then};
use router_tests::client::chat;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) const CLIENTS: usize = 1000;

/// So long a client waits for an answer's end.
const PATIENCE: Duration = Duration::from_secs(60);

/// An engine to which nobody comes dies after so long.
const LIFE_MAX: Duration = Duration::from_secs(1);

/// How the answers ended.
#[derive(Clone, Copy, Debug)]
#[expect(dead_code, reason = "it is printed")]
pub(crate) struct Ends {
    /// Whole.
    pub(crate) complete: usize,
    /// An error of the router, whole.
    pub(crate) errors: usize,
    /// Visibly broken off.
    pub(crate) broken: usize,
}

/// Ten events within 0.2 s.
fn stream(_: &Received, exchange: &mut Exchange) -> Then {
    exchange.start_stream();
    for i in 0..10 {
        exchange.chunk(&format!("data: {i}\n\n"));
        std::thread::sleep(Duration::from_millis(20));
    }
    exchange.end_stream()
}

/// An engine that streams.
pub(crate) fn engine() -> Backend {
    Backend::start(stream)
}

/// Each client asks so many times, one after another; `mortal` dies again and again. How the answers ended, and
/// the engine that stands there in the end.
pub(crate) fn rage(router: SocketAddr, mortal: Backend, rounds: usize) -> (Ends, Backend) {
    let ends = Arc::new([const { AtomicUsize::new(0) }; 3]);
    let counted = Arc::clone(&ends);
    let clients = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..CLIENTS {
                let ends = Arc::clone(&counted);
                tasks.spawn(async move {
                    for _ in 0..rounds {
                        ends[verdict(&ask(router).await)].fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            tasks.join_all().await;
        });
    });
    let mut engine = mortal;
    while !clients.is_finished() {
        // In the middle of streams, each of which lasts 0.2 s.
        let end = Instant::now() + LIFE_MAX;
        while engine.received().len() < 20 && Instant::now() < end && !clients.is_finished() {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(50));
        let dead = engine.die();
        std::thread::sleep(Duration::from_millis(50));
        let at = dead.addr();
        drop(dead);
        engine = Backend::start_at(at, stream);
    }
    clients.join().unwrap();
    let [complete, errors, broken] = [0, 1, 2].map(|i| ends[i].load(Ordering::Relaxed));
    let ends = Ends { complete, errors, broken };
    assert_eq!(complete + errors + broken, CLIENTS * rounds, "{ends:?}");
    assert!(complete > CLIENTS * rounds / 3, "{ends:?}");
    // Some 2 % came upon an engine that died before it answered; who was not sent to it yet goes to the other.
    assert!(errors < CLIENTS * rounds / 10, "{ends:?}");
    assert!(broken > 0, "engines died within streams: {ends:?}");
    (ends, engine)
}

/// All that comes for one request on a connection of its own.
async fn ask(router: SocketAddr) -> Vec<u8> {
    let mut stream = tokio::net::TcpStream::connect(router).await.unwrap();
    let request = chat().replacen("\r\n\r\n", "\r\nconnection: close\r\n\r\n", 1);
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer));
    let _reset = read.await.expect("every answer ends");
    answer
}

/// 0: a whole answer; 1: an error of ours, whole; 2: visibly broken off.
fn verdict(answer: &[u8]) -> usize {
    let text = String::from_utf8_lossy(answer);
    let is_whole_stream = text.ends_with("\r\n0\r\n\r\n");
    match text.get(9..12) {
        Some("200") if is_whole_stream => {
            assert!((0..10).all(|i| text.contains(&format!("data: {i}\n\n"))), "it looks whole: {text}");
            0
        }
        Some("200") => 2,
        Some("502" | "503") if text.ends_with('}') => 1,
        _ => panic!("neither an answer nor an error: {text:?}"),
    }
}
