//! `unlatch serve` as a process: what it says, how it ends, and as whom it runs.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use router_tests::backend::Backend;
use router_tests::client::{ask, post};
use router_tests::wait;

use crate::router_process::BINARY;
use crate::sandbox::Sandbox;

/// `nobody` of Debian.
pub(crate) const NOBODY: u32 = 65534;

/// Capabilities by number, as older `setpriv` does not know all names.
pub(crate) const CAPABILITIES: [(&str, u32); 3] =
    [("CAP_BPF", 39), ("CAP_NET_ADMIN", 12), ("CAP_PERFMON", 38)];

/// An engine that reports its load, and holds a request that says so until its client is gone.
pub(crate) fn holding_engine() -> Backend {
    let engine = Backend::start(|request, exchange| {
        if request.body.windows(4).any(|text| text == b"hold") {
            return exchange.wait_closed();
        }
        exchange.answer("200 OK", "{}")
    });
    engine.say(include_str!("../fixtures/metrics/vllm_idle.txt"));
    engine
}

/// A request; `hold` is held.
pub(crate) fn completion(prompt: &str) -> String {
    post("/v1/completions", &format!(r#"{{"model":"m","prompt":"{prompt}"}}"#))
}

/// How to start it.
pub(crate) struct Serve {
    program: PathBuf,
    args: Vec<String>,
    /// `setpriv` and its arguments.
    before: Vec<String>,
    said: PathBuf,
    addr: SocketAddr,
    admin: SocketAddr,
}

impl Serve {
    /// On free ports of an address that only the calling case uses, so that nobody takes them meanwhile.
    pub(crate) fn new(sandbox: &Sandbox, ip: &str, kernel: &str, engines: &[&Backend]) -> Self {
        let [addr, admin] = [(); 2]
            .map(|()| TcpListener::bind((ip, 0)).unwrap())
            .map(|listener| listener.local_addr().unwrap());
        let mut args = vec![
            "serve".to_owned(),
            format!("--listen={addr}"),
            format!("--admin-listen={admin}"),
            format!("--kernel={kernel}"),
            format!("--pin-dir={}", sandbox.pin_dir().display()),
            "--policy=least-in-flight".to_owned(),
            "--log-level=warn".to_owned(),
            "--gossip-dir=off".to_owned(),
        ];
        args.extend(engines.iter().map(|engine| format!("--backend=http://{},model=m", engine.addr())));
        let program = std::env::var_os(BINARY).unwrap().into();
        let said = sandbox.bpffs.with_file_name(format!("said-{}", addr.port()));
        Self { program, args, before: Vec::new(), said, addr, admin }
    }

    /// One more flag, `--name=value`, instead of the one of that name.
    pub(crate) fn arg(mut self, arg: impl Into<String>) -> Self {
        let arg = arg.into();
        let name = arg.split_inclusive('=').next().unwrap();
        self.args.retain(|other| !other.starts_with(name));
        self.args.push(arg);
        self
    }

    /// As nobody, with these capabilities of [`CAPABILITIES`] and no others.
    pub(crate) fn for_nobody(mut self, sandbox: &Sandbox, capabilities: &[&str]) -> Self {
        let number = |name: &str| CAPABILITIES.iter().find(|(known, _)| *known == name).unwrap().1;
        let mut set = "-all".to_owned();
        capabilities.iter().for_each(|name| set += &format!(",+cap_{}", number(name)));
        let user = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".to_owned()];
        let sets = ["inh-caps", "ambient-caps", "bounding-set"].map(|name| format!("--{name}={set}"));
        self.before = [vec!["setpriv".to_owned()], user.into(), sets.into()].concat();
        // The way to the program and to the pins may be closed to others; the mount goes with the sandbox.
        let dir = sandbox.bpffs.parent().unwrap();
        fs::set_permissions(dir, fs::Permissions::from_mode(0o711)).unwrap();
        let open = dir.join("unlatch-program");
        if !open.exists() {
            File::create(&open).unwrap();
            let mut mount = Command::new("mount");
            assert!(mount.arg("--bind").args([&self.program, &open]).status().unwrap().success());
        }
        self.program = open;
        self
    }

    fn spawn(&self) -> Child {
        let mut words = self.before.iter().map(PathBuf::from).chain([self.program.clone()]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).args(&self.args).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(&self.said).unwrap()).spawn().unwrap()
    }

    /// Starts it and waits until it serves.
    #[track_caller]
    pub(crate) fn start(self) -> Program {
        let mut process = self.spawn();
        wait::until("the router answers", || {
            assert_eq!(process.try_wait().unwrap(), None, "{}", fs::read_to_string(&self.said).unwrap());
            TcpStream::connect(self.admin).is_ok()
        });
        let program = Program { process, addr: self.addr, admin: self.admin, said: self.said };
        // It listens before all is set up, and answers after.
        assert_eq!(ask(program.addr, "GET /version HTTP/1.1\r\nhost: h\r\n\r\n").status, 200);
        program
    }

    /// Starts what must not serve: its exit code, and what it said.
    #[track_caller]
    pub(crate) fn refused(self) -> (Option<i32>, String) {
        let mut process = self.spawn();
        let mut code = None;
        wait::until("the router ends", || {
            code = process.try_wait().unwrap();
            code.is_some()
        });
        (code.unwrap().code(), fs::read_to_string(&self.said).unwrap())
    }
}

/// A router that serves; killed with its value.
pub(crate) struct Program {
    process: Child,
    pub(crate) addr: SocketAddr,
    admin: SocketAddr,
    said: PathBuf,
}

impl Program {
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// SIGKILL, without waiting for its end.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
    }

    /// The lines it has logged so far, at level `warn` and above.
    pub(crate) fn said(&self) -> Vec<String> {
        fs::read_to_string(&self.said).unwrap().lines().map(str::to_owned).collect()
    }

    /// The sum of a metric's series.
    #[track_caller]
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let text = self.get("/metrics");
        let series = text.lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
        let values: Vec<f64> = series.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }

    /// An answer of the admin listener.
    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> String {
        let answer = ask(self.admin, format!("GET {path} HTTP/1.1\r\nhost: h\r\n\r\n"));
        assert_eq!(answer.status, 200);
        answer.text()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}
