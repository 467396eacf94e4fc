//! The library sources of the running rustc, which `-Zbuild-std=core` compiles for the BPF target.
//!
//! Looked for in rustc's own sysroot first; else rustup is asked; else Debian's package of the very same version
//! is unpacked into the target directory, with a sysroot of symbolic links around it (the real one may not be
//! ours to write) and a `rustc` that names that sysroot. Invariant: sources of another version are never used.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::paths::{Workspace, find_program};
use crate::run;
use crate::setup::Outcome;
use crate::setup::apt::PrivateApt;
use crate::toolchain::Rustc;

const SUITE: &str = "trixie-backports";
/// Where a sysroot has the sources.
const IN_SYSROOT: &str = "lib/rustlib/src/rust/library";
/// The download has 4 MB; where rustup has no network it should not be waited for.
const RUSTUP_LIMIT: Duration = Duration::from_secs(60);

/// Usable sources.
pub(crate) struct RustSrc {
    /// The directory that holds `core`.
    pub(crate) library: PathBuf,
    /// To be `RUSTC` of the build, when the sources are not in the real sysroot.
    pub(crate) rustc_wrapper: Option<PathBuf>,
}

/// Looks, without bringing anything.
pub(crate) fn find(ws: &Workspace, rustc: &Rustc) -> Option<RustSrc> {
    let library = rustc.sysroot.join(IN_SYSROOT);
    if is_complete(&library) {
        return Some(RustSrc { library, rustc_wrapper: None });
    }
    let farm = Farm::of(ws, rustc);
    farm.is_usable(rustc).then(|| farm.rust_src())
}

/// Brings the sources unless they are there.
///
/// # Errors
/// When neither rustup nor Debian has them; the message says what to do.
pub(crate) fn ensure(ws: &Workspace, rustc: &Rustc) -> Result<Outcome> {
    if let Some(found) = find(ws, rustc) {
        return Ok(Outcome::Present(format!("{} {}", rustc.release, ws.show(&found.library))));
    }
    let by_rustup = add_by_rustup();
    if let (Ok(()), Some(found)) = (&by_rustup, find(ws, rustc)) {
        return Ok(Outcome::Brought(format!("added to {} by rustup", found.library.display())));
    }
    if let Err(error) = &by_rustup {
        println!("  rust-src: not by rustup ({error:#}); trying Debian");
    }
    let version = unpack_from_debian(ws, rustc).with_context(|| {
        format!("run `rustup component add rust-src`, or install rustc {} with its rust-src", rustc.release)
    })?;
    let found = find(ws, rustc).context("the unpacked rust-src is not complete")?;
    Ok(Outcome::Brought(format!("Debian's {version} unpacked to {}", ws.show(&found.library))))
}

fn is_complete(library: &Path) -> bool {
    library.join("Cargo.lock").is_file() && library.join("core/src/lib.rs").is_file()
}

fn add_by_rustup() -> Result<()> {
    let rustup = find_program("rustup").context("no rustup here")?;
    println!("  rust-src: asking rustup");
    let mut command = Command::new(rustup);
    command.args(["component", "add", "rust-src"]).env("RUSTUP_MAX_RETRIES", "1");
    run::within(&mut command, RUSTUP_LIMIT)
}

/// Unpacks Debian's package into a new farm; returns its version.
fn unpack_from_debian(ws: &Workspace, rustc: &Rustc) -> Result<String> {
    let farm = Farm::of(ws, rustc);
    let work = ws.tools().join("rust-src.tmp");
    fs::remove_dir_all(&work).ok();
    let apt = PrivateApt::new(&work.join("apt"), SUITE)?;
    let versions = apt.versions("rust-src")?;
    let Some(version) = version_of(&versions, &rustc.release) else {
        bail!("Debian {SUITE} has rust-src {}, not {}", versions.join(", "), rustc.release);
    };
    println!("  rust-src: fetching Debian's {version} (45 MB)");
    let unpacked = work.join("unpacked");
    apt.unpack(&format!("rust-src={version}"), &unpacked)?;
    let library = unpacked.join(format!("usr/src/rustc-{}/library", rustc.release));
    if !is_complete(&library) {
        bail!("Debian's rust-src {version} has no {}", library.display());
    }
    farm.plant(rustc, &library)?;
    fs::remove_dir_all(&work)?;
    Ok(version.to_owned())
}

/// The package version that is of this upstream release.
fn version_of<'a>(versions: &'a [String], release: &str) -> Option<&'a str> {
    versions.iter().map(String::as_str).find(|version| version.split('+').next() == Some(release))
}

