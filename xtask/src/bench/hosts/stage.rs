//! What runs on the hosts: engines with agents, routers, the balancer.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::net::{Host, Hub};
use super::split;
use crate::bench::cgroup::own_cgroup;
use crate::bench::http::stage::{ready, scaled, status, url};
use crate::run::{self, Running};

/// The hidden flag that makes this process print a router's `/status`, as nobody is on its host but what is started there.
pub(super) const STATUS_FLAG: &str = "--print-status";

/// For the routers to find the engines.
const READY_WITHIN: Duration = Duration::from_secs(20);
const PORT: u16 = 8000;
const ADMIN: &str = "127.0.0.1:8002";

/// How many of what.
#[derive(Clone, Copy)]
pub(super) struct Fleet {
    pub(super) engines: usize,
    pub(super) routers: usize,
    /// Whether agents tell in band.
    pub(super) tells: bool,
    pub(super) time_scale: u32,
}

/// Everything of one run.
pub(super) struct Stage {
    /// Where the clients' requests go.
    pub(super) url: String,
    tells: bool,
    // Dropped in this order: first what runs, then where.
    _balancer: Running,
    routers: Vec<(Running, Host)>,
    _engines: Vec<(Option<Running>, Running, Host)>,
    hub: Hub,
}

impl Stage {
    /// Starts a fleet, and returns when each router has found every engine.
    ///
    /// # Errors
    /// No right to make hosts, or a process that does not start.
    pub(super) fn start(unlatch: &Path, fleet: Fleet, flags: &[&str]) -> Result<Self> {
        let (hub, own) = (Hub::new()?, own_cgroup().context("no cgroup2 of its own")?);
        let mut engines = Vec::new();
        for n in 0..fleet.engines {
            let host = Host::new(&hub, &own, 101 + n)?;
            let mut engine = host.command(unlatch);
            engine.args(["engine", "--listen", &format!("{}:{PORT}", host.address)]);
            engine.args(["--name", &format!("engine-{n}"), "--time-scale", &fleet.time_scale.to_string()]);
            let engine = started(engine.args(flags))?.0;
            let agent = fleet.tells.then(|| agent(unlatch, &host)).transpose()?;
            engines.push((agent, engine, host));
        }
        let mut routers = Vec::new();
        for n in 0..fleet.routers {
            let host = Host::new(&hub, &own, 1 + n)?;
            let mut serve = host.command(unlatch);
            serve.args(["serve", "--kernel", "on", "--log-level", "warn", "--admin-listen", ADMIN]);
            serve.args(["--listen", &format!("{}:{PORT}", host.address), "--pin-dir"]).arg(host.pins());
            serve.args(scaled(fleet.time_scale));
            let backends =
                engines.iter().map(|(.., engine)| format!("--backend=http://{}:{PORT}", engine.address));
            let router = Running::start(serve.args(backends).stdin(Stdio::null()))?;
            routers.push((router, host));
        }
        for (router, host) in &mut routers {
            wait_ready(router, host, fleet.engines)?;
        }
        let mut balancer = hub.namespace.command(&std::env::current_exe()?);
        balancer.args(["bench", "hosts", split::FLAG, &format!("{}:{PORT}", Hub::ADDRESS)]);
        balancer.args(routers.iter().map(|(_, host)| format!("{}:{PORT}", host.address)));
        let (balancer, url) = started(&mut balancer)?;
        Ok(Self { url, tells: fleet.tells, _balancer: balancer, routers, _engines: engines, hub })
    }

    /// A command where the clients are.
    pub(super) fn on_clients_host(&self, program: &Path) -> Command {
        self.hub.namespace.command(program)
    }

    /// Whether each router was told by every engine's host, or by none: another measurement is none.
    ///
    /// # Errors
    /// It was not so.
    pub(super) fn check_told(&self) -> Result<()> {
        for (_, host) in &self.routers {
            let status = ask_status(host)?;
            let backends = status["backends"].as_array().context("a status without backends")?;
            if backends.iter().any(|backend| backend["in_band"]["value"].is_number() != self.tells) {
                bail!("not valid: what was told in band is not as it should be: {status}");
            }
        }
        Ok(())
    }
}

fn agent(unlatch: &Path, host: &Host) -> Result<Running> {
    let mut agent = host.command(unlatch);
    agent.args(["agent", "--port", &PORT.to_string(), "--in-band", "--to", "10.98.0.0/24", "--pin-dir"]);
    agent.arg(host.pins()).arg("--kernel-cgroup").arg(host.cgroup());
    Ok(started(&mut agent)?.0)
}

/// Starts what says where it listens.
fn started(command: &mut Command) -> Result<(Running, String)> {
    let mut running = Running::start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
    let url = url(&mut running)?;
    Ok((running, url))
}

fn wait_ready(router: &mut Running, host: &Host, engines: usize) -> Result<()> {
    let deadline = Instant::now() + READY_WITHIN;
    while ask_status(host).map_or(0, |status| ready(&status)) < engines {
        if let Some(status) = router.0.try_wait()? {
            bail!("a router ended ({status})");
        }
        if Instant::now() > deadline {
            bail!("a router did not find {engines} engines within {} s", READY_WITHIN.as_secs());
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn ask_status(host: &Host) -> Result<Value> {
    let mut ask = host.command(&std::env::current_exe()?);
    let text = run::capture(ask.args(["bench", "hosts", STATUS_FLAG, ADMIN]))?;
    Ok(serde_json::from_str(&text)?)
}

/// Prints the status that is served at an address.
///
/// # Errors
/// None is.
pub(super) fn print_status(words: &[String]) -> Result<()> {
    let [admin] = words else { bail!("an address") };
    println!("{}", status(admin.parse()?)?);
    Ok(())
}
