//! The tier `matrix`: the built router on other kernels, in an emulated machine each.
//!
//! Reading order: `guest.sh` (what runs there, and its checks), [`console`] (reading what it says), [`initramfs`].
//! The emulator and the kernels are fetched when this tier first runs; without them it is skipped. The program is
//! the one that the other tiers start. Needs no root, no KVM and no network in the guest.

mod console;
mod initramfs;

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::build::{self, Profile};
use crate::paths::Workspace;
use crate::run::{self, Watchdog};
use crate::setup::emulator::Emulator;
use crate::setup::guest_kernel::{GuestKernel, KERNELS};
use crate::test::matrix::console::Console;
use crate::test::matrix::initramfs::Initramfs;
use crate::test::parse::Totals;

const GUEST: &str = include_str!("guest.sh");

/// From power on to power off, which is half a minute on an idle machine.
const LIMIT: Duration = Duration::from_secs(240);
/// Lines of a guest that failed which are shown; its file has all.
const SHOWN: usize = 100;

/// Runs the checks on each kernel; returns the totals, and each skip with its reason.
///
/// # Errors
/// When the guest cannot be put together, or qemu cannot be started.
pub(super) fn run(ws: &Workspace, is_long: bool) -> Result<(Totals, Vec<String>)> {
    let (mut totals, mut skips) = (Totals::default(), Vec::new());
    let work = ws.target.join("matrix");
    fs::create_dir_all(&work)?;
    let emulator = Emulator::ensure(ws).map_err(|error| format!("{error:#}"));
    if let Ok(emulator) = &emulator {
        fs::write(initrd(&work), root(ws, emulator, &work)?)?;
    }
    for kernel in KERNELS.iter().filter(|kernel| is_long || !kernel.is_long) {
        let image = emulator.as_ref().map_err(Clone::clone).and_then(|emulator| {
            kernel.ensure(ws).map(|image| (emulator, image)).map_err(|error| format!("{error:#}"))
        });
        match image {
            Ok((emulator, image)) => totals.add(boot(ws, emulator, kernel, &image, &work)?),
            Err(reason) => {
                totals.skipped += 1;
                skips.push(format!("Linux {}: {reason}", kernel.series));
            }
        }
    }
    Ok((totals, skips))
}

fn initrd(work: &Path) -> PathBuf {
    work.join("initrd")
}

/// The guest's files.
fn root(ws: &Workspace, emulator: &Emulator, work: &Path) -> Result<Vec<u8>> {
    let mut root = Initramfs::default();
    root.add("/init", GUEST.as_bytes());
    root.add("/bin/busybox", &fs::read(emulator.busybox())?);
    root.add_program("/bin/unlatch", &build::binary(ws, Profile::Dev), work)?;
    Ok(root.finish())
}

/// Runs one guest, and shows what it says.
fn boot(
    ws: &Workspace,
    emulator: &Emulator,
    kernel: &GuestKernel,
    image: &Path,
    work: &Path,
) -> Result<Totals> {
    let release = image.file_name().unwrap_or_default().to_string_lossy();
    println!("Linux {}", release.trim_start_matches("vmlinuz-"));
    let started = Instant::now();
    let mut qemu = qemu(emulator, image, &initrd(work));
    let mut child = qemu.spawn().with_context(|| format!("cannot start `{}`", run::line(&qemu)))?;
    let stdout = child.stdout.take().context("invariant: standard output is piped")?;
    let watchdog = Watchdog::watch(child.id(), LIMIT);
    let log = work.join(format!("{}.log", kernel.series));
    let mut file = fs::File::create(&log)?;
    let (mut console, mut last) = (Console::default(), VecDeque::new());
    for line in BufReader::new(stdout).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        writeln!(file, "{line}")?;
        if let Some(said) = console.line(&line) {
            println!("  {said}");
        }
        if last.len() == SHOWN {
            last.pop_front();
        }
        last.push_back(line);
    }
    let is_late = watchdog.stop();
    child.wait()?;
    let totals = console.totals();
    if totals.failed > 0 {
        for silent in console.missing() {
            println!("error: Linux {} said nothing of {silent}", kernel.series);
        }
        if is_late {
            println!(
                "error: Linux {} did not end within {} s and was killed",
                kernel.series,
                LIMIT.as_secs()
            );
        }
        println!("the end of its console, all of which is in {}:", ws.show(&log));
        last.iter().for_each(|line| println!("  | {}", line.trim_end()));
    }
    println!("  {} in {:.1} s", totals.line(), started.elapsed().as_secs_f64());
    Ok(totals)
}

fn qemu(emulator: &Emulator, image: &Path, initrd: &Path) -> Command {
    let mut qemu = emulator.command();
    qemu.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1024", "-M", "q35"])
        .args(["-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio"])
        .arg("-kernel")
        .arg(image)
        .arg("-initrd")
        .arg(initrd)
        // A panic reboots at once, which ends it.
        .args(["-append", "console=ttyS0 quiet panic=-1 mitigations=off"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    qemu
}
