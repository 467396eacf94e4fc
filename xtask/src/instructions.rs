//! `instructions`: user instructions of a request, short or long, and of a streamed answer, counted by callgrind: a
//! figure that a busy machine does not change, and so a gate.
//!
//! The router is started under valgrind with one worker in front of a simulated engine, again and again: for the requests
//! that warm it up alone, and with requests of one kind after them. What these add is divided by their number. It
//! counts in process memory (`--kernel off`): valgrind does not run BPF programs, and they are no user instructions.
//! Invariant: everything it starts ends with it, and what it writes lies below the target directory.

mod client;

use std::collections::BTreeMap;
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

/// A kind of request that is counted.
struct Counted {
    name: &'static str,
    kind: Kind,
    /// How many, after the warm-up.
    requests: u32,
    /// Most instructions of one, of a release build: the goals, where there are any.
    release_most: Option<u64>,
    /// The same of the quicker build, which has more of them: what it had when this was set, and 15 %. To be lowered
    /// with that.
    counted_most: u64,
}

const COUNTED: [Counted; 4] = [
    Counted {
        name: "small request",
        kind: Kind::Small,
        requests: 2000,
        release_most: Some(40_000),
        counted_most: 60_000,
    },
    Counted {
        name: "stream of 64 tokens",
        kind: Kind::Stream,
        requests: 64,
        release_most: Some(480_000),
        counted_most: 480_000,
    },
    Counted {
        name: "prompt of 100 KB",
        kind: Kind::Prompt(100_000),
        requests: 400,
        release_most: None,
        counted_most: 365_000,
    },
    Counted {
        name: "prompt of 1 MB",
        kind: Kind::Prompt(1_000_000),
        requests: 160,
        release_most: None,
        counted_most: 4_000_000,
    },
];

/// How fast the engine's time passes. Streamed tokens must not come in one read: at the slower pace the router is done
/// with one before the next. At the faster it has read a long prompt at once.
const PACES: [&str; 2] = ["0.3", "1000"];

/// How often a count is tried.
const TRIES: u32 = 3;

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
    judge(ws, valgrind, ws.target.join(PROFILE).join("unlatch"), |c| Some(c.counted_most))
}

/// The same of a release build.
///
/// # Errors
/// As [`gate`].
pub(crate) fn release(ws: &Workspace) -> Result<()> {
    let Some(valgrind) = valgrind() else { return Ok(()) };
    judge(ws, valgrind, build::router(ws, Profile::Release)?, |c| c.release_most)
}

fn valgrind() -> Option<PathBuf> {
    let found = find_program("valgrind");
    if found.is_none() {
        println!("SKIP instructions: no valgrind");
    }
    found
}

fn judge(
    ws: &Workspace,
    valgrind: PathBuf,
    router: PathBuf,
    most: impl Fn(&Counted) -> Option<u64>,
) -> Result<()> {
    let counter = Counter { valgrind, router, out: ws.target.join("callgrind.out") };
    let small = (Kind::Small, 8 * client::CONNECTIONS);
    let warm_up = [small, (Kind::Stream, client::CONNECTIONS)];
    let base = [counter.count(PACES[0], &warm_up)?, counter.count(PACES[1], &[small])?];
    let mut is_over = false;
    for counted in &COUNTED {
        let asked = (counted.kind, counted.requests);
        let (total, base) = match counted.kind {
            Kind::Small | Kind::Stream => {
                (counter.count(PACES[0], &[&warm_up[..], &[asked]].concat())?, &base[0])
            }
            Kind::Prompt(_) => (counter.count(PACES[1], &[small, asked])?, &base[1]),
        };
        let each = added(base, &total)? / u64::from(counted.requests);
        let judged = most(counted).map_or_else(String::new, |most| {
            is_over |= each > most;
            format!(" (at most {most}: {})", if each <= most { "met" } else { "EXCEEDED" })
        });
        println!("instructions of a {}: {each}{judged}", counted.name);
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
    /// Counts, again if the machine was too busy for it: tokens came together, or the router did not start in time.
    fn count(&self, pace: &str, loads: &[(Kind, u32)]) -> Result<Threads> {
        for _ in 1..TRIES {
            match self.try_count(pace, loads) {
                Ok(instructions) => return Ok(instructions),
                Err(busy) => println!("counted again: {busy:#}"),
            }
        }
        self.try_count(pace, loads)
    }

    /// Instructions of a router's threads from its start to its end, which served these requests, one kind after the other.
    fn try_count(&self, pace: &str, loads: &[(Kind, u32)]) -> Result<Threads> {
        let mut engine = Command::new(&self.router);
        engine.args(["engine", "--listen", "127.0.0.1:0", "--time-scale", pace]);
        let mut engine = Running::start(engine.stdin(Stdio::null()).stdout(Stdio::piped()))?;
        let url = stage::url(&mut engine)?;
        let (addr, admin) = stage::free_addrs()?;
        let mut router = Running::start(&mut self.command(&url, addr, admin))?;
        stage::wait_ready(&mut router, admin, 1, WITHIN)?;
        for &(kind, requests) in loads {
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
        self.threads()
    }

    /// What each thread had. Each has a file of its own; they are taken away.
    fn threads(&self) -> Result<Threads> {
        let (dir, name) =
            (self.out.parent().context("no directory")?, self.out.file_name().context("no name")?);
        let (name, mut threads) = (name.to_string_lossy(), Threads::new());
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let file = path.file_name().map(|file| file.to_string_lossy().into_owned()).unwrap_or_default();
            if let Some(thread) = file.strip_prefix(&*name) {
                // The first file sums up nothing.
                if let Ok(had) = total(&fs::read_to_string(&path)?) {
                    threads.insert(thread.to_owned(), had);
                }
                fs::remove_file(path)?;
            }
        }
        Ok(threads)
    }

    fn command(&self, engine: &str, addr: SocketAddr, admin: SocketAddr) -> Command {
        let mut command = Command::new(&self.valgrind);
        command
            .args(["--tool=callgrind", "-q", "--separate-threads=yes"])
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

/// Instructions by thread; threads are numbered as they begin.
type Threads = BTreeMap<String, u64>;

/// What requests added, by the thread that had most, which is the one worker. Other threads do something every so often,
/// and valgrind, in which time goes fast, makes that often.
fn added(base: &Threads, total: &Threads) -> Result<u64> {
    let (worker, had) = total.iter().max_by_key(|(_, had)| **had).context("callgrind wrote nothing")?;
    Ok(had.saturating_sub(base.get(worker).copied().unwrap_or_default()))
}

/// Instructions in what callgrind wrote.
fn total(out: &str) -> Result<u64> {
    let total = out.lines().rev().find_map(|line| line.strip_prefix("totals: "));
    Ok(total.context("callgrind wrote no total")?.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::{Threads, added, total};

    #[test]
    fn the_total_is_the_last_line() {
        assert_eq!(total("events: Ir\nfn=a\n1 5\n\ntotals: 8374652\n").unwrap(), 8_374_652);
        assert!(total("events: Ir\n").is_err());
    }

    #[test]
    fn what_is_added_is_the_workers() {
        let threads = |all: [(&str, u64); 3]| {
            all.map(|(name, had)| (name.to_owned(), had)).into_iter().collect::<Threads>()
        };
        let base = threads([("-01", 90), ("-02", 5), ("-03", 50)]);
        assert_eq!(added(&base, &threads([("-01", 91), ("-02", 70), ("-03", 150)])).unwrap(), 100);
        assert!(added(&base, &Threads::new()).is_err());
    }
}
