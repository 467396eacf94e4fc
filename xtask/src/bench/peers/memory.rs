//! Resident memory: of a router that idles, and for each of a thousand streams at once.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::table::Row;
use super::{Bench, peer_command};
use crate::bench::http::stage;
use crate::run::{self, Running};

const STREAMS: u32 = 1000;
/// What each stream tells its engine: long enough to see all at once on a slow machine, a token every 250 ms.
const TIMING: &str = "ttft_ms=0 itl_ms=250 tokens=80";
/// Until all streams run, and until they end.
const WITHIN: Duration = Duration::from_secs(60);
/// After its start and first answer; then it idles.
const SETTLE: Duration = Duration::from_secs(3);
/// While all run, so long the memory is looked at; the most counts.
const LOOK: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(100);

/// KiB of one router.
struct Resident {
    idle: u64,
    full: u64,
    after: u64,
}

impl Resident {
    fn idle_mib(&self) -> f64 {
        self.idle as f64 / 1024.0
    }

    fn per_stream(&self) -> f64 {
        self.full.saturating_sub(self.idle) as f64 / f64::from(STREAMS)
    }
}

/// Measures ours and HAProxy.
///
/// # Errors
/// Something does not start, or the streams do not all run.
pub(super) fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let haproxy = of(bench, |port, a, b| {
        let config = bench.place.join("haproxy.cfg");
        let text = fs::read_to_string(bench.scripts.join("conf/haproxy.cfg"))?;
        let text = [("{PORT}", port), ("{A}", a), ("{B}", b)]
            .iter()
            .fold(text, |text, (name, port)| text.replace(name, &port.to_string()));
        fs::write(&config, text)?;
        let mut command = Command::new(&bench.haproxy);
        command.args(["-db", "-f"]).arg(config);
        Ok(command)
    })?;
    let ours = of(bench, |port, a, b| {
        let line = peer_command(&bench.router, &bench.pins.dir);
        let line = [("{port}", port), ("{a}", a), ("{b}", b)]
            .iter()
            .fold(line, |line, (name, port)| line.replace(name, &port.to_string()));
        let mut command = Command::new("sh");
        // Without a shell in between, so that its pid is the router's.
        command.args(["-c", &format!("exec {line}")]);
        Ok(command)
    })?;
    let row = |name: &str, goal, value, haproxy, note| Row {
        name: name.to_owned(),
        goal,
        less: true,
        value,
        haproxy: Some(haproxy),
        nginx: None,
        note,
    };
    Ok(vec![
        row("resident, idle, MiB", (48.0, 24.0), ours.idle_mib(), haproxy.idle_mib(), String::new()),
        row(
            "resident, a stream of 1000, KiB",
            (24.0, 12.0),
            ours.per_stream(),
            haproxy.per_stream(),
            format!("{} KiB with them, {} KiB after", ours.full, ours.after),
        ),
    ])
}

/// One router in front of two engines of its own.
fn of(bench: &Bench, command: impl FnOnce(u16, u16, u16) -> Result<Command>) -> Result<Resident> {
    let [port, a, b] = free_ports()?;
    let _engines = [engine(bench, a)?, engine(bench, b)?];
    for port in [a, b] {
        wait(|| running(port).is_ok(), "an engine")?;
    }
    let log = fs::File::create(bench.place.join("memory.log"))?;
    let mut command = command(port, a, b)?;
    let mut router = Running::start(command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log))?;
    let pid = router.0.id();
    wait(|| answers(bench, port), "the router")?;
    if let Some(status) = router.0.try_wait()? {
        bail!("the router ended ({status})");
    }
    thread::sleep(SETTLE);
    let idle = resident(pid)?;
    let mut load = loadgen(bench, port);
    load.args(["--stream", "--mock", TIMING, "--ramp-ms", "4000"]);
    load.args(["-c", &STREAMS.to_string(), "--requests", &STREAMS.to_string()]);
    let mut load = Running::start(load.stdout(Stdio::null()))?;
    let all = || Ok::<_, anyhow::Error>(running(a)? + running(b)?);
    wait(|| all().is_ok_and(|n| n == u64::from(STREAMS)), "a thousand streams at once")?;
    let until = Instant::now() + LOOK;
    let mut full = 0;
    while Instant::now() < until {
        full = full.max(resident(pid)?);
        thread::sleep(PAUSE);
    }
    if all()? != u64::from(STREAMS) {
        bail!("some streams ended before the memory was looked at");
    }
    wait(|| load.0.try_wait().is_ok_and(|status| status.is_some()), "the streams' end")?;
    Ok(Resident { idle, full, after: resident(pid)? })
}

fn loadgen(bench: &Bench, port: u16) -> Command {
    let mut load = Command::new(bench.tools.join("loadgen"));
    load.args(["--url", &format!("http://127.0.0.1:{port}"), "--tokens", "80"]).stdin(Stdio::null());
    load
}

fn answers(bench: &Bench, port: u16) -> bool {
    let mut one = loadgen(bench, port);
    one.args(["--requests", "1", "--timeout", "2"]);
    run::capture(&mut one).is_ok_and(|text| text.contains("\"ok\":1,"))
}

fn engine(bench: &Bench, port: u16) -> Result<Running> {
    let mut engine = Command::new(bench.tools.join("mock-engine"));
    engine
        .args(["--port", &port.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Running::start(&mut engine)
}

/// Requests that an engine serves now.
fn running(port: u16) -> Result<u64> {
    let stats = stage::get(SocketAddr::from(([127, 0, 0, 1], port)), "/stats")?;
    let stats: serde_json::Value = serde_json::from_str(&stats)?;
    stats["running"].as_u64().context("an engine's /stats without `running`")
}

/// KiB of a process.
fn resident(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status"))?;
    resident_in(&status).context("the router ended")
}

fn resident_in(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

fn wait(mut is_so: impl FnMut() -> bool, what: &str) -> Result<()> {
    let until = Instant::now() + WITHIN;
    while !is_so() {
        if Instant::now() > until {
            bail!("{what}: not within {} s", WITHIN.as_secs());
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// Three ports that are free now.
fn free_ports() -> Result<[u16; 3]> {
    let listen = || std::net::TcpListener::bind("127.0.0.1:0").context("no free port");
    let held = [listen()?, listen()?, listen()?];
    Ok([held[0].local_addr()?.port(), held[1].local_addr()?.port(), held[2].local_addr()?.port()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_from_the_kernels_line() {
        assert_eq!(resident_in("VmHWM:\t 9 kB\nVmRSS:\t   20480 kB\n"), Some(20480));
        assert_eq!(resident_in("Name:\tzombie\n"), None);
    }

    #[test]
    fn a_stream_costs_what_was_added_since_idle() {
        let resident = Resident { idle: 20_480, full: 32_480, after: 0 };
        assert_eq!((resident.idle_mib(), resident.per_stream()), (20.0, 12.0));
    }
}
