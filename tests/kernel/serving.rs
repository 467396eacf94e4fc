//! The built program with its output: commands that end, and a router that serves and logs.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use router_tests::client::ask;

use crate::router_process::BINARY;
use crate::sandbox::Sandbox;
use crate::world::wait_until;

/// What a command printed, and its exit code.
pub(crate) struct Said {
    pub(crate) text: String,
    pub(crate) complaint: String,
    pub(crate) code: Option<i32>,
}

/// Runs a command on the sandbox's pins to its end.
pub(crate) fn unlatch(sandbox: &Sandbox, line: &str) -> Said {
    let mut command = Command::new(std::env::var_os(BINARY).unwrap());
    command.args(line.split(' ')).arg("--pin-dir").arg(sandbox.pin_dir()).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Said { text: text(output.stdout), complaint: text(output.stderr), code: output.status.code() }
}

/// The same of a command that must go well; returns what it printed.
#[track_caller]
pub(crate) fn unlatch_ok(sandbox: &Sandbox, line: &str) -> String {
    let said = unlatch(sandbox, line);
    assert_eq!(said.code, Some(0), "{line}: {}", said.complaint);
    said.text
}

/// A router as a process of its own, killed with its value.
pub(crate) struct Serving {
    process: Child,
    log: PathBuf,
}

impl Serving {
    /// Starts it and waits until it answers.
    pub(crate) fn start(sandbox: &Sandbox, addr: SocketAddr, args: &[&str]) -> Self {
        Self::start_as(Command::new(std::env::var_os(BINARY).unwrap()), sandbox, addr, args)
    }

    /// The same in a cgroup of its own, from its first instruction on, as systemd does.
    pub(crate) fn start_in(cgroup: &Path, sandbox: &Sandbox, addr: SocketAddr, args: &[&str]) -> Self {
        std::fs::create_dir(cgroup).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", r#"echo 0 > "$0/cgroup.procs" && exec "$@""#]).arg(cgroup);
        command.arg(std::env::var_os(BINARY).unwrap());
        Self::start_as(command, sandbox, addr, args)
    }

    fn start_as(mut command: Command, sandbox: &Sandbox, addr: SocketAddr, args: &[&str]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let log = sandbox.bpffs.with_file_name(format!("log-{}-{number}", std::process::id()));
        command.arg("serve").arg(format!("--listen={addr}")).arg("--admin-listen=127.0.0.1:0");
        command.arg("--gossip-dir=off");
        command.arg("--pin-dir").arg(sandbox.pin_dir()).args(args);
        command.stdin(Stdio::null()).stderr(File::create(&log).unwrap());
        let serving = Self { process: command.spawn().unwrap(), log };
        wait_until(|| match TcpStream::connect(addr) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("{error}; log: {}", serving.log())),
        });
        // It listens before all is set up, and answers after.
        assert_eq!(ask(addr, "GET /version HTTP/1.1\r\nhost: h\r\n\r\n").status, 200);
        serving
    }

    /// What it logged so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// SIGKILL, and its end. The process is left to be waited for, so that its number stays taken.
    pub(crate) fn kill(&mut self) {
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        self.process.kill().unwrap();
        let dead = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&self.process)), dead).unwrap();
    }

    /// SIGTERM, and a clean end.
    pub(crate) fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{}", self.log());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// Does something when it goes, also in a panic: threads that wait for it must end.
pub(crate) struct OnDrop<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
