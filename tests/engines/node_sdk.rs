//! The OpenAI Node SDK (fetch, undici): the compatibility script straight at an engine, then through the router.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::llama::{Pair, present};

const SCRIPT: &str = "openai_compat.mjs";

/// What must pass through the router whatever it does straight: an engine that closes after a stream meets the SDK's
/// next request now and then, and answers any model's name.
const BETTER: [&str; 2] = ["chat_stream_helper", "unknown_model"];

/// The script, and where its SDK is, or why there is none.
fn tools() -> Result<(PathBuf, PathBuf), String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/bench/clients").join(SCRIPT);
    if !script.is_file() {
        return Err(format!("no {SCRIPT} beside the checkout"));
    }
    let sdk = std::env::var_os("UNLATCH_SDK_NODE").map(PathBuf::from);
    let sdk = sdk.ok_or(
        "no Node with the openai SDK: cargo xtask setup installs it where there are node and npm, cargo xtask test \
         names it",
    )?;
    Ok((script, sdk))
}

/// Runs the script against `base`: the verdict of each check.
fn run(script: &Path, base: SocketAddr) -> BTreeMap<String, String> {
    let output = Command::new("node").arg(script).arg(format!("http://{base}")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    // Indented, so that nobody takes the script's skips for ours.
    text.lines().chain(errors.lines()).for_each(|line| println!("  {base}  {line}"));
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let verdicts = lines.filter(|words| matches!(words[..], ["PASS" | "FAIL" | "DIFF" | "SKIP", ..]));
    verdicts.map(|words| (words[1].to_owned(), words[0].to_owned())).collect()
}

/// Less is worse. What is skipped says nothing.
fn rank(verdict: &str) -> Option<u8> {
    ["FAIL", "DIFF", "PASS"].iter().position(|v| *v == verdict).map(|at| at as u8)
}

#[test]
fn the_node_sdk_sees_nothing_worse_through_the_router() {
    let name = "the_node_sdk_sees_nothing_worse_through_the_router";
    let Some((script, sdk)) = present(name, tools()) else { return };
    let Some(pair) = Pair::start(name, |_| {}) else { return };
    // Modules are looked for beside the script.
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().join(SCRIPT);
    std::fs::copy(script, &here).unwrap();
    symlink(sdk.join("node_modules"), folder.path().join("node_modules")).unwrap();
    let straight = run(&here, pair.engines[0].addr);
    let routed = run(&here, pair.addr());
    assert!(straight.len() >= 15, "the script ran: {straight:?}");
    assert!(straight.keys().eq(routed.keys()), "{straight:?} {routed:?}");
    for (check, was) in &straight {
        let is = &routed[check];
        match (rank(was), rank(is)) {
            (_, Some(is)) if BETTER.contains(&check.as_str()) => assert_eq!(is, 2, "{check} is to pass"),
            // A client's timeout of 30 ms may be met or not.
            (_, None) => assert_eq!(is, "SKIP", "{check}"),
            (was, Some(now)) => assert!(now >= was.unwrap_or(1), "{check}: {was:?} straight, {is} routed"),
        }
    }
}