/// A sysroot in the target directory: links to everything of the real one, and the sources.
struct Farm {
    dir: PathBuf,
}

impl Farm {
    fn of(ws: &Workspace, rustc: &Rustc) -> Self {
        Self { dir: ws.tools().join(format!("rust-src-{}", rustc.release)) }
    }

    fn sysroot(&self) -> PathBuf {
        self.dir.join("sysroot")
    }

    fn wrapper(&self) -> PathBuf {
        self.dir.join("rustc")
    }

    fn rust_src(&self) -> RustSrc {
        RustSrc { library: self.sysroot().join(IN_SYSROOT), rustc_wrapper: Some(self.wrapper()) }
    }

    /// Complete, and of the rustc that runs now: the toolchain may have moved since.
    fn is_usable(&self, rustc: &Rustc) -> bool {
        let host = Path::new("lib/rustlib").join(&rustc.host);
        is_complete(&self.sysroot().join(IN_SYSROOT))
            && fs::read_link(self.sysroot().join(&host)).is_ok_and(|to| to == rustc.sysroot.join(&host))
            && fs::read_to_string(self.wrapper()).is_ok_and(|text| text == self.wrapper_text(rustc))
    }

    /// Builds the farm around `library`, which is moved into it. The wrapper comes last.
    fn plant(&self, rustc: &Rustc, library: &Path) -> Result<()> {
        fs::remove_dir_all(&self.dir).ok();
        let (lib, rustlib) = (self.sysroot().join("lib"), self.sysroot().join("lib/rustlib"));
        fs::create_dir_all(rustlib.join("src/rust"))?;
        link_all(&rustc.sysroot.join("lib"), &lib, "rustlib")?;
        link_all(&rustc.sysroot.join("lib/rustlib"), &rustlib, "src")?;
        fs::rename(library, self.sysroot().join(IN_SYSROOT))?;
        fs::write(self.wrapper(), self.wrapper_text(rustc))?;
        fs::set_permissions(self.wrapper(), fs::Permissions::from_mode(0o755))?;
        Ok(())
    }

    fn wrapper_text(&self, rustc: &Rustc) -> String {
        let quote = |path: PathBuf| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
        let (real, sysroot) = (quote(rustc.sysroot.join("bin/rustc")), quote(self.sysroot()));
        format!("#!/bin/sh\nexec {real} --sysroot {sysroot} \"$@\"\n")
    }
}

/// Links every entry of `from` but `except` into `to`.
fn link_all(from: &Path, to: &Path, except: &str) -> Result<()> {
    let entries = fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))?;
    for entry in entries {
        let entry = entry?;
        if entry.file_name() != except {
            symlink(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_very_release_will_do() {
        let versions = ["1.95.1+dfsg1-1", "1.95.0+dfsg1-2~bpo13+1", "1.95.0+dfsg1-1"].map(str::to_owned);
        assert_eq!(version_of(&versions, "1.95.0"), Some("1.95.0+dfsg1-2~bpo13+1"));
        assert_eq!(version_of(&versions, "1.95"), None);
        assert_eq!(version_of(&versions, "1.96.0"), None);
    }

    #[test]
    fn a_farm_is_usable_only_with_the_rustc_it_was_planted_for() {
        let root = std::env::temp_dir().join(format!("unlatch-farm-{}", std::process::id()));
        let ws = Workspace { root: root.clone(), target: root.join("it's target") };
        let rustc = Rustc {
            release: "1.95.0".into(),
            commit: "c".into(),
            host: "h".into(),
            sysroot: root.join("real"),
        };
        fs::create_dir_all(rustc.sysroot.join("lib/rustlib/h")).unwrap();
        let library = root.join("library");
        fs::create_dir_all(library.join("core/src")).unwrap();
        fs::write(library.join("Cargo.lock"), "").unwrap();
        fs::write(library.join("core/src/lib.rs"), "").unwrap();

        assert!(find(&ws, &rustc).is_none(), "nothing is there yet");
        Farm::of(&ws, &rustc).plant(&rustc, &library).unwrap();
        let found = find(&ws, &rustc).expect("planted");
        assert!(found.rustc_wrapper.is_some_and(|wrapper| wrapper.is_file()));
        let moved = Rustc { sysroot: root.join("elsewhere"), ..rustc.clone() };
        assert!(find(&ws, &moved).is_none(), "the links lead to another toolchain");
        fs::remove_file(found.library.join("core/src/lib.rs")).unwrap();
        assert!(find(&ws, &rustc).is_none(), "a file is gone");
        fs::remove_dir_all(root).unwrap();
    }
}
