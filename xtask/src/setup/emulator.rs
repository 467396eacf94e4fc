//! qemu for an x86-64 machine, and busybox for what runs in it: Debian's packages with all they need down to libc,
//! unpacked below `target/tools` and started there. So it runs on whichever Linux has apt, and installs nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::paths::Workspace;
use crate::run;
use crate::setup::apt::PrivateApt;

/// The release it is taken from, whichever runs here.
const SUITE: &str = "bookworm";
const PACKAGES: &[&str] = &["qemu-system-x86", "busybox-static"];
const LIBRARIES: &[&str] = &["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"];
const FIRMWARE: &[&str] = &["usr/share/seabios", "usr/share/qemu"];

/// An unpacked qemu.
pub(crate) struct Emulator {
    root: PathBuf,
}

impl Emulator {
    /// Fetches it unless it is there.
    ///
    /// # Errors
    /// This is no x86-64, or there is no apt, or Debian's archive cannot be read.
    pub(crate) fn ensure(ws: &Workspace) -> Result<Self> {
        if std::env::consts::ARCH != "x86_64" {
            bail!("the guest runs this machine's programs, and its kernels are x86-64's");
        }
        let emulator = Self { root: ws.tools().join("emulator") };
        if !emulator.is_usable() {
            fetch(&emulator.root).context("no qemu")?;
            anyhow::ensure!(emulator.is_usable(), "Debian's qemu was unpacked but does not start");
        }
        Ok(emulator)
    }

    /// qemu, which finds its libraries, modules and firmware.
    pub(crate) fn command(&self) -> Command {
        let at = |path: &str| self.root.join(path);
        let libraries: Vec<_> = LIBRARIES.iter().map(|path| at(path).display().to_string()).collect();
        let mut command = Command::new(at("lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"));
        command.args(["--library-path", &libraries.join(":")]).arg(at("usr/bin/qemu-system-x86_64"));
        for path in FIRMWARE {
            command.arg("-L").arg(at(path));
        }
        command.env("QEMU_MODULE_DIR", at("usr/lib/x86_64-linux-gnu/qemu"));
        command
    }

    /// A busybox without libraries.
    pub(crate) fn busybox(&self) -> PathBuf {
        self.root.join("bin/busybox")
    }

    fn is_usable(&self) -> bool {
        self.busybox().is_file() && run::capture(self.command().arg("--version")).is_ok()
    }
}

fn fetch(root: &Path) -> Result<()> {
    println!("  fetching Debian's qemu and busybox (45 MB)");
    let work = root.with_extension("tmp");
    fs::remove_dir_all(&work).ok();
    let unpacked = work.join("root");
    PrivateApt::new(&work.join("apt"), SUITE)?.unpack_with_dependencies(PACKAGES, &unpacked)?;
    fs::remove_dir_all(root).ok();
    fs::rename(&unpacked, root)?;
    fs::remove_dir_all(&work)?;
    Ok(())
}
