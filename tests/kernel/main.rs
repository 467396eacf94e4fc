//! Tier 3: the real kernel and real sockets. Needs root, a cgroup2 mount and the right to mount a BPF file system.
//!
//! Reading order: [`sandbox`] (each case in a process, cgroup and mount namespace of its own), [`world`] (backends
//! and accounts to test with), then the cases: [`connections`], [`phases`], [`phase_ends`], [`phase_limits`], [`truth`], [`slots`], [`rows`], [`seed`],
//! [`pins`], [`upgrade`], [`commands`], [`degrade`], [`logs`], [`router_process`] (the built program),
//! [`tcx`] and [`tcx_ends`] (programs at devices), [`agent`] (the engine's host), [`agent_tcx`], [`agent_process`], [`edge`] with [`hosts`] (the edge guard,
//! between two network namespaces).
//! A case that cannot run prints `SKIP <name>: <reason>`. Invariant: a case leaves no program, pin, mount, cgroup
//! or process behind, also when it panics: all hangs on the mount namespace and the cgroup, which go with it.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and helpers talk on stdout"
)]

mod agent;
mod agent_process;
mod agent_tcx;
mod commands;
mod connections;
mod degrade;
mod edge;
mod hosts;
mod logs;
mod phase_ends;
mod phase_limits;
mod phases;
mod pins;
mod router_process;
mod rows;
mod sandbox;
mod seed;
mod slots;
mod tcx;
mod tcx_ends;
mod truth;
mod upgrade;
mod world;
