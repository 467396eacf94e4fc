//! The OpenAI SDK for Node, where there is a Node: for the test that drives real engines with it.
//!
//! Node itself is not installed: npm alone is hundreds of Debian packages. Without both the test says why it is
//! skipped.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::paths::{Workspace, find_program};
use crate::run;
use crate::setup::{Outcome, sdk};

/// The SDK as checked; another version may see other facts.
const VERSION: &str = "6.49.0";

/// The directory that holds `node_modules`.
pub(crate) fn folder(ws: &Workspace) -> PathBuf {
    ws.tools().join("openai-sdk-node")
}

/// Whether the SDK lies there, and there is a Node to run it.
pub(crate) fn is_present(ws: &Workspace) -> bool {
    let package = folder(ws).join("node_modules/openai/package.json");
    let version = format!("\"version\": \"{VERSION}\"");
    find_program("node").is_some() && fs::read_to_string(package).is_ok_and(|text| text.contains(&version))
}

/// Installs it unless it is there, or nobody needs it, or there is nothing to run it with.
///
/// # Errors
/// The npm registry cannot be reached.
pub(crate) fn ensure(ws: &Workspace) -> Result<Outcome> {
    if !sdk::scripts(ws).is_dir() {
        return Ok(Outcome::Present("not needed: no ../shared/bench/clients".to_owned()));
    }
    let folder = folder(ws);
    if is_present(ws) {
        return Ok(Outcome::Present(format!("{VERSION} {}", ws.show(&folder))));
    }
    if let Some(program) = ["node", "npm"].into_iter().find(|program| find_program(program).is_none()) {
        return Ok(Outcome::Present(format!("left out: no {program}, so its test will be skipped")));
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let package = format!("openai@{VERSION}");
    run::retry(3, "npm", || {
        let quiet = ["install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"];
        run::capture(Command::new("npm").args(quiet).arg(&folder).arg(&package))
    })
    .with_context(|| format!("the npm registry must be reachable for `npm install {package}`"))?;
    anyhow::ensure!(is_present(ws), "{package} was installed but is not found");
    Ok(Outcome::Brought(format!("installed {package} below {}", ws.show(&folder))))
}
