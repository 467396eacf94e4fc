//! `ebpf`: builds the BPF objects so that the same sources and tools give the same bytes anywhere.
//!
//! Three uses: build into the target directory, `--commit` also into the checkout, `--check` against what the
//! checkout holds. Invariant: no path of this machine gets into the object; every one is remapped, and a build
//! whose output still holds one fails.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::bpf_object;
use crate::paths::Workspace;
use crate::run;
use crate::setup::rust_src::{self, RustSrc};
use crate::setup::{self, tools};
use crate::source_hash::{self, Fnv};
use crate::toolchain::Rustc;
use crate::versions::Versions;

const TRIPLE: &str = "bpfel-unknown-none";

/// The binaries of router-ebpf, each an object of its own.
const OBJECTS: [&str; 2] = ["inflight", "edge"];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Also write the object and the versions that made it to router-ebpf/object
    #[arg(long, conflicts_with = "check")]
    commit: bool,
    /// Compare a fresh build with the committed object, bit for bit, where the versions that made it are present
    #[arg(long)]
    check: bool,
}

/// The verb.
///
/// # Errors
/// When the toolchain is missing, the build fails, or the committed object does not match.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<()> {
    if args.check {
        return check(ws);
    }
    setup::bpf_toolchain(ws)?;
    let (objects, versions) = build(ws)?;
    for (name, object) in OBJECTS.iter().zip(&objects) {
        println!("{}: {} bytes, sources {}", ws.show(&ws.built_object(name)), object.len(), versions.sources);
    }
    if args.commit {
        let record = ws.committed_versions();
        fs::create_dir_all(record.parent().context("invariant: the record lies in a directory")?)?;
        for (name, object) in OBJECTS.iter().zip(&objects) {
            fs::write(ws.committed_object(name), object)?;
            println!("{}: written", ws.show(&ws.committed_object(name)));
        }
        fs::write(&record, versions.to_toml())?;
        println!("{}: written", ws.show(&record));
    }
    Ok(())
}

/// Brings the built objects up to date, where the toolchain is; else says why the committed copies are embedded.
///
/// # Errors
/// When the programs do not build.
pub(crate) fn build_if_possible(ws: &Workspace) -> Result<()> {
    let recorded = fs::read_to_string(ws.built_sources()).unwrap_or_default();
    if recorded.trim() == source_hash::of_checkout(&ws.root)?
        && OBJECTS.iter().all(|name| ws.built_object(name).is_file())
    {
        return Ok(());
    }
    if let Err(missing) = Toolchain::find(ws) {
        println!("BPF objects: the committed copies are embedded ({missing:#})");
        return Ok(());
    }
    println!("BPF objects: building");
    build(ws).map(drop)
}

/// Compares the committed objects with their sources, and with a fresh build where one must give the same bytes.
///
/// # Errors
/// When there is no committed object, one is of other sources, or the bytes differ.
pub(crate) fn check(ws: &Workspace) -> Result<()> {
    let committed = OBJECTS.map(|name| fs::read(ws.committed_object(name)));
    let committed = committed
        .into_iter()
        .collect::<Result<Vec<_>, _>>()
        .context("no committed object: run `cargo xtask ebpf --commit`")?;
    let theirs = Versions::read(&ws.committed_versions())?;
    if theirs.sources != source_hash::of_checkout(&ws.root)? {
        bail!("the committed BPF objects were built from other sources: run `cargo xtask ebpf --commit`");
    }
    let ours = match Toolchain::find(ws).and_then(|toolchain| toolchain.versions(ws)) {
        Ok(versions) => versions,
        Err(missing) => {
            println!("ebpf --check: could not compare: {missing:#}");
            return Ok(());
        }
    };
    if let Some(difference) = theirs.tool_difference(&ours) {
        println!("ebpf --check: could not compare: {difference}");
        return Ok(());
    }
    let (built, _) = build(ws)?;
    for ((name, built), committed) in OBJECTS.iter().zip(&built).zip(&committed) {
        if built != committed {
            bail!(
                "{} and {} differ although the same versions made them: run `cargo xtask ebpf --commit`",
                ws.show(&ws.built_object(name)),
                ws.show(&ws.committed_object(name))
            );
        }
        println!("ebpf --check: {name}.o is what its sources give, bit for bit ({} bytes)", built.len());
    }
    Ok(())
}

