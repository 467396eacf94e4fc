//! The process that works: both ends of loopback connections, in two threads, as told line by line.
//!
//! Says the address of its listener first; then answers each line `<work> <units>` with nanoseconds of CPU a unit.

use std::fs;
use std::io::{self, BufRead, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use anyhow::{Context, Result, bail};

use super::Work;

/// The hidden flag that makes this process a worker.
pub(super) const FLAG: &str = "--worker";

const REQUEST_BYTES: usize = 200;
const ANSWER_BYTES: usize = 1024;

/// Works until standard input ends.
///
/// # Errors
/// A socket fails, or a line cannot be understood.
pub(super) fn run() -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let addr = listener.local_addr()?;
    say(&addr.to_string())?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (work, units) = line.split_once(' ').context("a line is a work and its units")?;
        let units: u32 = units.parse()?;
        let work = Work::ALL.into_iter().find(|known| known.name() == work).context("no such work")?;
        let total = match work {
            Work::PingPong => ping_pong(&listener, addr, units)?,
            Work::Connect => connect(&listener, addr, units)?,
        };
        say(&format!("{}", total as f64 / f64::from(units)))?;
    }
    Ok(())
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

fn ping_pong(listener: &TcpListener, addr: SocketAddr, units: u32) -> Result<u64> {
    let request = padded(
        "POST /v1/completions HTTP/1.1\r\nhost: engine\r\ncontent-length: 2\r\nx: ",
        "\r\n\r\n{}",
        REQUEST_BYTES,
    );
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        ANSWER_BYTES - 79
    );
    let answer = padded(&head, "", ANSWER_BYTES);
    let (mut ours, mut theirs) = pair(listener, addr)?;
    ours.set_nodelay(true)?;
    theirs.set_nodelay(true)?;
    let answer = &answer;
    thread::scope(|scope| {
        // It owns its end: whatever goes wrong there ends the client's reads too.
        let engine = scope.spawn(move || -> Result<u64> {
            let before = cpu_ns()?;
            let mut buffer = [0; REQUEST_BYTES];
            for _ in 0..units {
                theirs.read_exact(&mut buffer)?;
                theirs.write_all(answer)?;
            }
            Ok(cpu_ns()? - before)
        });
        let before = cpu_ns()?;
        let mut buffer = [0; ANSWER_BYTES];
        for _ in 0..units {
            ours.write_all(&request)?;
            ours.read_exact(&mut buffer)?;
        }
        let client = cpu_ns()? - before;
        let Ok(engine) = engine.join() else { bail!("the engine's thread panicked") };
        Ok(client + engine?)
    })
}

/// `start`, as many letters as are needed, `end`.
fn padded(start: &str, end: &str, bytes: usize) -> Vec<u8> {
    let padding = "x".repeat(bytes.saturating_sub(start.len() + end.len()));
    [start, &padding, end].concat().into_bytes()
}

fn connect(listener: &TcpListener, addr: SocketAddr, units: u32) -> Result<u64> {
    let before = cpu_ns()?;
    for _ in 0..units {
        let (ours, theirs) = pair(listener, addr)?;
        drop(ours);
        drop(theirs);
    }
    Ok(cpu_ns()? - before)
}

/// A connection, with both of its ends. The router that attached the programs has left others in the queue.
fn pair(listener: &TcpListener, addr: SocketAddr) -> Result<(TcpStream, TcpStream)> {
    let ours = TcpStream::connect(addr)?;
    let local = ours.local_addr()?;
    loop {
        let (theirs, peer) = listener.accept()?;
        if peer == local {
            return Ok((ours, theirs));
        }
    }
}

/// CPU time of this thread. The scheduler adds up when it runs, so it is made to.
fn cpu_ns() -> Result<u64> {
    thread::yield_now();
    let text = fs::read_to_string("/proc/thread-self/schedstat").context("this kernel has no schedstat")?;
    let first = text.split(' ').next().context("schedstat is empty")?;
    Ok(first.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_works_cost_something_whoever_else_has_connected() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        drop(TcpStream::connect(addr).unwrap());
        let _open = TcpStream::connect(addr).unwrap();
        assert!(ping_pong(&listener, addr, 200).unwrap() > 0);
        assert!(connect(&listener, addr, 50).unwrap() > 0);
    }

    #[test]
    fn padding_fills_up_to_the_length() {
        assert_eq!(padded("ab", "c", 6), b"abxxxc");
        assert_eq!(padded("ab", "c", 1), b"abc");
    }
}
