//! A real llama-server as a child process, ended when dropped.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use router_tests::client::Client;
use router_tests::{router, wait};
use router_user::app::RunningRouter;
use router_user::config::Config;

/// The name the engines serve their model under.
pub(crate) const MODEL: &str = "tiny";

/// The server's binary and the model, or why there is none.
fn files() -> Result<(PathBuf, PathBuf), String> {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/engines");
    let find = |variable: &str, name: &str| {
        let path = std::env::var_os(variable).map_or_else(|| shared.join(name), PathBuf::from);
        if path.is_file() { Ok(path) } else { Err(format!("no {name}: set {variable}")) }
    };
    Ok((find("UNLATCH_LLAMA_SERVER", "llama-server")?, find("UNLATCH_LLAMA_MODEL", "tiny.gguf")?))
}

/// One running engine.
pub(crate) struct Llama {
    child: Child,
    server: PathBuf,
    model: PathBuf,
    pub(crate) addr: SocketAddr,
}

impl Llama {
    /// Starts an engine with four slots on a free port and waits until it is healthy.
    fn start(server: &Path, model: &Path) -> Self {
        // Free now; nobody else on this machine is given it before the engine binds, as the kernel goes on counting.
        let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let child = Self::spawn(server, model, addr);
        let engine = Self { child, server: server.to_owned(), model: model.to_owned(), addr };
        wait::until("the engine becomes healthy", || engine.is_healthy());
        engine
    }

    fn spawn(server: &Path, model: &Path, addr: SocketAddr) -> Child {
        Command::new(server)
            .args(["--alias", MODEL, "--host", "127.0.0.1", "--threads", "1", "--parallel", "4"])
            .args(["-c", "262144", "--metrics", "--slots", "--no-ui", "--port", &addr.port().to_string()])
            .arg("-m")
            .arg(model)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Asks it to end (SIGTERM), by a thread that is not its main one: its handler takes the lock of its queue, and a main
    /// thread that is interrupted while it holds that lock never ends (1 of 12 tries in the middle of a stream).
    pub(crate) fn terminate(&self) {
        use rustix::process::{Pid, Signal, kill_process};
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let ids = tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse::<u32>().unwrap());
        let other = ids.filter(|&id| id != self.child.id()).min().unwrap();
        kill_process(Pid::from_raw(other.cast_signed()).unwrap(), Signal::TERM).unwrap();
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Whether its process has ended.
    pub(crate) fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Starts another process at its address, which may still load when this returns.
    pub(crate) fn start_again(&mut self) {
        self.child = Self::spawn(&self.server, &self.model, self.addr);
    }

    fn is_healthy(&self) -> bool {
        std::net::TcpStream::connect(self.addr).is_ok() && {
            let mut client = Client::connect(self.addr);
            client.send("GET /health HTTP/1.1\r\nhost: engine\r\nconnection: close\r\n\r\n");
            client.answer().status == 200
        }
    }
}

impl Drop for Llama {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

/// What a test needs, or prints why the test `name` is skipped.
pub(crate) fn present<T>(name: &str, needed: Result<T, String>) -> Option<T> {
    needed.inspect_err(|reason| println!("SKIP {name}: {reason}")).ok()
}

/// Two engines and a router in front of them.
pub(crate) struct Pair {
    pub(crate) router: RunningRouter,
    pub(crate) engines: [Llama; 2],
}

impl Pair {
    /// Starts all, or prints why the test `name` is skipped.
    pub(crate) fn start(name: &str, configure: impl FnOnce(&mut Config)) -> Option<Self> {
        let (server, model) = present(name, files())?;
        let engines = [(); 2].map(|()| Llama::start(&server, &model));
        let mut config = router::config(&[engines[0].addr, engines[1].addr]);
        config.policy = router_policy::PolicyConfig::default();
        // The engines list their model; nothing is configured.
        config.backends.iter_mut().for_each(|b| b.spec.model = None);
        configure(&mut config);
        Some(Self { router: router::start(config), engines })
    }

    /// Where clients connect.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.router.addr()
    }
}
