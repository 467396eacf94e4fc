//! A Python with the OpenAI SDK, for the tests that drive real engines with a real client.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::paths::Workspace;
use crate::run;
use crate::setup::{Outcome, debian};

/// The SDK as checked; another version may see other facts.
const VERSION: &str = "3.57.0";

/// Debian's Python, without which there is no virtual environment.
const PYTHON: &[debian::Wanted] = &[("python3", "python3-venv")];

/// The client scripts; without them nobody needs the SDK.
pub(crate) fn scripts(ws: &Workspace) -> PathBuf {
    ws.root.join("../shared/bench/clients")
}

/// The interpreter of the environment.
pub(crate) fn python(ws: &Workspace) -> PathBuf {
    ws.tools().join("openai-sdk/bin/python")
}

/// Whether the interpreter starts and has the SDK.
pub(crate) fn is_present(ws: &Workspace) -> bool {
    // Reads the package's metadata: importing the SDK takes seconds.
    let ask = "import importlib.metadata as m; print(m.version('openai'))";
    run::capture(Command::new(python(ws)).args(["-c", ask])).is_ok_and(|version| version.trim() == VERSION)
}

/// Makes the environment unless it is there, or nobody needs it.
///
/// # Errors
/// No Python, or PyPI cannot be reached.
pub(crate) fn ensure(ws: &Workspace) -> Result<Outcome> {
    if !scripts(ws).is_dir() {
        return Ok(Outcome::Present("not needed: no ../shared/bench/clients".to_owned()));
    }
    if is_present(ws) {
        return Ok(Outcome::Present(format!("{VERSION} {}", ws.show(&python(ws)))));
    }
    debian::ensure(PYTHON)?;
    let folder = ws.tools().join("openai-sdk");
    let venv = || run::capture(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder));
    venv().context("Python cannot make a virtual environment: `apt-get install python3-venv` as root")?;
    let package = format!("openai=={VERSION}");
    run::retry(3, "pip", || {
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", &package];
        run::capture(Command::new(python(ws)).args(pip))
    })
    .with_context(|| format!("PyPI must be reachable for `pip install {package}`"))?;
    anyhow::ensure!(is_present(ws), "{package} was installed but is not found");
    Ok(Outcome::Brought(format!("installed {package} below {}", ws.show(&folder))))
}
