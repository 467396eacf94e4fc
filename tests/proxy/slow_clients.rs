//! P13: clients that hold connections and do nothing with them, many at once, beside clients that work.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use router_tests::backend::{Backend, Then};
use router_tests::client::{Client, chat};
use router_tests::process::{self, Process};
use router_tests::router::{config, start, wait_idle};
use router_tests::wait::{self, DEADLINE, is_long};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

/// What one of them does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Nothing.
    Mute,
    /// A byte of a head now and then.
    Head,
    /// A head, then a byte of the body now and then.
    Body,
    /// A request, and then nothing.
    Idle,
}

const KINDS: [Kind; 4] = [Kind::Mute, Kind::Head, Kind::Body, Kind::Idle];

/// Until the router closes; how long that took after the last thing that was whole.
async fn linger(kind: Kind, router: SocketAddr, tick: Duration) -> Duration {
    let stream = TcpStream::connect(router).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let mut began = Instant::now();
    let dribbled: &[u8] = match kind {
        Kind::Mute => b"",
        Kind::Head => b"POST /v1/completions HTTP/1.1\r\nhost: h\r\nx-very-long: x",
        Kind::Body => {
            let head = b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 1000\r\n\r\n";
            writer.write_all(head).await.unwrap();
            br#"{"prompt":"                                                  "#
        }
        Kind::Idle => {
            writer.write_all(chat().as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"{}") {
                answer.push(reader.read_u8().await.unwrap());
            }
            began = Instant::now();
            b""
        }
    };
    let writing = async {
        for byte in dribbled {
            sleep(tick).await;
            if writer.write_all(&[*byte]).await.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    };
    let mut answer = Vec::new();
    tokio::select! {
        _ended = reader.read_to_end(&mut answer) => {}
        () = writing => unreachable!("it never ends"),
    }
    let status = answer.get(9..12).unwrap_or_default();
    assert_eq!(status == b"408", kind == Kind::Body, "{kind:?}: {:?}", String::from_utf8_lossy(&answer));
    began.elapsed()
}

/// Tells [`work`] to stop, also if a check failed.
struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Asks 50 times a second until told to stop; how long each took.
fn work(router: SocketAddr, stop: &AtomicBool) -> Vec<Duration> {
    let mut client = Client::connect(router);
    let mut took = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let sent = Instant::now();
        client.send(chat());
        assert_eq!(client.answer().status, 200);
        took.push(sent.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    took.sort();
    took
}

#[test]
fn p13_clients_that_dribble_or_idle_are_closed_and_hold_nobody_up() {
    let engine = Backend::start(|_, exchange| exchange.answer("200 OK", "{}"));
    let mut config = config(&[engine.addr()]);
    let (per_kind, tick) =
        if is_long() { (1250, Duration::from_secs(10)) } else { (100, Duration::from_millis(200)) };
    if !is_long() {
        config.limits.head_timeout = 3 * tick;
    }
    let limit = config.limits.head_timeout;
    let router = start(config);
    let addr = router.addr();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let working = scope.spawn(|| work(addr, &stop));
        let stop_working = Stop(&stop);
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let tasks = (0..per_kind).flat_map(|_| KINDS).map(|kind| {
                let lingering = timeout(2 * limit + DEADLINE, linger(kind, addr, tick));
                (kind, tokio::spawn(lingering))
            });
            for (kind, task) in tasks.collect::<Vec<_>>() {
                let took = task.await.unwrap().unwrap_or_else(|_| panic!("{kind:?} was not closed"));
                // The router's clock starts before ours does.
                assert!(took >= limit / 2, "{kind:?}: {took:?}");
                assert!(took < limit + tick + DEADLINE / 2, "{kind:?}: {took:?}");
            }
        });
        drop(stop_working);
        let took = working.join().unwrap();
        println!("{} requests beside: p50 {:?}, max {:?}", took.len(), took[took.len() / 2], took.last());
        assert!(took[took.len() * 3 / 4] < Duration::from_millis(20), "{took:?}");
    });
    wait_idle(&router);
}

