//! Backends on loopback and accounts to test with.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use router_common::{BackendAddr, BackendId, BackendLoad};
use router_policy::{InFlight, LoadTable};
use router_user::account::{Account, Hook, KernelError, KernelMode, KernelOptions, Role, State, open};

use crate::sandbox::Sandbox;

/// What is attached.
pub(crate) const PROGRAMS: [&str; 5] =
    ["inflight_sockops", "phase_ingress", "phase_egress", "inband_hear", "release"];

/// How many that are, as the metric says it.
pub(crate) const ATTACHED: f64 = PROGRAMS.len() as f64;

/// An account with all programs attached.
pub(crate) fn account(sandbox: &Sandbox) -> Account {
    let account = try_open(sandbox, KernelMode::On).unwrap();
    match account.state() {
        State::On { programs, missing, .. } => {
            assert_eq!(programs, &PROGRAMS, "missing: {missing:?}");
        }
        State::Off { reason } => panic!("off: {reason}"),
    }
    account
}

pub(crate) fn try_open(sandbox: &Sandbox, mode: KernelMode) -> Result<Account, KernelError> {
    open(&KernelOptions { mode, pin_dir: sandbox.pin_dir(), hook: Hook::Cgroup(None) })
}

/// The reason for counting in memory.
pub(crate) fn reason(account: &Account) -> &str {
    match account.state() {
        State::Off { reason } => reason,
        State::On { .. } => panic!("expected an account in memory"),
    }
}

/// A listener, and its row.
pub(crate) struct Backend {
    pub(crate) listener: TcpListener,
    pub(crate) id: BackendId,
}

impl Backend {
    pub(crate) fn new(account: &Account, host: &str) -> Self {
        let listener = TcpListener::bind((host, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        Self { listener, id: register(account, addr) }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    /// An established connection: our end, and the backend's.
    pub(crate) fn connect(&self) -> (TcpStream, TcpStream) {
        let ours = TcpStream::connect(self.addr()).unwrap();
        (ours, self.listener.accept().unwrap().0)
    }
}

pub(crate) fn register(account: &Account, addr: SocketAddr) -> BackendId {
    account.register(BackendAddr::from_socket_addr(addr), &format!("http://{addr}")).unwrap()
}

/// Connects with a socket that was marked before.
pub(crate) fn connect_marked(account: &Account, backend: &Backend, role: Role) -> TcpStream {
    connect_marked_to(account, backend.id, backend.addr(), role)
}

/// The same to an address that another process listens at.
pub(crate) fn connect_marked_to(account: &Account, id: BackendId, to: SocketAddr, role: Role) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(async {
        let socket =
            if to.is_ipv4() { tokio::net::TcpSocket::new_v4() } else { tokio::net::TcpSocket::new_v6() };
        let socket = socket.unwrap();
        account.mark_socket(socket.as_fd(), role, id).unwrap();
        let stream = socket.connect(to).await.unwrap().into_std().unwrap();
        stream.set_nonblocking(false).unwrap();
        stream
    })
}

pub(crate) fn requests(account: &Account, id: BackendId, requests: u32) {
    let own = InFlight { requests, q_tokens: u64::from(requests) * 10, c_tokens: u64::from(requests) * 100 };
    account.publish(id, own);
}

/// Waits until the row is as wanted.
pub(crate) fn wait_row(account: &Account, id: BackendId, wanted: impl Fn(&BackendLoad) -> bool) {
    wait_until(|| if wanted(&account.row(id)) { Ok(()) } else { Err(format!("{:?}", account.row(id))) });
}

/// Waits until `check` is content, for 2 s.
pub(crate) fn wait_until(mut check: impl FnMut() -> Result<(), String>) {
    let end = Instant::now() + Duration::from_secs(2);
    while let Err(found) = check() {
        assert!(Instant::now() < end, "not within 2 s; found {found}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What `bpftool` prints.
pub(crate) fn bpftool(args: &[&str], path: &Path, more: &[&str]) -> String {
    let output = Command::new("bpftool").args(args).arg(path).args(more).output();
    let output = output.expect("bpftool is missing; `cargo xtask setup` brings it");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "bpftool {args:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}
