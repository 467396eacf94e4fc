//! Exit codes of what cannot work, and which setting holds.

use std::net::TcpListener;
use std::process::Command;

use crate::support::{ANY, Process, free_addr, get, run, unlatch};

/// The policy that a router says it has.
fn policy(admin: &str) -> String {
    let status: serde_json::Value = serde_json::from_str(&get(admin, "/status")).unwrap();
    status["policy"].as_str().unwrap().to_owned()
}

#[test]
fn wrong_usage_is_64_and_names_it() {
    for (args, named) in [
        (&["serve", "--no-such-flag"][..], "--no-such-flag"),
        (&["serve", "--workers", "none"], "workers"),
        (&["serve", "--config", "/nowhere/unlatch.toml"], "/nowhere/unlatch.toml"),
        (&["serve", "--backends-file", "/nowhere/b.yaml"], "/nowhere/b.yaml"),
        (&["serve", "--backends-file", "/etc/hosts"], "/etc/hosts"),
        (&["fly"], "fly"),
    ] {
        let (code, stderr) = run(args);
        assert_eq!(code, Some(64), "{args:?}: {stderr}");
        assert!(stderr.contains(named), "{args:?}: {stderr}");
    }
}

#[test]
fn a_port_in_use_is_69_and_names_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let (code, stderr) = run(&[
        "serve",
        "--kernel",
        "off",
        "--gossip-dir",
        "off",
        "--listen",
        &addr,
        "--admin-listen",
        "127.0.0.1:0",
    ]);
    assert_eq!(code, Some(69), "{stderr}");
    assert!(stderr.contains(&addr), "{stderr}");
}

#[test]
fn a_flag_beats_the_environment_which_beats_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("unlatch.toml");
    std::fs::write(&file, "policy = \"random\"\nseed = 1\n").unwrap();
    let by_file = ["serve", ANY, "--config", file.to_str().unwrap()];
    let by_flag = [&by_file[..], &["--policy", "least-in-flight"]].concat();
    let admin = free_addr("127.77.0.3");
    let of = |command: &mut Command| {
        let _process = Process::serve_with(&admin, command);
        policy(&admin)
    };
    assert_eq!(of(&mut unlatch(&by_file)), "random");
    assert_eq!(of(unlatch(&by_file).env("UNLATCH_POLICY", "")), "random", "an empty variable is none");
    assert_eq!(of(unlatch(&by_file).env("UNLATCH_POLICY", "round-robin")), "round-robin");
    assert_eq!(of(unlatch(&by_flag).env("UNLATCH_POLICY", "round-robin")), "least-in-flight");

    let wrong = unlatch(&by_file).env("UNLATCH_POLICY", "fastest").output().unwrap();
    let stderr = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(wrong.status.code() == Some(64) && stderr.contains("UNLATCH_POLICY"), "{stderr}");
}

#[test]
fn a_demo_of_a_trace_that_is_not_there_is_wrong_usage() {
    let (code, stderr) = run(&["demo", "--real", "--trace", "/nowhere/trace.jsonl"]);
    assert!(code == Some(64) && stderr.contains("/nowhere/trace.jsonl"), "{stderr}");
}