/// An engine that answers `large` with more than any socket buffers, and how much of that it has written.
fn flooding() -> (Backend, Arc<AtomicU64>) {
    const ANSWER: usize = 256 << 20;
    let written = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&written);
    let engine = Backend::start(move |request, exchange| {
        if !request.line().contains("large") {
            return exchange.answer("200 OK", "{}");
        }
        exchange.start_stream();
        let piece = "x".repeat(64 << 10);
        let chunk = format!("{:x}\r\n{piece}\r\n", piece.len());
        for _ in 0..ANSWER / piece.len() {
            if !exchange.try_send(&chunk) {
                return Then::Close;
            }
            counted.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
        exchange.end_stream()
    });
    (engine, written)
}

/// Clients that have asked for it and have read the head.
fn thirsty(router: SocketAddr, count: u32) -> Vec<Client> {
    let mut slow: Vec<_> = (0..count).map(|_| Client::connect(router)).collect();
    for client in &mut slow {
        client.send("GET /v1/large HTTP/1.1\r\nhost: h\r\n\r\n");
        assert!(client.head().starts_with("HTTP/1.1 200 "));
    }
    slow
}

#[test]
fn p13_a_client_that_reads_slowly_slows_its_engine_down() {
    let clients = if is_long() { 50_u32 } else { 5 };
    let (engine, written) = flooding();
    let router = start(config(&[engine.addr()]));
    let mut slow = thirsty(router.addr(), clients);
    let stop = AtomicBool::new(false);
    let per_client = std::thread::scope(|scope| {
        let (addr, stop) = (router.addr(), &stop);
        let working = scope.spawn(move || work(addr, stop));
        let stop_working = Stop(stop);
        let mut before = u64::MAX;
        // Until the engine writes no more: what is between it and the clients is full.
        while before != written.load(Ordering::Relaxed) {
            before = written.load(Ordering::Relaxed);
            for client in &mut slow {
                let _bytes = client.read(10);
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        drop(stop_working);
        let took = working.join().unwrap();
        assert!(took[took.len() * 3 / 4] < Duration::from_millis(20), "{took:?}");
        before / u64::from(clients)
    });
    println!("{} KiB for each are on their way", per_client >> 10);
    // What the kernel lets four sockets buffer, and hyper's own.
    assert!(per_client < 32 << 20, "{per_client} bytes are buffered for a client that does not read");
    assert_eq!(router.in_flight(), clients, "none of them is cut");
    drop(slow);
    wait_idle(&router);
}

#[test]
fn p13_answers_that_are_read_a_byte_a_second_take_no_more_memory_with_time() {
    /// What hyper holds of an answer on both sides, 400 KiB each.
    const EACH_KIB: u64 = 1000;
    let program = match process::program() {
        Ok(program) => program,
        Err(reason) => {
            let name = "p13_answers_that_are_read_a_byte_a_second_take_no_more_memory_with_time";
            return println!("SKIP {name}: {reason}");
        }
    };
    let (clients, seconds) = if is_long() { (200_u32, 120) } else { (20, 3) };
    let (engine, written) = flooding();
    let router = Process::start(program, "127.79.0.5", &[engine.addr()], &[]);
    let base = router.resident_kib();
    let mut slow = thirsty(router.addr(), clients);
    let mut before = u64::MAX;
    wait::until("what is on the way to the clients is full", || {
        std::thread::sleep(Duration::from_millis(500));
        std::mem::replace(&mut before, written.load(Ordering::Relaxed)) == before
    });
    let full = router.resident_kib() - base;
    for _ in 0..seconds {
        slow.iter_mut().for_each(|client| drop(client.read(1)));
        std::thread::sleep(Duration::from_secs(1));
    }
    let most = router.resident_kib_max() - base;
    println!("{full} KiB for {clients} of them at first, {most} at most");
    assert!(most < u64::from(clients) * EACH_KIB, "{most} KiB for {clients} of them");
    assert!(most < full + full / 10, "{full} KiB at first, {most} at most");
    drop(slow);
    router.wait_idle();
}
