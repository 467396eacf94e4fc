//! The running rustc: its version, its sysroot, and which host it is for.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::run;

/// The rustc that cargo uses here.
#[derive(Clone, Debug)]
pub(crate) struct Rustc {
    /// As in `1.95.0`.
    pub(crate) release: String,
    /// The commit, or `unknown` for a distribution's build without one.
    pub(crate) commit: String,
    /// The host triple.
    pub(crate) host: String,
    pub(crate) sysroot: PathBuf,
}

impl Rustc {
    /// Asks rustc.
    ///
    /// # Errors
    /// When there is none, or it answers in another form.
    pub(crate) fn find() -> Result<Self> {
        let text = run::capture(Command::new("rustc").arg("-vV"))?;
        let sysroot = run::capture(Command::new("rustc").args(["--print", "sysroot"]))?;
        let field = |name| field(&text, name).with_context(|| format!("`rustc -vV` prints no {name}"));
        Ok(Self {
            release: field("release")?,
            commit: field("commit-hash")?,
            host: field("host")?,
            sysroot: PathBuf::from(sysroot.trim()),
        })
    }
}

fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(": ")?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_read_by_its_whole_name() {
        let text = "rustc 1.95.0 (59807616e 2026-04-14)\ncommit-hash: 5980\ncommit-date: x\nhost: h\n";
        assert_eq!(field(text, "commit-hash").as_deref(), Some("5980"));
        assert_eq!(field(text, "commit"), None);
    }
}
