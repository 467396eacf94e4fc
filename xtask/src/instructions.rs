//! `instructions`: user instructions of a request and of a streamed answer, counted by callgrind: a figure that a busy
//! machine does not change, and so a gate.
//!
//! The router is started under valgrind with one worker in front of a simulated engine, three times: for the requests
//! that warm it up alone, and with small requests or streams after them. What each adds is divided by its number. It
//! counts in process memory (`--kernel off`): valgrind does not run BPF programs, and they are no user instructions.
//! Invariant: everything it starts ends with it, and what it writes lies below the target directory.

mod client;

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use self::client::Kind;
use crate::bench::http::stage;
use crate::build::{self, Profile};
use crate::paths::{Workspace, find_program};
use crate::run::{self, Running};

/// A build close enough to a release and quick enough for a gate; see Cargo.toml.
const PROFILE: &str = "counted";

/// Requests of each kind that are counted, after the warm-up.
const SMALL: u32 = 2000;
const STREAMS: u32 = 64;

/// Most instructions of a small request and of a stream. Of a release build: the goals.
const RELEASE_MOST: [u64; 2] = [40_000, 480_000];
/// Of the quicker build, which has more of them: what it had when this was set, 71,600 and 702,000, and 15 %. To be
/// lowered with them.
const COUNTED_MOST: [u64; 2] = [82_000, 810_000];

/// For a router under valgrind to start, and to end.
const WITHIN: Duration = Duration::from_secs(60);

/// The gate: counts a build that is quick to make.
///
/// # Errors
/// The router does not build or start, a request fails, or a limit is exceeded.
pub(crate) fn gate(ws: &Workspace) -> Result<()> {
    let Some(valgrind) = valgrind() else { return Ok(()) };
    let mut cargo = run::cargo();
    cargo.args([
        "build",
        "--locked",
        "--package",
        "router-user",
        "--no-default-features",
        "--profile",
        PROFILE,
    ]);
    run::show(cargo.current_dir(&ws.root))?;
    judge(ws, valgrind, ws.target.join(PROFILE).join("unlatch"), COUNTED_MOST)
}

/// The same of a release build.
///
/// # Errors
/// As [`gate`].
pub(crate) fn release(ws: &Workspace) -> Result<()> {
    let Some(valgrind) = valgrind() else { return Ok(()) };
    judge(ws, valgrind, build::router(ws, Profile::Release)?, RELEASE_MOST)
}

fn valgrind() -> Option<PathBuf> {
    let found = find_program("valgrind");
    if found.is_none() {
        println!("SKIP instructions: no valgrind");
    }
    found
}

fn judge(ws: &Workspace, valgrind: PathBuf, router: PathBuf, most: [u64; 2]) -> Result<()> {
    let counter = Counter { valgrind, router, out: ws.target.join("callgrind.out") };
    let base = counter.count(None)?;
    let mut is_over = false;
    for (name, kind, requests, most) in [
        ("small request", Kind::Small, SMALL, most[0]),
        ("stream of 64 tokens", Kind::Stream, STREAMS, most[1]),
    ] {
        let total = counter.count(Some((kind, requests)))?;
        let each = total.saturating_sub(base) / u64::from(requests);
        let word = if each <= most { "met" } else { "EXCEEDED" };
        println!("instructions of a {name}: {each} (at most {most}: {word})");
        is_over |= each > most;
    }
    if is_over {
        bail!("a request costs more instructions than it may");
    }
    Ok(())
}

struct Counter {
    valgrind: PathBuf,
    router: PathBuf,
    /// What callgrind writes.
    out: PathBuf,
}

impl Counter {
    /// Instructions of a router from its start to its end, which served the warm-up and then these requests.
    fn count(&self, load: Option<(Kind, u32)>) -> Result<u64> {
        let mut engine = Command::new(&self.router);
        // Streamed tokens must not come in one read: at this pace the router is done with one before the next.
        engine.args(["engine", "--listen", "127.0.0.1:0", "--time-scale", "0.3"]);
        let mut engine = Running::start(engine.stdin(Stdio::null()).stdout(Stdio::piped()))?;
        let url = stage::url(&mut engine)?;
        let (addr, admin) = stage::free_addrs()?;
        let mut router = Running::start(&mut self.command(&url, addr, admin))?;
        stage::wait_ready(&mut router, admin, 1, WITHIN)?;
        client::send(addr, Kind::Small, 8 * client::CONNECTIONS)?;
        client::send(addr, Kind::Stream, client::CONNECTIONS)?;
        if let Some((kind, requests)) = load {
            client::send(addr, kind, requests)?;
        }
        run::capture(Command::new("kill").args(["-TERM", &router.0.id().to_string()]))?;
        let until = Instant::now() + WITHIN;
        while router.0.try_wait()?.is_none() {
            if Instant::now() > until {
                bail!("the router did not end within {} s", WITHIN.as_secs());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        total(&fs::read_to_string(&self.out).context("callgrind wrote nothing")?)
    }

    fn command(&self, engine: &str, addr: SocketAddr, admin: SocketAddr) -> Command {
        let mut command = Command::new(&self.valgrind);
        command
            .args(["--tool=callgrind", "-q"])
            .arg(format!("--callgrind-out-file={}", self.out.display()))
            .arg(&self.router)
            .args([
                "serve",
                "--log-level",
                "warn",
                "--workers",
                "1",
                "--kernel",
                "off",
                "--gossip-dir",
                "off",
            ])
            // What is done beside the requests is not to be counted: the first questions alone.
            .args(["--scrape-interval", "1h", "--seed", "1", "--backend", engine])
            .args(["--listen", &addr.to_string(), "--admin-listen", &admin.to_string()])
            .stdin(Stdio::null());
        command
    }
}

/// Instructions in what callgrind wrote.
fn total(out: &str) -> Result<u64> {
    let total = out.lines().rev().find_map(|line| line.strip_prefix("totals: "));
    Ok(total.context("callgrind wrote no total")?.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::total;

    #[test]
    fn the_total_is_the_last_line() {
        assert_eq!(total("events: Ir\nfn=a\n1 5\n\ntotals: 8374652\n").unwrap(), 8_374_652);
        assert!(total("events: Ir\n").is_err());
    }
}
