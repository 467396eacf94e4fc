//! Two cgroups with a worker each, and the programs attached to one of them.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::Work;
use crate::bench::PinDir;
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
    pins: PinDir,
    _cgroups: [Cgroup; 2],
}

impl Stage {
    /// Both workers, in cgroups without programs of ours.
    ///
    /// # Errors
    /// No cgroup2 that this process may make children in.
    pub(super) fn new() -> Result<Self> {
        let own = own_cgroup().context("no cgroup2 of its own")?;
        let cgroups = [Cgroup::new(&own, "bare")?, Cgroup::new(&own, "attached")?];
        let pins = PinDir::new();
        Ok(Self {
            bare: Worker::start(&cgroups[0])?,
            attached: Worker::start(&cgroups[1])?,
            pins,
            _cgroups: cgroups,
        })
    }

    /// Attaches every program to the one worker's cgroup, with its listener as a backend.
    ///
    /// # Errors
    /// The router does not come up, or cannot attach.
    pub(super) fn attach(&self, router: &Path) -> Result<()> {
        let mut serve = in_cgroup(&self.attached.cgroup, router);
        serve.args([
            "serve",
            "--listen=127.0.0.1:0",
            "--admin-listen=127.0.0.1:0",
            "--kernel=on",
            "--gossip-dir=off",
        ]);
        serve.arg(format!("--backend=http://{}", self.attached.addr)).arg("--pin-dir").arg(&self.pins.dir);
        let mut serve = Running::start(serve.stdin(Stdio::null()).stderr(Stdio::null()))?;
        let end = Instant::now() + Duration::from_secs(20);
        while self.backend(router).is_err() {
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
        let backend = self.backend(router)?;
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

    /// What `unlatch status` says of the worker's backend.
    fn backend(&self, router: &Path) -> Result<Value> {
        let mut status = Command::new(router);
        let text = run::capture(status.args(["status", "--json", "--pin-dir"]).arg(&self.pins.dir))?;
        let status: Value = serde_json::from_str(&text)?;
        status["backends"].get(0).cloned().context("no backend yet")
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.pins.take_off();
    }
}

struct Worker {
    cgroup: PathBuf,
    addr: String,
    tells: ChildStdin,
    says: BufReader<ChildStdout>,
    _process: Running,
}

impl Worker {
    fn start(cgroup: &Cgroup) -> Result<Self> {
        let mut command = in_cgroup(&cgroup.0, &std::env::current_exe()?);
        command.args(["bench", "kernel", super::worker::FLAG]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Running::start(&mut command)?;
        let tells = process.0.stdin.take().context("invariant: it was piped")?;
        let says = process.0.stdout.take().context("invariant: it was piped")?;
        let mut worker = Self {
            cgroup: cgroup.0.clone(),
            addr: String::new(),
            tells,
            says: BufReader::new(says),
            _process: process,
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

/// A cgroup of ours, removed with its value.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(own: &Path, name: &str) -> Result<Self> {
        let path = own.join(format!("unlatch-bench-{}-{name}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The kernel lets a process go a little after it was waited for.
        let end = Instant::now() + Duration::from_secs(2);
        while fs::remove_dir(&self.0).is_err() && self.0.exists() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A command that moves into a cgroup before it becomes the program.
fn in_cgroup(cgroup: &Path, program: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", r#"echo $$ > "$0/cgroup.procs" && exec "$@""#]).arg(cgroup).arg(program);
    command
}

/// The directory of this process's cgroup2, also where version 1 is mounted beside it.
fn own_cgroup() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let mount = mount.and_then(|line| line.split(' ').nth(4)).context("cgroup2 is not mounted")?;
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).context("no line of cgroup2")?;
    Ok(Path::new(mount).join(own))
}