/// Builds, strips and stores the objects; returns them, in the order of [`OBJECTS`], with what made them.
fn build(ws: &Workspace) -> Result<(Vec<Vec<u8>>, Versions)> {
    let toolchain = Toolchain::find(ws)?;
    // The registry's directories must exist before they can be remapped.
    run::show(run::cargo().args(["fetch", "--locked", "--quiet"]).current_dir(&ws.root))?;
    let sources = source_hash::of_checkout(&ws.root)?;
    let linked = toolchain.compile(ws)?;
    let strip = |name| bpf_object::strip(&fs::read(linked.join(name))?);
    let objects = OBJECTS.into_iter().map(strip).collect::<Result<Vec<_>>>()?;
    for place in [&ws.root, &ws.target, &cargo_home()?, &toolchain.rustc.sysroot] {
        if objects.iter().any(|object| contains(object, place.to_string_lossy().as_bytes())) {
            bail!("an object holds the path {}: it would differ on another machine", place.display());
        }
    }
    let versions = toolchain.versions(ws)?;
    if versions.sources != sources {
        bail!("the sources changed during the build: run it again");
    }
    // Without the record no object is embedded, so it goes last.
    let record = ws.built_sources();
    fs::create_dir_all(record.parent().context("invariant: the record lies in a directory")?)?;
    match fs::remove_file(&record) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    for (name, object) in OBJECTS.iter().zip(&objects) {
        fs::write(ws.built_object(name), object)?;
    }
    fs::write(&record, format!("{sources}\n"))?;
    Ok((objects, versions))
}

/// What a build needs, found and not installed.
struct Toolchain {
    rustc: Rustc,
    rust_src: RustSrc,
    linker: PathBuf,
}

impl Toolchain {
    fn find(ws: &Workspace) -> Result<Self> {
        let rustc = Rustc::find()?;
        let rust_src = rust_src::find(ws, &rustc).with_context(|| {
            format!("rust-src of rustc {} is missing: run `cargo xtask setup`", rustc.release)
        })?;
        if !tools::BPF_LINKER.is_present(ws) {
            bail!("bpf-linker {} is missing: run `cargo xtask setup`", tools::BPF_LINKER.version);
        }
        Ok(Self { rustc, rust_src, linker: ws.tool("bpf-linker") })
    }

    fn versions(&self, ws: &Workspace) -> Result<Versions> {
        let lock = fs::read_to_string(ws.root.join("Cargo.lock"))?;
        Ok(Versions {
            rustc: format!("{} ({})", self.rustc.release, self.rustc.commit),
            bpf_linker: tools::BPF_LINKER.version.to_owned(),
            aya_ebpf: locked_version(&lock, "aya-ebpf").context("Cargo.lock has no aya-ebpf")?,
            core: hash_core(&self.rust_src.library)?,
            sources: source_hash::of_checkout(&ws.root)?,
        })
    }

    /// Compiles and links; returns the directory of the linker's output.
    ///
    /// A target directory of its own: the wrapped rustc would else invalidate everything the plain one compiled.
    fn compile(&self, ws: &Workspace) -> Result<PathBuf> {
        let target = ws.target.join("ebpf-build");
        let mut flags: Vec<String> = source_hash::RUSTC_FLAGS.map(str::to_owned).into();
        flags.push(format!("-Clinker={}", self.linker.display()));
        for (from, to) in self.remapped(ws, &target)? {
            flags.push(format!("--remap-path-prefix={}={to}", from.display()));
        }
        let mut cargo = run::cargo();
        cargo
            .args(["build", "--locked", "--quiet", "--release", "--package", "router-ebpf"])
            .args(OBJECTS.iter().flat_map(|name| ["--bin", name]))
            .args(["--target", TRIPLE, "-Zbuild-std=core", "--target-dir"])
            .arg(&target)
            .current_dir(&ws.root)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
            .envs(source_hash::PROFILE)
            .env_remove("RUSTFLAGS")
            .env_remove("RUSTC_WRAPPER")
            .env_remove("RUSTC_WORKSPACE_WRAPPER");
        if let Some(wrapper) = &self.rust_src.rustc_wrapper {
            cargo.env("RUSTC", wrapper);
        }
        run::show(&mut cargo).context("the BPF programs do not build")?;
        Ok(target.join(TRIPLE).join("release"))
    }

