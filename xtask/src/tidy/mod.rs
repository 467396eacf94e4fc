//! `tidy`: rules of this repository that neither the compiler nor clippy knows.
//!
//! Reads the text of the checkout: who uses what (`rules`), and how it is written (`text`). Invariant: it needs no
//! build and no network, and a checkout that has passed is itself a test of xtask.

mod lexer;
mod rules;
mod text;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::paths::Workspace;

/// What people write; data in fixtures is kept as it came.
const WRITTEN: [&str; 7] = ["rs", "toml", "md", "py", "service", "sysusers", "yml"];

/// Something a rule has against a line.
#[derive(Clone, Debug)]
struct Finding {
    file: String,
    line: usize,
    text: String,
    is_error: bool,
}

impl Finding {
    fn error(file: &str, line: usize, text: String) -> Self {
        Self { file: file.to_owned(), line, text, is_error: true }
    }

    fn warning(file: &str, line: usize, text: String) -> Self {
        Self { is_error: false, ..Self::error(file, line, text) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}: {}{}",
            self.file,
            self.line,
            if self.is_error { "" } else { "warning: " },
            self.text
        )
    }
}

/// The verb.
///
/// # Errors
/// When a rule is broken; warnings are only printed.
pub(crate) fn run(ws: &Workspace) -> Result<()> {
    let findings = check(&ws.root)?;
    for finding in &findings {
        println!("{finding}");
    }
    let errors = findings.iter().filter(|finding| finding.is_error).count();
    if errors > 0 {
        bail!("tidy: {errors} broken rules");
    }
    println!("tidy: fine, {} warnings", findings.len());
    Ok(())
}

/// Everything found in the checkout at `root`.
fn check(root: &Path) -> Result<Vec<Finding>> {
    let mut files = Vec::new();
    walk(root, &mut files)?;
    let mut findings = Vec::new();
    for path in files {
        let file = path.strip_prefix(root)?.to_string_lossy().into_owned();
        let source = fs::read_to_string(&path).with_context(|| format!("{file} is not text"))?;
        findings.extend(text::check(&file, &source));
        if file.ends_with(".rs") {
            findings.extend(rules::check(&file, &source));
        }
    }
    let crates = top_level_crates(root)?;
    for document in ["README.md", "ARCHITECTURE.md"] {
        if let Ok(source) = fs::read_to_string(root.join(document)) {
            findings.extend(text::unnamed_crates(document, &source, &crates));
        }
    }
    Ok(findings)
}

/// The written files below `dir`, but not what a build or a tool made.
fn walk(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let mut entries = fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_symlink() || name == "target" || name == ".git" {
            continue;
        }
        if path.is_dir() {
            walk(&path, files)?;
        } else if name == "run"
            || path.extension().is_some_and(|kind| WRITTEN.iter().any(|written| kind == *written))
        {
            files.push(path);
        }
    }
    Ok(())
}

/// Directories of the root that are crates.
fn top_level_crates(root: &Path) -> Result<Vec<String>> {
    let mut crates = Vec::new();
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        if entry.path().join("Cargo.toml").is_file() {
            crates.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    crates.sort();
    Ok(crates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_checkout_is_tidy() {
        let ws = Workspace::find().unwrap();
        let errors: Vec<_> =
            check(&ws.root).unwrap().into_iter().filter(|finding| finding.is_error).collect();
        let list: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert!(list.is_empty(), "{}", list.join("\n"));
    }

    #[test]
    fn a_checkout_with_a_broken_rule_is_not() {
        let root = std::env::temp_dir().join(format!("unlatch-tidy-{}", std::process::id()));
        for (file, text) in [
            ("router-user/src/parse/json.rs", "use crate::forward;\n"),
            ("router-user/Cargo.toml", "[package] \n"),
            ("README.md", "nothing yet\n"),
            ("target/x.rs", "blank \n"),
            ("fixtures/data.json", "blank \n"),
        ] {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let findings = check(&root).unwrap();
        fs::remove_dir_all(&root).unwrap();
        let files: Vec<_> = findings.iter().map(|finding| finding.file.as_str()).collect();
        assert_eq!(files, ["router-user/Cargo.toml", "router-user/src/parse/json.rs", "README.md"]);
    }
}
