//! A process, a cgroup and a mount namespace for each case.
//!
//! Moving to another cgroup moves the whole process, and pins must not be seen by others: so a test runs itself
//! again as a child, which enters the sandbox and runs the body. The body may start helpers, which run the same
//! test with a step name in the same sandbox.
#![expect(unsafe_code, reason = "unshare, mount and geteuid")]

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const CGROUP: &str = "UNLATCH_SANDBOX_CGROUP";
const DIR: &str = "UNLATCH_SANDBOX_DIR";
const STEP: &str = "UNLATCH_SANDBOX_STEP";

/// A case that takes longer hangs.
const DEADLINE: Duration = Duration::from_secs(60);
/// The same of one that is run at its full length.
const LONG_DEADLINE: Duration = Duration::from_secs(300);

/// Starts of lines that a case says to the outside: why it was left out, and what `cargo xtask bench kernel` prints.
const TOLD: [&str; 2] = ["SKIP ", "FIGURE "];

/// Path of the test function it is called in, as the test runner knows it.
macro_rules! name {
    () => {{
        fn here() {}
        let path = std::any::type_name_of_val(&here).trim_end_matches("::here");
        path.split_once("::").expect("invariant: a path starts with the crate").1
    }};
}
pub(crate) use name;

/// What a body may use.
pub(crate) struct Sandbox {
    name: &'static str,
    /// The cgroup of this process and its helpers.
    pub(crate) cgroup: PathBuf,
    /// The root of a private BPF file system.
    pub(crate) bpffs: PathBuf,
    step: Option<String>,
}

/// Runs `body` in a sandbox of its own.
pub(crate) fn run(name: &'static str, body: impl FnOnce(&Sandbox)) {
    let (Ok(cgroup), Ok(dir)) = (std::env::var(CGROUP), std::env::var(DIR)) else {
        return run_child(name);
    };
    let step = std::env::var(STEP).ok();
    let sandbox = Sandbox { name, cgroup: cgroup.into(), bpffs: Path::new(&dir).join("bpf"), step };
    if sandbox.step.is_none()
        && let Err(error) = sandbox.enter()
    {
        return skip(name, &format!("cannot enter a sandbox: {error}"));
    }
    body(&sandbox);
}

/// Whether there is time for what takes minutes.
pub(crate) fn is_long() -> bool {
    std::env::var_os("UNLATCH_LONG").is_some()
}

fn skip(name: &str, reason: &str) {
    println!("SKIP {name}: {reason}");
}

fn run_child(name: &'static str) {
    // SAFETY: takes and touches nothing.
    if unsafe { libc::geteuid() } != 0 {
        return skip(name, "not root");
    }
    let outside = match Outside::new() {
        Ok(outside) => outside,
        Err(error) => return skip(name, &format!("no cgroup of its own: {error}")),
    };
    let path = outside.dir.path().join("output");
    let output = File::create(&path).unwrap();
    let mut child = again(name)
        .env(CGROUP, &outside.cgroup)
        .env(DIR, outside.dir.path())
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .spawn()
        .unwrap();
    let end = Instant::now() + if is_long() { LONG_DEADLINE } else { DEADLINE };
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if Instant::now() > end => break None,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    if status.is_none() {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
    outside.close();
    // Indented, so that nobody takes the child's results for those of this process.
    let shown = text.lines().fold(String::new(), |shown, line| shown + "  | " + line + "\n");
    for line in text.lines().filter(|line| TOLD.iter().any(|word| line.starts_with(word))) {
        println!("{line}");
    }
    assert!(status.is_some_and(|status| status.success()), "{name} failed ({status:?}):\n{shown}");
    assert!(text.contains("1 passed"), "{name} is no test of this binary:\n{shown}");
}

fn again(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command
}

/// What must be taken away from outside after the child.
struct Outside {
    cgroup: PathBuf,
    dir: tempfile::TempDir,
}

impl Outside {
    fn new() -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let cgroup = own_cgroup()?.join(format!("unlatch-test-{}-{number}", std::process::id()));
        let dir = tempfile::tempdir()?;
        fs::create_dir(dir.path().join("bpf"))?;
        fs::create_dir(&cgroup)?;
        Ok(Self { cgroup, dir })
    }

    fn close(self) {
        let cgroup = self.cgroup.clone();
        drop(self);
        assert!(!cgroup.exists(), "a case left its cgroup");
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        // Helpers of a body that panicked.
        let _ = fs::write(self.cgroup.join("cgroup.kill"), "1");
        let end = Instant::now() + Duration::from_secs(5);
        while remove_cgroups(&self.cgroup).is_err() && self.cgroup.exists() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Removes a cgroup and those in it. Their files go by themselves.
fn remove_cgroups(cgroup: &Path) -> io::Result<()> {
    for entry in fs::read_dir(cgroup)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_cgroups(&path)?;
        }
    }
    fs::remove_dir(cgroup)
}

