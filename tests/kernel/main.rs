//! Tier 3: the real kernel and real sockets. Needs root, a cgroup2 mount and the right to mount a BPF file system.
//!
//! Reading order: [`sandbox`] (each case in a process, cgroup and mount namespace of its own), [`world`] (backends
//! and accounts to test with), then the cases: [`connections`], [`many`], [`memory`] and [`cost`], [`phases`],
//! [`phase_ends`], [`phase_limits`], [`ends`] (the matrix from both sides), [`truth`] with [`shared`], [`suspect`],
//! [`slots`], [`rows`], [`pins`], [`places`], [`detach`], [`reconcile`], [`seed`], [`restart`], [`upgrade`],
//! [`commands`], [`degrade`], [`logs`], [`router_process`], [`program`] and [`serving`] (the built program and its
//! output), [`routers`], [`permissions`], [`lost`] and [`kills`], [`tcx`] and [`tcx_ends`] (programs at devices),
//! [`agent`] (the engine's host), [`agent_tcx`], [`agent_process`], [`inband`] and [`inband_hosts`], [`edge`] with
//! [`hosts`] (the edge guard, between two network namespaces), [`edge_life`], [`edge_process`], and [`late_ends`] over
//! [`wire`] (a network that holds packets back), and [`warm`] (a restart with a state).
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
mod cost;
mod degrade;
mod detach;
mod edge;
mod edge_life;
mod edge_process;
mod ends;
mod hosts;
mod inband;
mod inband_hosts;
mod kills;
mod late_ends;
mod logs;
mod lost;
mod many;
mod memory;
mod missed;
mod permissions;
mod phase_ends;
mod phase_limits;
mod phases;
mod pins;
mod places;
mod program;
mod reconcile;
mod resent;
mod restart;
mod router_process;
mod routers;
mod rows;
mod sandbox;
mod seed;
mod serving;
mod shared;
mod slots;
mod suspect;
mod tcx;
mod tcx_ends;
mod truth;
mod upgrade;
mod warm;
mod wire;
mod world;
