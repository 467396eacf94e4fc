//! A private apt: reads Debian's archive with lists, cache and sources of its own, so that fetching one file
//! needs no root and the system's apt does not change.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::run;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
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
        run::retry(3, "apt-get update", || run::capture(apt.command("apt-get").args(["-qq", "update"])))
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

    /// Downloads one package of an exact version and unpacks it into `into`.
    ///
    /// # Errors
    /// When the download or dpkg fails.
    pub(crate) fn unpack(&self, package: &str, version: &str, into: &Path) -> Result<()> {
        let wanted = format!("{package}={version}");
        let mut download = self.command("apt-get");
        download.args(["-qq", "download", &wanted]).current_dir(&self.dir);
        run::retry(3, &wanted, || run::capture(&mut download))?;
        let deb = fs::read_dir(&self.dir)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .with_context(|| format!("apt-get left no file of {wanted}"))?;
        run::capture(Command::new("dpkg-deb").arg("--extract").arg(&deb).arg(into))?;
        Ok(())
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
}