fn own_cgroup() -> io::Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let mount = mount.and_then(|line| line.split(' ').nth(4)).ok_or(io::ErrorKind::NotFound)?;
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).ok_or(io::ErrorKind::NotFound)?;
    Ok(Path::new(mount).join(own))
}

impl Sandbox {
    /// Moves this process into the cgroup and its mounts into a namespace, with an empty BPF file system.
    fn enter(&self) -> io::Result<()> {
        fs::write(self.cgroup.join("cgroup.procs"), "0")?;
        // SAFETY: affects the mounts that this thread, and what it starts, sees.
        check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
        let none = std::ptr::null();
        // SAFETY: terminated strings; makes changes of mounts invisible to the namespace this came from.
        check(unsafe {
            libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast())
        })?;
        mount_bpffs(&self.bpffs)
    }

    /// A directory of the case, removed after it.
    pub(crate) fn dir(&self) -> &Path {
        self.bpffs.parent().expect("invariant: the file system is mounted in the case's directory")
    }

    /// A directory for pins.
    pub(crate) fn pin_dir(&self) -> PathBuf {
        self.bpffs.join("unlatch")
    }

    /// The step this process was started for; `None` in the body's own process.
    pub(crate) fn step(&self) -> Option<&str> {
        self.step.as_deref()
    }

    /// Starts this very test as another process of the sandbox.
    pub(crate) fn helper(&self, step: &str) -> Helper {
        let mut child =
            again(self.name).env(STEP, step).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        Helper { hold: child.stdin.take(), says, child }
    }
}

/// Mounts an empty BPF file system on an existing directory.
fn mount_bpffs(at: &Path) -> io::Result<()> {
    let at = std::ffi::CString::new(at.as_os_str().as_encoded_bytes())?;
    // SAFETY: terminated strings.
    check(unsafe { libc::mount(c"bpf".as_ptr(), at.as_ptr(), c"bpf".as_ptr(), 0, std::ptr::null()) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Another process in the sandbox.
pub(crate) struct Helper {
    child: Child,
    hold: Option<ChildStdin>,
    says: BufReader<ChildStdout>,
}

impl Helper {
    /// Waits until the helper says something, and returns it.
    pub(crate) fn hears(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.says.read_line(&mut line).unwrap(), 0, "the helper ended without a word");
            // The test runner's "test name ... " may stand before it on the line.
            if let Some((_, word)) = line.trim_end().split_once("@@") {
                return word.to_owned();
            }
        }
    }

    /// Says a line to it.
    pub(crate) fn tell(&mut self, word: &str) {
        let to = self.hold.as_mut().expect("invariant: it was not let go");
        writeln!(to, "{word}").unwrap();
    }

    /// SIGKILL, without waiting for its end.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// Lets it end by itself; returns what it still says.
    pub(crate) fn finish(mut self) -> String {
        drop(self.hold.take());
        let mut rest = String::new();
        self.says.read_to_string(&mut rest).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "the helper failed: {rest}");
        rest
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In a helper: says a line.
pub(crate) fn say(word: impl std::fmt::Display) {
    println!("@@{word}");
}

/// In a helper: blocks until it may end.
pub(crate) fn wait_until_finished() {
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
}
