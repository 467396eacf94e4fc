//! The OpenAI Python SDK: the compatibility script straight at an engine, then through the router.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::llama::{Pair, present};

/// What the engine gets wrong and the router repairs: the engine answers 500, so that SDKs try again.
const REPAIRED: [&str; 2] = ["bad_json", "empty_body"];

/// Checks that skip themselves when the engine is quick: a client timeout of 50 ms may or may not be met.
const RACES: [&str; 1] = ["sdk_timeout"];

/// The script and a Python that has the SDK, or why there is none.
fn tools() -> Result<(PathBuf, PathBuf), String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/bench/clients/openai_compat.py");
    if !script.is_file() {
        return Err("no openai_compat.py beside the checkout".into());
    }
    let python = std::env::var_os("UNLATCH_SDK_PYTHON").map(PathBuf::from);
    let python = python
        .ok_or("no Python with the openai SDK: cargo xtask setup makes one, cargo xtask test names it")?;
    Ok((python, script))
}

/// Runs the script against `base`; its results by name of check.
fn run(python: &Path, script: &Path, base: SocketAddr, out: &Path, compare: Option<&Path>) -> Vec<Value> {
    let mut command = Command::new(python);
    command.arg(script).arg(format!("http://{base}")).arg("--json").arg(out);
    if let Some(baseline) = compare {
        command.arg("--compare").arg(baseline);
    }
    let output = command.output().unwrap();
    let text = std::fs::read_to_string(out).unwrap_or_else(|e| {
        panic!("{e}: {}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    });
    serde_json::from_str::<Value>(&text).unwrap()["results"].as_array().unwrap().clone()
}

#[test]
fn the_sdk_sees_nothing_worse_through_the_router() {
    let name = "the_sdk_sees_nothing_worse_through_the_router";
    let Some((python, script)) = present(name, tools()) else { return };
    let Some(pair) = Pair::start(name, |_| {}) else { return };
    let folder = tempfile::tempdir().unwrap();
    let baseline = folder.path().join("straight.json");
    let straight = run(&python, &script, pair.engines[0].addr, &baseline, None);
    assert!(straight.len() >= 30, "the script ran: {straight:?}");
    let routed = || run(&python, &script, pair.addr(), &folder.path().join("routed.json"), Some(&baseline));
    let mut broken = worse(&straight, &routed());
    if !broken.is_empty() {
        // A slot of a busy engine may still be held when its answer is here: the next prompt then finds nothing cached,
        // with and without a router. What the router breaks is broken again.
        println!("once more: {broken:?}");
        let again = worse(&straight, &routed());
        broken.retain(|(check, _)| again.iter().any(|(name, _)| name == check));
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Checks that went worse through the router, or were to be repaired and were not, and what was said of them.
fn worse(straight: &[Value], routed: &[Value]) -> Vec<(String, String)> {
    assert_eq!(straight.len(), routed.len());
    let pairs = straight.iter().zip(routed).filter(|(before, after)| {
        let check = before["name"].as_str().unwrap();
        let (was, is) = (before["verdict"].as_str().unwrap(), after["verdict"].as_str().unwrap());
        println!("{check}: {was} straight, {is} through the router");
        if REPAIRED.contains(&check) {
            return is != "PASS";
        }
        match was {
            "PASS" | "DIFF" if RACES.contains(&check) => is == "FAIL",
            "PASS" | "DIFF" => !matches!(is, "PASS" | "DIFF"),
            _ => false,
        }
    });
    pairs.map(|(before, after)| (before["name"].as_str().unwrap().to_owned(), after.to_string())).collect()
}
