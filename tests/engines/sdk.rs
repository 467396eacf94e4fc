//! The OpenAI Python SDK: the compatibility script straight at an engine, then through the router.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::llama::Pair;

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
    let (python, script) = match tools() {
        Ok(tools) => tools,
        Err(reason) => {
            println!("SKIP {name}: {reason}");
            return;
        }
    };
    let Some(pair) = Pair::start(name, |_| {}) else { return };
    let folder = tempfile::tempdir().unwrap();
    let baseline = folder.path().join("straight.json");
    let straight = run(&python, &script, pair.engines[0].addr, &baseline, None);
    let routed = run(&python, &script, pair.addr(), &folder.path().join("routed.json"), Some(&baseline));
    assert!(straight.len() >= 30, "the script ran: {straight:?}");
    assert_eq!(straight.len(), routed.len());
    for (before, after) in straight.iter().zip(&routed) {
        let check = before["name"].as_str().unwrap();
        let (was, is) = (before["verdict"].as_str().unwrap(), after["verdict"].as_str().unwrap());
        println!("{check}: {was} straight, {is} through the router");
        match was {
            "PASS" | "DIFF" if RACES.contains(&check) => assert_ne!(is, "FAIL", "{check} broke: {after}"),
            "PASS" | "DIFF" => assert!(matches!(is, "PASS" | "DIFF"), "{check} broke: {after}"),
            "FAIL" if REPAIRED.contains(&check) => {
                assert_eq!(is, "PASS", "{check} is to be repaired: {after}")
            }
            _ => {}
        }
    }
    for check in REPAIRED {
        assert!(routed.iter().any(|r| r["name"] == check && r["verdict"] == "PASS"), "{check} passes");
    }
}
