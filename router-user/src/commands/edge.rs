//! `unlatch edge deny|allow|list|limits`: the edge guard's rules, limits and counters, through its pins.
//!
//! Needs no running router, only that one made the pins (`serve --edge-dev`) and the right to open them.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use router_common::edge::EdgeLimits;
use serde_json::json;

use super::output;
use super::pins::PinArgs;
use super::status::UNAVAILABLE;
use crate::edge::view::{self, EdgeState, Kind};
use crate::edge::{EdgeError, Prefix};

/// The edge guard: which sources are dropped, and how fast the others may open connections
#[derive(Args, Clone, Debug)]
pub struct EdgeArgs {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    pins: PinArgs,
}

#[derive(Subcommand, Clone, Debug)]
enum Verb {
    /// Drop everything these sources send to guarded ports
    Deny(Prefixes),
    /// Neither drop nor limit these sources; of denied and allowed prefixes the longest decides
    Allow(Prefixes),
    /// Show devices, ports, rules, limits and counters
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show, or change at once, how fast a source may open connections; a router's start sets its configuration's
    Limits {
        /// Connections per second, up to 100000; 0: any number
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=EdgeLimits::MAX))]
        rate: Option<u64>,
        /// Connections at once after a pause, 1 to 100000
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=EdgeLimits::MAX))]
        burst: Option<u64>,
    },
}

#[derive(Args, Clone, Debug)]
struct Prefixes {
    /// Like 203.0.113.0/24, 2001:db8::/32, or an address
    #[arg(required = true, value_name = "PREFIX")]
    prefixes: Vec<Prefix>,
    /// Take the rule away instead
    #[arg(long)]
    remove: bool,
}

/// Shows or changes; exits 69 if that cannot be done.
///
/// # Errors
/// The answer cannot be written.
pub fn run(args: &EdgeArgs) -> anyhow::Result<ExitCode> {
    match answer(args) {
        Ok(text) => output::answer(&text).map(|()| ExitCode::SUCCESS),
        Err(error) => {
            output::tell(format_args!("unlatch edge: {error}"));
            Ok(ExitCode::from(UNAVAILABLE))
        }
    }
}

fn answer(args: &EdgeArgs) -> Result<String, EdgeError> {
    match &args.verb {
        Verb::Deny(prefixes) => change(args, prefixes, Kind::Deny),
        Verb::Allow(prefixes) => change(args, prefixes, Kind::Allow),
        Verb::List { json: false } => Ok(list(&view::state(&args.pins.pin_dir)?)),
        Verb::List { json: true } => Ok(format!("{:#}\n", as_json(&view::state(&args.pins.pin_dir)?))),
        Verb::Limits { rate, burst } => {
            Ok(format!("{}\n", limits(view::limit(&args.pins.pin_dir, *rate, *burst)?)))
        }
    }
}

fn change(
    args: &EdgeArgs,
    Prefixes { prefixes, remove }: &Prefixes,
    kind: Kind,
) -> Result<String, EdgeError> {
    let word = kind_word(kind == Kind::Deny);
    let mut text = String::new();
    for prefix in prefixes {
        let done = if !remove {
            view::add(&args.pins.pin_dir, *prefix, kind)?;
            ""
        } else if view::remove(&args.pins.pin_dir, *prefix, kind)? {
            "no longer "
        } else {
            "was not "
        };
        let _ = writeln!(text, "{prefix} {done}{word}");
    }
    Ok(text)
}

const fn kind_word(is_denied: bool) -> &'static str {
    if is_denied { "denied" } else { "allowed" }
}

fn limits(limits: EdgeLimits) -> String {
    match limits.rate {
        0 => "not limited".to_owned(),
        rate => format!("{rate} connections per second and source, {} at once", limits.burst),
    }
}

fn list(state: &EdgeState) -> String {
    let mut text = format!("pins      {}\n", state.path.display());
    for device in &state.devices {
        let _ = writeln!(text, "device    {} ({})", device.label(), device.mode.as_str());
    }
    if state.devices.is_empty() {
        text.push_str("device    none: nothing is dropped\n");
    }
    for port in &state.ports {
        let dead = if port.is_alive { "" } else { ", which is gone" };
        let _ = writeln!(text, "port      {} of pid {}{dead}", port.port, port.pid);
    }
    let _ = writeln!(text, "limits    {}", limits(state.limits));
    for rule in &state.rules {
        let from = if rule.is_configured { " (configuration)" } else { "" };
        let _ = writeln!(text, "{:<9} {}{from}", kind_word(rule.is_denied), rule.prefix);
    }
    for (verdict, count) in state.packets {
        let _ = writeln!(text, "packets   {:<12} {count}", verdict.as_str());
    }
    text
}

fn as_json(state: &EdgeState) -> serde_json::Value {
    let devices: Vec<_> = state
        .devices
        .iter()
        .map(|d| json!({"device": d.name(), "ifindex": d.id.ifindex, "mode": d.mode.as_str()}))
        .collect();
    let ports: Vec<_> =
        state.ports.iter().map(|p| json!({"port": p.port, "pid": p.pid, "alive": p.is_alive})).collect();
    let rules: Vec<_> = state
        .rules
        .iter()
        .map(|r| {
            json!({"prefix": r.prefix.to_string(), "rule": kind_word(r.is_denied), "configured": r.is_configured})
        })
        .collect();
    let packets: serde_json::Map<_, _> =
        state.packets.iter().map(|(verdict, n)| (verdict.as_str().to_owned(), json!(n))).collect();
    json!({
        "pins": state.path,
        "devices": devices,
        "ports": ports,
        "rules": rules,
        "limits": {"rate": state.limits.rate, "burst": state.limits.burst},
        "packets": packets,
    })
}
