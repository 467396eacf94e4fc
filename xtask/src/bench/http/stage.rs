//! Routers and simulated engines, each a process of its own on loopback.
//!
//! The engines run at a time scale, but a router knows real seconds only: its times and rates, which are made for
//! engines in real time, are given to it in the engines' seconds. One alone counts in process memory, so that nothing is
//! pinned or mounted; several share pins and a gossip directory of this run. Invariant: no process, pin or directory
//! outlives the value.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::bench::PinDir;
use crate::run::Running;

/// For the router to find the engines.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// For an answer of the router about itself.
const STATUS_WITHIN: Duration = Duration::from_secs(2);

/// Keys of times in seconds and of rates per second, with the defaults that are meant for real time.
const TIMES: [(&str, f64); 3] =
    [("--decode-seconds-start", 5.0), ("--decode-seconds-min", 0.5), ("--patience-seconds", 0.5)];
const RATES: [(&str, f64); 2] = [("--prefill-rate-start", 15_000.0), ("--prefill-rate-min", 1000.0)];
const SCRAPE_MS: u32 = 1000;

/// What routers share, removed with the value.
struct Host {
    pins: PinDir,
    gossip: PathBuf,
}

impl Host {
    fn new() -> Self {
        let gossip = std::env::temp_dir().join(format!("unlatch-bench-{}", std::process::id()));
        Self { pins: PinDir::new("http"), gossip }
    }

    fn flags(&self) -> Vec<OsString> {
        let dirs = [("--pin-dir", &self.pins.dir), ("--gossip-dir", &self.gossip)];
        let dirs = dirs.into_iter().flat_map(|(flag, dir)| [flag.into(), dir.into()]);
        ["--kernel", "on"].into_iter().map(OsString::from).chain(dirs).collect()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.pins.take_off();
        if let Err(error) = std::fs::remove_dir_all(&self.gossip) {
            println!("{} is left behind: {error}", self.gossip.display());
        }
    }
}

/// A router: where it takes requests, and where it says how it is.
struct Router {
    addr: SocketAddr,
    admin: SocketAddr,
    _process: Running,
}

/// The routers and their engines.
pub(super) struct Stage {
    // Dropped in this order: a router that loses its engines first would complain.
    routers: Vec<Router>,
    host: Option<Host>,
    _engines: Vec<Running>,
}

impl Stage {
    /// Starts `engines` engines with these flags, and routers that have found them ready.
    ///
    /// # Errors
    /// A process that does not start, or engines that are not found.
    pub(super) fn start(
        unlatch: &Path,
        engines: usize,
        flags: &[&str],
        time_scale: u32,
        routers: usize,
    ) -> Result<Self> {
        let (mut started, mut urls) = (Vec::new(), Vec::new());
        for n in 0..engines {
            let mut engine = Command::new(unlatch);
            engine.args(["engine", "--listen", "127.0.0.1:0", "--name", &format!("engine-{n}")]);
            engine.args(["--time-scale", &time_scale.to_string()]).args(flags);
            let mut engine = Running::start(engine.stdin(Stdio::null()).stdout(Stdio::piped()))?;
            urls.push(url(&mut engine)?);
            started.push(engine);
        }
        let host = (routers > 1).then(Host::new);
        let mut stage = Self { routers: Vec::new(), host, _engines: started };
        for _ in 0..routers {
            let router = stage.router(unlatch, &urls, time_scale)?;
            stage.routers.push(router);
        }
        Ok(stage)
    }

    fn router(&self, unlatch: &Path, urls: &[String], time_scale: u32) -> Result<Router> {
        let (addr, admin) = free_addrs()?;
        let mut serve = Command::new(unlatch);
        serve.args(["serve", "--log-level", "warn", "--listen", &addr.to_string()]);
        match &self.host {
            Some(host) => serve.args(host.flags()),
            None => serve.args(["--kernel", "off", "--gossip-dir", "off"]),
        };
        serve.args(["--admin-listen", &admin.to_string()]).args(scaled(time_scale));
        serve.args(urls.iter().flat_map(|url| ["--backend", url]));
        let mut process = Running::start(serve.stdin(Stdio::null()))?;
        wait_ready(&mut process, admin, urls.len(), READY_WITHIN)?;
        Ok(Router { addr, admin, _process: process })
    }

