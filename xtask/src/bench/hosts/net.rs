//! Hosts: a network namespace, a cgroup and pins each, with cables to a hub.
//!
//! A namespace lives as long as a process in it: `cat`, which ends with our end of its standard input, however we end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::bench::PinDir;
use crate::bench::cgroup::{Cgroup, in_cgroup};
use crate::run::{self, Running};

/// A namespace.
pub(super) struct Namespace(Running);

impl Namespace {
    fn new() -> Result<Self> {
        let mut holder = Command::new("unshare");
        let holder = Self(Running::start(holder.args(["--net", "cat"]).stdin(Stdio::piped()))?);
        // It is ours until the program has come to its first step.
        let (own, end) = (fs::read_link("/proc/self/ns/net")?, Instant::now() + Duration::from_secs(5));
        while fs::read_link(holder.path())? == own {
            if Instant::now() > end {
                bail!("no network namespace: it needs root");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        holder.ip(&["link", "set", "lo", "up"])?;
        Ok(holder)
    }

    fn path(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.0.0.id()).into()
    }

    fn entering(&self) -> Vec<String> {
        vec![format!("--net={}", self.path().display())]
    }

    /// A command in it.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.args(self.entering()).arg(program);
        command
    }

    fn ip(&self, words: &[&str]) -> Result<()> {
        run::capture(self.command(Path::new("ip")).args(words)).map(drop)
    }
}

/// The hub: where the cables end, and the clients' host.
pub(super) struct Hub {
    pub(super) namespace: Namespace,
}

impl Hub {
    /// Its address.
    pub(super) const ADDRESS: &str = "10.98.0.254";

    /// A hub without cables.
    ///
    /// # Errors
    /// No right to make a namespace, or no `ip`.
    pub(super) fn new() -> Result<Self> {
        let namespace = Namespace::new()?;
        namespace.ip(&["link", "add", "hub", "type", "bridge"])?;
        namespace.ip(&["addr", "add", &format!("{}/24", Self::ADDRESS), "dev", "hub"])?;
        namespace.ip(&["link", "set", "hub", "up"])?;
        Ok(Self { namespace })
    }
}

/// A host with a cable to the hub.
pub(super) struct Host {
    namespace: Namespace,
    cgroup: Cgroup,
    pins: PinDir,
    /// Its address.
    pub(super) address: String,
}

impl Host {
    /// Host `number`, which is the last part of its address.
    ///
    /// # Errors
    /// As [`Hub::new`], or no cgroup of its own.
    pub(super) fn new(hub: &Hub, own_cgroup: &Path, number: usize) -> Result<Self> {
        let namespace = Namespace::new()?;
        let (address, port) = (format!("10.98.0.{number}"), format!("port{number}"));
        let peer = namespace.0.0.id().to_string();
        hub.namespace.ip(&["link", "add", &port, "type", "veth", "peer", "name", "cable", "netns", &peer])?;
        hub.namespace.ip(&["link", "set", &port, "master", "hub", "up"])?;
        namespace.ip(&["addr", "add", &format!("{address}/24"), "dev", "cable"])?;
        namespace.ip(&["link", "set", "cable", "up"])?;
        let name = format!("host{number}");
        Ok(Self { namespace, cgroup: Cgroup::new(own_cgroup, &name)?, pins: PinDir::new(&name), address })
    }

    /// A command on it.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = in_cgroup(&self.cgroup.0, Path::new("nsenter"));
        command.args(self.namespace.entering()).arg(program);
        command
    }

    /// Its cgroup.
    pub(super) fn cgroup(&self) -> &Path {
        &self.cgroup.0
    }

    /// Its directory of pins.
    pub(super) fn pins(&self) -> &Path {
        &self.pins.dir
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.pins.take_off();
    }
}