    /// Every directory whose name could get into debug information, with what to write there.
    fn remapped(&self, ws: &Workspace, target: &Path) -> Result<Vec<(PathBuf, String)>> {
        let cargo_home = cargo_home()?;
        let mut pairs = vec![
            (cargo_home.clone(), "/cargo".to_owned()),
            (self.rustc.sysroot.clone(), "/rustc".to_owned()),
            (ws.root.clone(), "/unlatch".to_owned()),
            (ws.target.clone(), "/target".to_owned()),
            (target.to_path_buf(), "/target".to_owned()),
            (self.rust_src.library.clone(), "/rustc/library".to_owned()),
        ];
        // The name of a registry's directory depends on the mirror in use.
        if let Ok(entries) = fs::read_dir(cargo_home.join("registry/src")) {
            for entry in entries {
                pairs.push((entry?.path(), "/cargo/registry".to_owned()));
            }
        }
        // rustc takes the last match, and one may lie in another: the most special comes last.
        pairs.sort_by_key(|(from, _)| from.components().count());
        Ok(pairs)
    }
}

fn cargo_home() -> Result<PathBuf> {
    if let Some(home) = env::var_os("CARGO_HOME") {
        return Ok(PathBuf::from(home));
    }
    Ok(PathBuf::from(env::var_os("HOME").context("neither CARGO_HOME nor HOME is set")?).join(".cargo"))
}

/// The hash of the library sources that `-Zbuild-std=core` compiles.
fn hash_core(library: &Path) -> Result<String> {
    let mut hash = Fnv::new();
    for part in ["core", "compiler-builtins", "stdarch/crates/core_arch", "portable-simd/crates/core_simd"] {
        hash_tree(&mut hash, library, &library.join(part))?;
    }
    Ok(hash.hex())
}

fn hash_tree(hash: &mut Fnv, root: &Path, dir: &Path) -> Result<()> {
    let entries = fs::read_dir(dir).with_context(|| format!("rust-src lacks {}", dir.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        if path.is_dir() {
            hash_tree(hash, root, &path)?;
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "toml") {
            hash.part(path.strip_prefix(root)?.to_string_lossy().as_bytes());
            hash.part(&fs::read(&path)?);
        }
    }
    Ok(())
}

fn locked_version(lock: &str, name: &str) -> Option<String> {
    let entry = lock.split("[[package]]").find(|entry| entry.contains(&format!("name = \"{name}\"\n")))?;
    let version = entry.lines().find_map(|line| line.strip_prefix("version = \""))?;
    Some(version.trim_end_matches('"').to_owned())
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    !needle.is_empty() && haystack.windows(needle.len()).any(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_of_the_very_crate() {
        let lock = "[[package]]\nname = \"aya-ebpf-cty\"\nversion = \"0.3.0\"\n\n[[package]]\nname = \"aya-ebpf\"\nversion = \"0.2.1\"\n";
        assert_eq!(locked_version(lock, "aya-ebpf").as_deref(), Some("0.2.1"));
        assert_eq!(locked_version(lock, "aya"), None);
    }

    #[test]
    fn a_path_in_the_object_is_found() {
        assert!(contains(b"..\0/some/x/a.rs\0", b"/some/x"));
        assert!(!contains(b"..\0/unlatch/a.rs\0", b"/some/x"));
        assert!(!contains(b"anything", b""));
    }
}
