//! What made a BPF object: the compiler, the linker, the sources of `core`, and the crate's own sources.
//!
//! Kept beside the committed object, so that `ebpf --check` knows whether this machine can repeat the build.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use toml::Table;

/// The contents of `router-ebpf/object/versions.toml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    /// Version and commit, as in `1.95.0 (59807616e…)`.
    pub(crate) rustc: String,
    pub(crate) bpf_linker: String,
    pub(crate) aya_ebpf: String,
    /// Hash of the library sources that are compiled in: a distribution may patch them.
    pub(crate) core: String,
    /// [`crate::source_hash::of_checkout`].
    pub(crate) sources: String,
}

impl Versions {
    /// Reads a recorded file.
    ///
    /// # Errors
    /// When it cannot be read or lacks a key.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("in {}", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let table: Table = text.parse()?;
        let key = |name: &str| {
            let value = table.get(name).and_then(|value| value.as_str());
            value.map(str::to_owned).with_context(|| format!("no text `{name}`"))
        };
        Ok(Self {
            rustc: key("rustc")?,
            bpf_linker: key("bpf_linker")?,
            aya_ebpf: key("aya_ebpf")?,
            core: key("core")?,
            sources: key("sources")?,
        })
    }

    pub(crate) fn to_toml(&self) -> String {
        format!(
            "# What made the objects beside it. Written by `cargo xtask ebpf --commit`.\n\
             rustc = \"{}\"\nbpf_linker = \"{}\"\naya_ebpf = \"{}\"\ncore = \"{}\"\nsources = \"{}\"\n",
            self.rustc, self.bpf_linker, self.aya_ebpf, self.core, self.sources
        )
    }

    /// The first tool that differs, as a sentence; `None` when a rebuild must give the same bytes.
    pub(crate) fn tool_difference(&self, here: &Self) -> Option<String> {
        let pairs = [
            ("rustc", &self.rustc, &here.rustc),
            ("bpf-linker", &self.bpf_linker, &here.bpf_linker),
            ("aya-ebpf", &self.aya_ebpf, &here.aya_ebpf),
            ("the source of core", &self.core, &here.core),
        ];
        let (name, theirs, ours) = pairs.into_iter().find(|(_, theirs, ours)| theirs != ours)?;
        Some(format!("it was made with {name} {theirs}, here is {ours}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Versions {
        let [rustc, bpf_linker, aya_ebpf, core, sources] = ["r", "l", "a", "c", "s"].map(str::to_owned);
        Versions { rustc, bpf_linker, aya_ebpf, core, sources }
    }

    #[test]
    fn what_is_written_is_read_back() {
        assert_eq!(Versions::parse(&sample().to_toml()).unwrap(), sample());
    }

    #[test]
    fn a_missing_key_is_named() {
        let error = Versions::parse("rustc = \"1\"").unwrap_err();
        assert!(error.to_string().contains("bpf_linker"), "{error}");
    }

    #[test]
    fn another_tool_is_a_reason_not_to_compare_but_other_sources_are_not() {
        let other = Versions { bpf_linker: "l2".into(), ..sample() };
        assert_eq!(sample().tool_difference(&other).unwrap(), "it was made with bpf-linker l, here is l2");
        assert_eq!(sample().tool_difference(&Versions { sources: "t".into(), ..sample() }), None);
    }
}
