//! Running commands: shown, captured, or with a deadline.
//!
//! Every failure names the command. Invariant: a command that is given a deadline is waited for, so that none
//! outlives xtask unnoticed.

use std::ffi::OsString;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The cargo that runs us, so that a nested build uses the same toolchain.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")))
}

/// The command line, for messages.
pub(crate) fn line(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|part| part.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs a command with its output shown.
///
/// # Errors
/// When it cannot start or does not end with 0.
pub(crate) fn show(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start `{}`", line(command)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", line(command));
    }
    Ok(())
}

/// Runs a command and returns its standard output.
///
/// # Errors
/// When it cannot start or does not end with 0; the message holds the end of its standard error.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{}`", line(command)))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed ({}): {}", line(command), output.status, last_lines(&stderr, 5));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A process that is ended with its value.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    /// Starts it.
    ///
    /// # Errors
    /// When it cannot start.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let child = command.spawn().with_context(|| format!("cannot start `{}`", line(command)))?;
        Ok(Self(child))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait()) {
            println!("process {} may be left behind: {error}", self.0.id());
        }
    }
}

/// Runs a command silently for `limit` at most; past that it is ended.
///
/// # Errors
/// When it cannot start, does not end with 0, or not in time.
pub(crate) fn within(command: &mut Command, limit: Duration) -> Result<()> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start `{}`", line(command)))?;
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => bail!("`{}` failed ({status})", line(command)),
            None if Instant::now() >= deadline => {
                child.kill()?;
                child.wait()?;
                bail!("`{}` did not end within {} s", line(command), limit.as_secs());
            }
            None => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Ends a command and everything it started when it takes longer than `limit`; see [`Watchdog::stop`].
pub(crate) struct Watchdog {
    stop: SyncSender<()>,
    thread: JoinHandle<bool>,
}

impl Watchdog {
    /// Watches the child `pid`, which the caller must not wait for before it stops the watchdog.
    pub(crate) fn watch(pid: u32, limit: Duration) -> Self {
        let (stop, stopped) = mpsc::sync_channel(1);
        let thread = thread::spawn(move || {
            let is_late = stopped.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
            if is_late {
                kill_tree(pid);
            }
            is_late
        });
        Self { stop, thread }
    }

    /// Stops watching; returns whether the limit was exceeded.
    pub(crate) fn stop(self) -> bool {
        drop(self.stop);
        self.thread.join().unwrap_or(false)
    }
}

/// Kills `pid` and its descendants. Not by a process group: one of its own would not get the terminal's Ctrl-C.
fn kill_tree(pid: u32) {
    let mut tree = vec![pid];
    let pairs = parents();
    let mut at = 0;
    while let Some(parent) = tree.get(at).copied() {
        tree.extend(pairs.iter().filter(|(_, of)| *of == parent).map(|(child, _)| *child));
        at += 1;
    }
    let killed = Command::new("kill")
        .arg("-KILL")
        .args(tree.iter().map(u32::to_string))
        .stderr(Stdio::null())
        .status();
    if let Err(error) = killed {
        println!("error: cannot start `kill`: {error}");
    }
}

/// Every process and its parent.
fn parents() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, parent_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?)))
        .collect()
}

/// The parent in a `/proc/<pid>/stat`: two after the name, which is in brackets and may hold anything.
fn parent_in(stat: &str) -> Option<u32> {
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Tries something that reaches the network up to `attempts` times, with a growing pause.
///
/// # Errors
/// The last attempt's.
pub(crate) fn retry<T>(attempts: u32, what: &str, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    for n in 1..attempts {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) => println!("  {what}: attempt {n} of {attempts} failed: {error:#}"),
        }
        thread::sleep(Duration::from_secs(u64::from(2 * n)));
    }
    attempt()
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<_> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(count)..].join(" / ")
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::path::Path;

    use super::*;

    #[test]
    fn a_failure_names_the_command_and_the_end_of_its_stderr() {
        let error =
            capture(Command::new("ls").arg("/no-such-place")).expect_err("ls of a missing place fails");
        let text = error.to_string();
        assert!(text.contains("ls /no-such-place"), "{text}");
        assert!(text.contains("No such file"), "{text}");
    }

    #[test]
    fn a_command_past_its_deadline_is_ended() {
        let error = within(Command::new("sleep").arg("60"), Duration::from_millis(50)).expect_err("too slow");
        assert!(error.to_string().contains("did not end"), "{error}");
    }

    #[test]
    fn a_watchdog_ends_what_the_command_started_too() {
        // The pipe closes only when the grandchild, which holds it, is gone as well.
        let mut child =
            Command::new("sh").args(["-c", "sleep 60; :"]).stdout(Stdio::piped()).spawn().unwrap();
        let watchdog = Watchdog::watch(child.id(), Duration::from_millis(200));
        let mut text = String::new();
        let started = Instant::now();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(watchdog.stop(), "the limit was exceeded");
        assert!(!child.wait().unwrap().success());
        assert!(started.elapsed() < Duration::from_secs(30), "nobody waited for the sleep");
    }

    #[test]
    fn a_process_ends_with_its_value() {
        let process = Running::start(Command::new("sleep").arg("600")).unwrap();
        let pid = process.0.id();
        drop(process);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_command_in_time_is_left_alone() {
        let mut child = Command::new("true").spawn().unwrap();
        let watchdog = Watchdog::watch(child.id(), Duration::from_secs(60));
        assert!(!watchdog.stop());
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn the_parent_is_found_after_an_odd_name() {
        assert_eq!(parent_in("12 (a) b) S 7 12 12 0"), Some(7));
        assert_eq!(parent_in(""), None);
    }

    #[test]
    fn only_the_last_lines_are_kept() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b / c");
        assert_eq!(last_lines("", 2), "");
    }
}