    /// Where the routers take requests, as `replay --url` wants it.
    pub(super) fn urls(&self) -> String {
        let urls: Vec<_> = self.routers.iter().map(|router| format!("http://{}", router.addr)).collect();
        urls.join(",")
    }

    /// What the routers say of a metric, and with which labels: each series of each.
    ///
    /// # Errors
    /// One does not answer.
    pub(super) fn series(&self, name: &str) -> Result<Vec<(String, f64)>> {
        let mut found = Vec::new();
        for router in &self.routers {
            let text = get(router.admin, "/metrics")?;
            found.extend(text.lines().filter_map(|line| {
                let (series, value) = line.rsplit_once(' ')?;
                let labels = series.strip_prefix(name)?;
                (labels.is_empty() || labels.starts_with('{')).then_some(())?;
                Some((labels.to_owned(), value.parse().ok()?))
            }));
        }
        Ok(found)
    }
}

/// The router's flags of time, in the seconds of engines that run so many times as fast as real.
pub(in crate::bench) fn scaled(time_scale: u32) -> Vec<String> {
    let scale = f64::from(time_scale);
    let times = TIMES.iter().map(|(key, seconds)| format!("{key}={}", seconds / scale));
    let rates = RATES.iter().map(|(key, rate)| format!("{key}={}", rate * scale));
    let scrapes = format!("--scrape-interval={}ms", SCRAPE_MS / time_scale);
    times.chain(rates).chain([scrapes]).collect()
}

/// Two ports that are free now; nobody else is given them before the router binds, as the kernel goes on counting.
pub(crate) fn free_addrs() -> Result<(SocketAddr, SocketAddr)> {
    let listen = || TcpListener::bind("127.0.0.1:0").context("no free port");
    let (a, b) = (listen()?, listen()?);
    Ok((a.local_addr()?, b.local_addr()?))
}

/// What an engine says first and last: where it listens.
pub(crate) fn url(engine: &mut Running) -> Result<String> {
    let stdout = engine.0.stdout.take().context("invariant: standard output is piped")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).context("an engine says nothing")?;
    let url = line.trim_end().strip_prefix("listening on ");
    url.map(str::to_owned).with_context(|| format!("an engine did not start; it said `{}`", line.trim_end()))
}

/// Waits until the router has found its engines.
///
/// # Errors
/// It has ended, or has not found them in time.
pub(crate) fn wait_ready(
    router: &mut Running,
    admin: SocketAddr,
    engines: usize,
    within: Duration,
) -> Result<()> {
    let deadline = Instant::now() + within;
    while status(admin).map_or(0, |status| ready(&status)) < engines {
        if let Some(status) = router.0.try_wait()? {
            bail!("the router ended ({status})");
        }
        if Instant::now() > deadline {
            bail!("the router did not find {engines} engines within {} s", within.as_secs());
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// The router's `/status`.
pub(in crate::bench) fn status(admin: SocketAddr) -> Result<Value> {
    Ok(serde_json::from_str(&get(admin, "/status")?)?)
}

/// The body of a router's answer about itself.
pub(in crate::bench) fn get(admin: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(admin)?;
    stream.set_read_timeout(Some(STATUS_WITHIN))?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: router\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").context("an answer without a head")?;
    Ok(body.to_owned())
}

/// Engines found ready that have told their load.
pub(in crate::bench) fn ready(status: &Value) -> usize {
    let backends = status["backends"].as_array().map_or(&[][..], Vec::as_slice);
    backends.iter().filter(|b| b["ready"] == true && b["running"]["value"].is_number()).count()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_shrink_and_rates_grow_with_the_scale() {
        let flags = scaled(8);
        for flag in ["--decode-seconds-start=0.625", "--prefill-rate-start=120000", "--scrape-interval=125ms"]
        {
            assert!(flags.iter().any(|f| f == flag), "{flags:?}");
        }
        assert_eq!(flags.len(), TIMES.len() + RATES.len() + 1);
    }

    #[test]
    fn an_engine_counts_when_it_is_ready_and_has_told_its_load() {
        let told = json!({"value": 0});
        let status = json!({"backends": [{"ready": true, "running": told}, {"ready": false, "running": told},
            {"ready": true, "running": null}]});
        assert_eq!(ready(&status), 1);
        assert_eq!(ready(&json!({})), 0);
    }
}
