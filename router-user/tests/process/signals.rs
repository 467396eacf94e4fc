//! SIGTERM, with a request in flight.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::support::{DEADLINE, Process, free_addr};

/// A request whose head has reached the engine; the engine's end of it.
fn request_in_flight(listen: &str, engine: &TcpListener) -> (TcpStream, TcpStream) {
    let mut client = TcpStream::connect(listen).unwrap();
    client.set_read_timeout(Some(DEADLINE)).unwrap();
    client.write_all(b"GET /v1/thing HTTP/1.1\r\nhost: h\r\nx-mine: 1\r\n\r\n").unwrap();
    loop {
        let (mut theirs, _) = engine.accept().unwrap();
        theirs.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut line = String::new();
        BufReader::new(&theirs).read_line(&mut line).unwrap();
        if line.starts_with("GET /v1/thing ") {
            return (client, theirs);
        }
        // Probes come too; an engine that breaks them off gets no request.
        theirs.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}").unwrap();
    }
}

#[test]
fn sigterm_lets_a_request_end_and_exits_0() {
    let engine = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = free_addr("127.77.0.1");
    let mut process = Process::serve(&listen, &engine.local_addr().unwrap().to_string());
    let (mut client, mut theirs) = request_in_flight(&listen, &engine);
    process.signal();
    let end = Instant::now() + DEADLINE;
    while TcpStream::connect(&listen).is_ok() {
        assert!(Instant::now() < end, "it must stop listening");
        std::thread::sleep(Duration::from_millis(5));
    }
    theirs.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nok"), "{answer}");
    assert_eq!(process.exit_code(), Some(0));
}

#[test]
fn a_second_signal_does_not_wait() {
    let engine = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = free_addr("127.77.0.2");
    let mut process = Process::serve(&listen, &engine.local_addr().unwrap().to_string());
    let (_client, _theirs) = request_in_flight(&listen, &engine);
    process.signal();
    while TcpStream::connect(&listen).is_ok() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let second = Instant::now();
    process.signal();
    assert_eq!(process.exit_code(), Some(0));
    assert!(second.elapsed() < DEADLINE, "the deadline of 30 s is not waited for");
}
