//! The router as the program that people start, so that its memory and its descriptors are its own.
//!
//! `cargo xtask test` builds it and says where it is.

use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::router::metric_at;
use crate::wait;

/// Names the program.
const BINARY: &str = "UNLATCH_BIN";

/// The program, or why the test that wants it is skipped.
///
/// # Errors
/// Nobody says where it is.
pub fn program() -> Result<PathBuf, String> {
    let program = std::env::var_os(BINARY).map(PathBuf::from);
    program.ok_or_else(|| format!("{BINARY} does not name the program; `cargo xtask test` does"))
}

/// What a program says on its piped stderr, as it comes.
///
/// # Panics
/// Its stderr is no pipe, or heard already.
#[must_use]
pub fn hear(child: &mut Child) -> Arc<Mutex<String>> {
    let said = Arc::<Mutex<String>>::default();
    let (mut errors, heard) = (child.stderr.take().unwrap(), Arc::clone(&said));
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = errors.read(&mut bytes) {
            *heard.lock() += &String::from_utf8_lossy(&bytes[..count]);
        }
    });
    said
}

/// A router that serves; killed with its value.
#[derive(Debug)]
pub struct Process {
    child: Child,
    addr: SocketAddr,
    admin: SocketAddr,
    said: Arc<Mutex<String>>,
}

impl Process {
    /// Starts it over engines of model `m`, counting in its own memory, and waits until all of them are ready. `ip` is
    /// one that nobody else uses, so that nobody takes its ports meanwhile.
    ///
    /// # Panics
    /// It does not serve.
    #[must_use]
    #[track_caller]
    pub fn start(program: PathBuf, ip: &str, engines: &[SocketAddr], args: &[&str]) -> Self {
        let [addr, admin] = [(); 2]
            .map(|()| TcpListener::bind((ip, 0)).unwrap())
            .map(|listener| listener.local_addr().unwrap());
        let mut command = Command::new(program);
        command
            .args(["serve", "--kernel=off", "--gossip-dir=off", "--workers=2"])
            .args(
                (!args.iter().any(|arg| arg.starts_with("--policy="))).then_some("--policy=least-in-flight"),
            )
            .args([format!("--listen={addr}"), format!("--admin-listen={admin}")])
            .args(engines.iter().map(|engine| format!("--backend=http://{engine},model=m")))
            .args(args);
        // What is freed goes back at once, and by the page: what is resident is what is held.
        command.env("MIMALLOC_PURGE_DELAY", "0").env("MIMALLOC_ALLOW_THP", "0");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let said = hear(&mut child);
        let mut process = Self { child, addr, admin, said };
        wait::until("the router answers", || {
            assert_eq!(process.child.try_wait().unwrap(), None, "{}", process.said());
            std::net::TcpStream::connect(admin).is_ok()
        });
        let ready = engines.len() as f64;
        wait::until("all engines are ready", || {
            process.metric("unlatch_backend_state", "state=\"ready\"") >= ready
        });
        process
    }

    /// Where clients connect.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Where operators connect.
    #[must_use]
    pub const fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Lets it have so many descriptors more than it has now, and no others.
    ///
    /// # Panics
    /// This user may not.
    pub fn allow_more_descriptors(&self, more: u64) {
        use rustix::process::{Pid, Resource, Rlimit, prlimit};
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count() as u64;
        let limit = Some(open + more);
        prlimit(
            Some(Pid::from_child(&self.child)),
            Resource::Nofile,
            Rlimit { current: limit, maximum: limit },
        )
        .unwrap();
    }

    /// What it has logged so far.
    #[must_use]
    pub fn said(&self) -> String {
        self.said.lock().clone()
    }

    /// The sum of a metric's series with `label` in their labels.
    #[must_use]
    #[track_caller]
    pub fn metric(&self, name: &str, label: &str) -> f64 {
        metric_at(self.admin, name, label)
    }

    /// Waits until nothing is in flight.
    #[track_caller]
    pub fn wait_idle(&self) {
        wait::until("in flight returns to 0", || self.metric("unlatch_backend_in_flight", "") == 0.0);
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// It has ended.
    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end; its exit code.
    ///
    /// # Panics
    /// It does not end, or by a signal.
    #[track_caller]
    pub fn wait_exit(&mut self) -> i32 {
        let mut ended = None;
        wait::until("the router ends", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        ended.and_then(|status| status.code()).unwrap()
    }

    /// Its resident memory, KiB.
    #[must_use]
    pub fn resident_kib(&self) -> u64 {
        self.status("VmRSS")
    }

    /// The most that was ever resident, KiB.
    #[must_use]
    pub fn resident_kib_max(&self) -> u64 {
        self.status("VmHWM")
    }

    fn status(&self, field: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = text.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}
