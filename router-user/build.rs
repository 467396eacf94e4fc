//! Chooses the BPF objects that the router embeds: `UNLATCH_BPF_OBJECT` (the load signal) and
//! `UNLATCH_BPF_EDGE_OBJECT` (the edge guard) are their paths for `include_bytes!`.
//!
//! Those that `cargo xtask ebpf` built, if the recorded hash of their sources is this checkout's; else the
//! committed copies; else empty files, which stand for "no kernel side". It compiles nothing itself, so that
//! plain `cargo build` works where no BPF toolchain is. Invariant: a built object of other sources is never
//! embedded.

// The same code that xtask records the hash with.
#[path = "../xtask/src/source_hash.rs"]
mod source_hash;

use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const OBJECTS: [(&str, &str); 2] =
    [("inflight.o", "UNLATCH_BPF_OBJECT"), ("edge.o", "UNLATCH_BPF_EDGE_OBJECT")];

fn main() -> io::Result<()> {
    let path =
        |name| env::var_os(name).map(PathBuf::from).ok_or_else(|| io::Error::other(format!("no {name}")));
    let out_dir = path("OUT_DIR")?;
    let manifest_dir = path("CARGO_MANIFEST_DIR")?;
    let root = manifest_dir.parent().unwrap_or(&manifest_dir);
    let built_dir = target_dir(root, &out_dir).join("bpf");
    watch(root, &built_dir);

    let sources = source_hash::of_checkout(root)?;
    for (name, variable) in OBJECTS {
        let object = match read_built(&built_dir, name, &sources)? {
            Some(object) => object,
            None => read_committed(&root.join("router-ebpf/object"), name, &sources)?,
        };
        // A copy, so that what was judged is what gets embedded.
        let chosen = out_dir.join(name);
        fs::write(&chosen, object)?;
        println!("cargo::rustc-env={variable}={}", chosen.display());
    }
    Ok(())
}

/// Where `xtask ebpf` puts its output: `CARGO_TARGET_DIR`, else `target`. A relative one is relative to where
/// cargo was started, which a build script does not learn; its own output lies below it.
fn target_dir(root: &Path, out_dir: &Path) -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from) {
        Some(dir) if dir.is_absolute() => dir,
        Some(dir) => out_dir.ancestors().find(|above| above.ends_with(&dir)).unwrap_or(root).to_path_buf(),
        None => root.join("target"),
    }
}

fn watch(root: &Path, built_dir: &Path) {
    for source in ["router-ebpf", "router-common", "Cargo.lock", "xtask/src/source_hash.rs"] {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    // Cargo would run this script each time if the directory were missing, and once more if it were new.
    if !built_dir.is_dir() && fs::create_dir_all(built_dir).is_ok() {
        File::open(built_dir).and_then(|dir| dir.set_modified(SystemTime::UNIX_EPOCH)).ok();
    }
    if built_dir.is_dir() {
        println!("cargo::rerun-if-changed={}", built_dir.display());
    }
}

fn read_built(dir: &Path, name: &str, sources: &str) -> io::Result<Option<Vec<u8>>> {
    match fs::read_to_string(dir.join("objects.sources")) {
        Ok(recorded) if recorded.trim() == sources => fs::read(dir.join(name)).map(Some),
        _ => Ok(None),
    }
}

/// A committed object, with a warning where it is of other sources: its maps may then not fit the router.
fn read_committed(dir: &Path, name: &str, sources: &str) -> io::Result<Vec<u8>> {
    let object = match fs::read(dir.join(name)) {
        Ok(object) => object,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let versions = fs::read_to_string(dir.join("versions.toml"))?;
    if !versions.lines().any(|line| line == format!("sources = \"{sources}\"")) {
        println!("cargo::warning=the committed {name} is of other sources: run `cargo xtask ebpf`");
    }
    Ok(object)
}
