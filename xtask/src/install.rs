//! `install`: the binary, the systemd unit and its user, and an example configuration.
//!
//! Copies files and nothing else: it enables no service and makes no user, but prints the commands that do.
//! Invariant: a configuration that is already there is left alone.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::build::{self, Profile};
use crate::paths::Workspace;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where the program will run from; DESTDIR in the environment is put before it, for packagers
    #[arg(long, value_name = "P", default_value = "/usr/local")]
    prefix: PathBuf,
}

/// Whether a file of the user's may be replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Existing {
    Replace,
    Keep,
}

/// The verb.
///
/// # Errors
/// When the router does not build or a file cannot be written.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<()> {
    let prefix = std::path::absolute(&args.prefix)?;
    let destdir = env::var_os("DESTDIR").map(PathBuf::from).unwrap_or_default();
    let config = config_place(&prefix);
    let binary = build::router(ws, Profile::Release)?;
    let packaged = |name: &str| -> Result<Vec<u8>> {
        let path = ws.root.join("packaging").join(name);
        fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let unit = fill_in(&String::from_utf8(packaged("unlatch.service")?)?, &prefix, &config);

    let put = |bytes: &[u8], place: &Path, mode: u32, existing: Existing| {
        write(&below(&destdir, place), bytes, mode, existing)
    };
    put(&fs::read(&binary)?, &prefix.join("bin/unlatch"), 0o755, Existing::Replace)?;
    put(unit.as_bytes(), &prefix.join("lib/systemd/system/unlatch.service"), 0o644, Existing::Replace)?;
    put(
        &packaged("unlatch.sysusers")?,
        &prefix.join("lib/sysusers.d/unlatch.conf"),
        0o644,
        Existing::Replace,
    )?;
    let example = packaged("unlatch.toml")?;
    put(&example, &prefix.join("share/doc/unlatch/unlatch.toml"), 0o644, Existing::Replace)?;
    let alerts = packaged("alerts.yml")?;
    put(&alerts, &prefix.join("share/doc/unlatch/alerts.yml"), 0o644, Existing::Replace)?;
    if let Ok(readme) = fs::read(ws.root.join("README.md")) {
        put(&readme, &prefix.join("share/doc/unlatch/README.md"), 0o644, Existing::Replace)?;
    }
    put(&example, &config, 0o644, Existing::Keep)?;
    println!("next: edit {}, then as root", config.display());
    println!("  systemd-sysusers && systemctl daemon-reload && systemctl enable --now unlatch");
    Ok(())
}

/// `/etc` for a distribution's prefix, as the hierarchy standard has it, else `etc` below the prefix.
fn config_place(prefix: &Path) -> PathBuf {
    let etc = if prefix == Path::new("/usr") { PathBuf::from("/etc") } else { prefix.join("etc") };
    etc.join("unlatch/unlatch.toml")
}

fn fill_in(unit: &str, prefix: &Path, config: &Path) -> String {
    unit.lines()
        .filter(|line| !line.starts_with("# @PREFIX@"))
        .map(|line| line.replace("@PREFIX@", &prefix.display().to_string()))
        .map(|line| line.replace("@CONFIG@", &config.display().to_string()) + "\n")
        .collect()
}

/// `place`, which is absolute, below `destdir`.
fn below(destdir: &Path, place: &Path) -> PathBuf {
    if destdir.as_os_str().is_empty() {
        return place.to_path_buf();
    }
    destdir.join(place.strip_prefix("/").unwrap_or(place))
}

/// Writes beside the place and renames, so that a running binary can be replaced.
fn write(place: &Path, bytes: &[u8], mode: u32, existing: Existing) -> Result<()> {
    if existing == Existing::Keep && place.exists() {
        println!("kept {}", place.display());
        return Ok(());
    }
    let dir = place.parent().context("invariant: a place to install to is in a directory")?;
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let new = place.with_extension("new");
    fs::write(&new, bytes).with_context(|| format!("cannot write {}", new.display()))?;
    fs::set_permissions(&new, fs::Permissions::from_mode(mode))?;
    fs::rename(&new, place)?;
    println!("{}", place.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_has_its_configuration_in_etc() {
        assert_eq!(config_place(Path::new("/usr")), Path::new("/etc/unlatch/unlatch.toml"));
        assert_eq!(config_place(Path::new("/usr/local")), Path::new("/usr/local/etc/unlatch/unlatch.toml"));
    }

    #[test]
    fn destdir_comes_before_the_prefix_but_not_into_the_unit() {
        assert_eq!(below(Path::new("/d"), Path::new("/usr/bin/x")), Path::new("/d/usr/bin/x"));
        assert_eq!(below(Path::new(""), Path::new("/usr/bin/x")), Path::new("/usr/bin/x"));
        let unit =
            fill_in("# @PREFIX@ note\nExecStart=@PREFIX@/bin/u @CONFIG@", Path::new("/p"), Path::new("/c"));
        assert_eq!(unit, "ExecStart=/p/bin/u /c\n");
    }

    #[test]
    fn an_existing_configuration_is_kept() {
        let place = env::temp_dir().join(format!("unlatch-install-{}", std::process::id()));
        fs::write(&place, "mine").unwrap();
        write(&place, b"example", 0o644, Existing::Keep).unwrap();
        assert_eq!(fs::read(&place).unwrap(), b"mine");
        write(&place, b"new", 0o755, Existing::Replace).unwrap();
        assert_eq!(fs::read(&place).unwrap(), b"new");
        fs::remove_file(place).unwrap();
    }
}
