//! A private apt: reads Debian's archive with lists, cache and sources of its own, so that fetching
//! a file needs no root and the system's apt does not change.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::run;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// A list that cannot be fetched is an error only when asked for.
const UPDATE: [&str; 4] = ["-qq", "-o", "APT::Update::Error-Mode=any", "update"];
const DEFAULT_MIRROR: &str = "http://deb.debian.org/debian";

/// apt's state in a directory of ours.
pub(crate) struct PrivateApt {
    dir: PathBuf,
}

impl PrivateApt {
    /// Makes the state for one suite in `dir` and reads its package list.
    ///
    /// # Errors
    /// When apt or Debian's keyring is missing, or the mirror does not answer.
    pub(crate) fn new(dir: &Path, suite: &str) -> Result<Self> {
        if !Path::new(KEYRING).is_file() {
            bail!("no {KEYRING}: this needs Debian's apt");
        }
        for sub in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(sub))?;
        }
        fs::write(dir.join("status"), "")?;
        let mirror = system_mirror();
        fs::write(dir.join("sources.list"), format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n"))?;
        let apt = Self { dir: dir.to_path_buf() };
        run::retry(3, "apt-get update", || run::capture(apt.command("apt-get").args(UPDATE)))
            .with_context(|| format!("{mirror} {suite} cannot be read"))?;
        Ok(apt)
    }

    /// The versions of a package, as apt lists them.
    ///
    /// # Errors
    /// When apt-cache fails.
    pub(crate) fn versions(&self, package: &str) -> Result<Vec<String>> {
        Ok(parse_madison(&run::capture(self.command("apt-cache").args(["madison", package]))?))
    }

    /// The first package that this one depends on and whose name begins so.
    ///
    /// # Errors
    /// When apt-cache fails, as it does for an unknown package.
    pub(crate) fn dependency(&self, package: &str, prefix: &str) -> Result<Option<String>> {
        Ok(parse_depends(&run::capture(self.command("apt-cache").args(["depends", package]))?, prefix))
    }

    /// Downloads one package, by name or as `name=version`, and unpacks it into `into`.
    ///
    /// # Errors
    /// When the download or dpkg fails.
    pub(crate) fn unpack(&self, wanted: &str, into: &Path) -> Result<()> {
        let mut download = self.command("apt-get");
        download.args(["-qq", "download", wanted]).current_dir(&self.dir);
        run::retry(3, wanted, || run::capture(&mut download))?;
        extract_all(&self.dir, into)
    }

    /// Unpacks packages and all they need, down to libc, into `into`.
    ///
    /// # Errors
    /// When a download or dpkg fails.
    pub(crate) fn unpack_with_dependencies(&self, packages: &[&str], into: &Path) -> Result<()> {
        let mut download = self.command("apt-get");
        // The private state has nothing installed, so that all of it is wanted.
        download
            .args(["-qq", "--yes", "--no-install-recommends", "--download-only", "install"])
            .args(packages);
        run::retry(3, &packages.join(", "), || run::capture(&mut download))?;
        extract_all(&self.dir.join("cache/archives"), into)
    }

    fn command(&self, program: &str) -> Command {
        let at = |sub: &str| self.dir.join(sub).display().to_string();
        let mut command = Command::new(program);
        for option in [
            format!("Dir::Etc::sourcelist={}", at("sources.list")),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            "Dir::Etc::preferences=/dev/null".to_owned(),
            "Dir::Etc::preferencesparts=/dev/null".to_owned(),
            format!("Dir::State::lists={}", at("lists")),
            format!("Dir::State::status={}", at("status")),
            format!("Dir::Cache={}", at("cache")),
            "Dir::Cache::pkgcache=".to_owned(),
            "Dir::Cache::srcpkgcache=".to_owned(),
            "Acquire::Languages=none".to_owned(),
            // Else root's apt drops to a user that may not write here.
            "APT::Sandbox::User=".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        command
    }
}

/// Unpacks every package file of a directory, and removes them.
fn extract_all(from: &Path, into: &Path) -> Result<()> {
    let files = fs::read_dir(from)?.filter_map(|entry| Some(entry.ok()?.path()));
    let files: Vec<_> = files.filter(|path| path.extension().is_some_and(|kind| kind == "deb")).collect();
    anyhow::ensure!(!files.is_empty(), "apt-get left no package in {}", from.display());
    for file in files {
        run::capture(Command::new("dpkg-deb").arg("--extract").arg(&file).arg(into))?;
        fs::remove_file(&file)?;
    }
    Ok(())
}

/// The mirror that this machine's own apt uses for Debian, since another may not be reachable.
fn system_mirror() -> String {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
    }
    files.sort();
    let texts = files.iter().filter_map(|file| fs::read_to_string(file).ok());
    texts.into_iter().find_map(|text| mirror_in(&text)).unwrap_or_else(|| DEFAULT_MIRROR.to_owned())
}

/// The first address of a Debian archive in a sources file of either form. An archive's path ends in `/debian`;
/// `/debian-security` and other vendors' do not have the suite.
fn mirror_in(text: &str) -> Option<String> {
    let lines =
        text.lines().map(str::trim).filter(|line| line.starts_with("deb ") || line.starts_with("URIs:"));
    let mut addresses = lines.flat_map(str::split_whitespace).map(|word| word.trim_end_matches('/'));
    addresses.find(|word| word.contains("://") && word.ends_with("/debian")).map(str::to_owned)
}

fn parse_madison(text: &str) -> Vec<String> {
    text.lines().filter_map(|line| Some(line.split('|').nth(1)?.trim().to_owned())).collect()
}

fn parse_depends(text: &str, prefix: &str) -> Option<String> {
    let names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.into_iter().find(|name| name.starts_with(prefix)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_debians_archive_in_either_form() {
        let deb822 = "Types: deb\n# http://old/debian\nURIs: http://m.example/debian/\nSuites: bookworm\n";
        assert_eq!(mirror_in(deb822).as_deref(), Some("http://m.example/debian"));
        let one_line = "# deb http://no.example/debian x main\ndeb [arch=amd64] https://m.example/debian bookworm main\n";
        assert_eq!(mirror_in(one_line).as_deref(), Some("https://m.example/debian"));
        assert_eq!(
            mirror_in("deb http://m.example/debian-security x main\nURIs: https://v.example/apt\n"),
            None
        );
    }

    #[test]
    fn versions_are_the_second_column() {
        let text = "  rust-src | 1.97.1+dfsg1-1 | http://m x/main amd64 Packages\n rust-src | 1.95.0+dfsg1-2 | http://m\n";
        assert_eq!(parse_madison(text), ["1.97.1+dfsg1-1", "1.95.0+dfsg1-2"]);
        assert!(parse_madison("").is_empty());
    }

    #[test]
    fn a_dependency_is_found_by_its_beginning() {
        let text = "linux-image-7-cloud\n  Depends: linux-base\n |Depends: initramfs-tools\n  Depends: linux-binary-7-cloud\n  Conflicts: linux-image-7-unsigned\n";
        assert_eq!(parse_depends(text, "linux-binary-").as_deref(), Some("linux-binary-7-cloud"));
        assert_eq!(parse_depends(text, "linux-image-"), None, "a conflict is none");
    }
}
