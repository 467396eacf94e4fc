//! Two cgroups with a worker each, and programs attached to one of them or to both.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::Work;
use crate::bench::PinDir;
use crate::bench::cgroup::{Cgroup, in_cgroup, own_cgroup};
use crate::run::{self, Running};

/// Which worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Bare,
    Attached,
}

/// All that must be taken away afterwards. In order: workers end, then their cgroups go.
pub(super) struct Stage {
    bare: Worker,
    attached: Worker,
    bare_pins: PinDir,
    attached_pins: PinDir,
    cgroups: Vec<Cgroup>,
}

impl Stage {
    /// Both workers, in cgroups without programs of ours.
    ///
    /// # Errors
    /// No cgroup2 that this process may make children in.
    pub(super) fn new() -> Result<Self> {
        let own = own_cgroup().context("no cgroup2 of its own")?;
        let cgroups = vec![Cgroup::new(&own, "bare")?, Cgroup::new(&own, "attached")?];
        Ok(Self {
            bare: Worker::start(&cgroups[0])?,
            attached: Worker::start(&cgroups[1])?,
            bare_pins: PinDir::new("bare"),
            attached_pins: PinDir::new("attached"),
            cgroups,
        })
    }

    /// Moves both workers to other cgroups. Their listeners stay where they are, and what these accept: from then on the
    /// ends of a connection are as far apart as on two hosts.
    ///
    /// # Errors
    /// They cannot be moved.
    pub(super) fn part_ends(&mut self) -> Result<()> {
        let own = own_cgroup().context("no cgroup2 of its own")?;
        for (worker, name) in [(&mut self.bare, "bare-client"), (&mut self.attached, "attached-client")] {
            let cgroup = Cgroup::new(&own, name)?;
            fs::write(cgroup.0.join("cgroup.procs"), worker.process.0.id().to_string())?;
            worker.cgroup.clone_from(&cgroup.0);
            self.cgroups.push(cgroup);
        }
        Ok(())
    }

    const fn at(&self, place: Place) -> (&Worker, &PinDir) {
        match place {
            Place::Bare => (&self.bare, &self.bare_pins),
            Place::Attached => (&self.attached, &self.attached_pins),
        }
    }

    /// Attaches a router's programs to a worker's cgroup, with its listener as a backend.
    ///
    /// # Errors
    /// The router does not come up, or cannot attach.
    pub(super) fn attach(&self, router: &Path, place: Place) -> Result<()> {
        let (worker, pins) = self.at(place);
        let mut serve = in_cgroup(&worker.cgroup, router);
        serve.args([
            "serve",
            "--listen=127.0.0.1:0",
            "--admin-listen=127.0.0.1:0",
            "--kernel=on",
            "--gossip-dir=off",
        ]);
        serve.arg(format!("--backend=http://{}", worker.addr)).arg("--pin-dir").arg(&pins.dir);
        let mut serve = Running::start(serve.stdin(Stdio::null()).stderr(Stdio::null()))?;
        let end = Instant::now() + Duration::from_secs(20);
        while self.backend(router, place).is_err() {
            if let Some(status) = serve.0.try_wait()? {
                bail!("the router ended ({status}): it needs root and a BPF file system");
            }
            if Instant::now() > end {
                bail!("the router did not attach within 20 s");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Attaches an agent's programs to the cgroup of a worker's listener, for its port.
    ///
    /// # Errors
    /// The agent does not come up.
    pub(super) fn attach_agent(&self, unlatch: &Path, place: Place, more: &[&str]) -> Result<()> {
        let (worker, pins) = self.at(place);
        let port = worker.addr.rsplit_once(':').context("invariant: a worker says an address")?.1;
        let mut agent = Command::new(unlatch);
        agent.args(["agent", "--admin-listen=127.0.0.1:0", "--port", port]).args(more);
        agent.arg("--pin-dir").arg(&pins.dir).arg("--kernel-cgroup").arg(&worker.engine_cgroup);
        let mut agent = Running::start(agent.stdin(Stdio::null()).stdout(Stdio::piped()))?;
        let stdout = agent.0.stdout.take().context("invariant: it was piped")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        if !line.starts_with("listening") {
            bail!("the agent did not attach");
        }
        // Killed with its value: what it pinned goes on counting.
        Ok(())
    }

    /// Lets a worker work; nanoseconds of CPU a unit.
    ///
    /// # Errors
    /// The worker has ended.
    pub(super) fn turn(&mut self, place: Place, work: Work) -> Result<f64> {
        let worker = match place {
            Place::Bare => &mut self.bare,
            Place::Attached => &mut self.attached,
        };
        worker.work(work)
    }

    /// Whether the programs saw the work: a measurement of nothing is none.
    ///
    /// # Errors
    /// They did not.
    pub(super) fn check_counted(&self, router: &Path, requests: usize, connections: usize) -> Result<()> {
        let backend = self.backend(router, Place::Attached)?;
        let opened = backend["opened"].as_u64().unwrap_or_default() as usize;
        if opened < connections || backend["ttfb_seconds"].as_f64().is_none() {
            bail!("the programs did not see {requests} requests and {connections} connections: {backend}");
        }
        if ["awaiting", "streaming", "conns"].iter().any(|gauge| backend[gauge] != 0) {
            bail!("something is left counted: {backend}");
        }
        println!("{opened} connections seen, nothing left counted");
        Ok(())
    }

    /// Whether one worker's backend was heard in band, and the other's not.
    ///
    /// # Errors
    /// It was not so.
    pub(super) fn check_heard(&self, router: &Path) -> Result<()> {
        for (place, is_heard) in [(Place::Bare, false), (Place::Attached, true)] {
            let backend = self.backend(router, place)?;
            if backend["in_band"].is_number() != is_heard {
                bail!("what was heard in band is not as it should be: {backend}");
            }
        }
        Ok(())
    }

    /// What `unlatch status` says of a worker's backend.
    fn backend(&self, router: &Path, place: Place) -> Result<Value> {
        let mut status = Command::new(router);
        let text = run::capture(status.args(["status", "--json", "--pin-dir"]).arg(&self.at(place).1.dir))?;
        let status: Value = serde_json::from_str(&text)?;
        status["backends"].get(0).cloned().context("no backend yet")
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for pins in [&self.bare_pins, &self.attached_pins] {
            pins.take_off();
        }
    }
}

struct Worker {
    /// Where its listener is.
    engine_cgroup: PathBuf,
    /// Where it is.
    cgroup: PathBuf,
    addr: String,
    tells: ChildStdin,
    says: BufReader<ChildStdout>,
    process: Running,
}

impl Worker {
    fn start(cgroup: &Cgroup) -> Result<Self> {
        let mut command = in_cgroup(&cgroup.0, &std::env::current_exe()?);
        command.args(["bench", "kernel", super::worker::FLAG]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Running::start(&mut command)?;
        let tells = process.0.stdin.take().context("invariant: it was piped")?;
        let says = process.0.stdout.take().context("invariant: it was piped")?;
        let mut worker = Self {
            engine_cgroup: cgroup.0.clone(),
            cgroup: cgroup.0.clone(),
            addr: String::new(),
            tells,
            says: BufReader::new(says),
            process,
        };
        worker.addr = worker.hear()?;
        Ok(worker)
    }

    fn work(&mut self, work: Work) -> Result<f64> {
        writeln!(self.tells, "{} {}", work.name(), work.units())?;
        Ok(self.hear()?.parse()?)
    }

    fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.says.read_line(&mut line)? == 0 {
            bail!("a worker ended");
        }
        Ok(line.trim_end().to_owned())
    }
}
