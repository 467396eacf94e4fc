//! `unlatch agent`: the engine-host view, until it is told to stop.
//!
//! Owns the flags, the life of the process and its admin listener; counting is `account::local`'s. It needs no router.
//! Standard output gets one line, `listening on http://ADDR`, once all is attached. On SIGINT and SIGTERM it takes its
//! programs and pins off.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use router_common::inband::MAX_PEERS;
use router_common::limits::MAX_LOCAL_PORTS;

use super::output;
use super::pins::PinArgs;
use super::status::UNAVAILABLE;
use crate::account::Hook;
use crate::account::local::{Local, LocalOptions};
use crate::cli::EXIT_USAGE;
use crate::edge::Prefix;
use crate::observe::agent;
use crate::shutdown::Signals;

/// Count what all clients have in flight at engines of this host
#[derive(Args, Clone, Debug)]
pub struct AgentArgs {
    /// Ports the engines listen on
    #[arg(
        long = "port",
        value_name = "PORT",
        required = true,
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..),
        env = "UNLATCH_AGENT_PORT"
    )]
    ports: Vec<u16>,
    /// Where /metrics and /status are served; port 0 takes a free one
    #[arg(long, value_name = "ADDR", env = "UNLATCH_AGENT_ADMIN_LISTEN", default_value = "127.0.0.1:8003")]
    admin_listen: SocketAddr,
    /// Tell the peers of --to on each packet what the engine has in flight, as a TCP option (routers hear it)
    #[arg(long, env = "UNLATCH_AGENT_IN_BAND", requires = "to")]
    in_band: bool,
    /// in-band only: whom to tell, prefixes like 10.0.0.0/8 or fd00::/8
    #[arg(
        long,
        value_name = "PREFIX",
        value_delimiter = ',',
        env = "UNLATCH_AGENT_TO",
        requires = "in_band"
    )]
    to: Vec<Prefix>,
    #[command(flatten)]
    pins: PinArgs,
    /// The cgroup whose engines are seen [default: all of the host]
    #[arg(long, value_name = "PATH", env = "UNLATCH_KERNEL_CGROUP")]
    kernel_cgroup: Option<PathBuf>,
    /// What the programs attach to: a cgroup, or devices (tcx, Linux 6.6) where that is out of reach
    #[arg(long, value_name = "HOOK", env = "UNLATCH_KERNEL_HOOK", default_value = "cgroup")]
    kernel_hook: HookArg,
    /// With --kernel-hook tcx: network devices at which the engines are
    #[arg(
        long = "kernel-dev",
        value_name = "IF",
        value_delimiter = ' ',
        env = "UNLATCH_KERNEL_DEV",
        required_if_eq("kernel_hook", "tcx")
    )]
    kernel_devs: Vec<String>,
}

/// What programs attach to.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum HookArg {
    /// A cgroup
    Cgroup,
    /// Network devices
    Tcx,
}

impl AgentArgs {
    /// The ports once each, in order.
    fn ports(&self) -> Vec<u16> {
        let mut ports: Vec<u16> = Vec::new();
        for &port in &self.ports {
            if !ports.contains(&port) {
                ports.push(port);
            }
        }
        ports
    }
}

/// Counts until a signal. Exit codes: 0 after that; 64 too many ports; 69 could not bind or attach.
///
/// # Errors
/// The runtime or the signal handlers cannot be set up, or standard output is full.
pub fn run(args: &AgentArgs) -> anyhow::Result<ExitCode> {
    let ports = args.ports();
    if ports.len() > MAX_LOCAL_PORTS {
        output::tell(format_args!("unlatch agent: at most {MAX_LOCAL_PORTS} ports, not {}", ports.len()));
        return Ok(ExitCode::from(EXIT_USAGE));
    }
    if args.to.len() > MAX_PEERS {
        output::tell(format_args!("unlatch agent: at most {MAX_PEERS} prefixes, not {}", args.to.len()));
        return Ok(ExitCode::from(EXIT_USAGE));
    }
    let hook = match args.kernel_hook {
        HookArg::Cgroup => Hook::Cgroup(args.kernel_cgroup.clone()),
        HookArg::Tcx if args.in_band => {
            output::tell(format_args!("unlatch agent: --in-band needs --kernel-hook cgroup"));
            return Ok(ExitCode::from(EXIT_USAGE));
        }
        HookArg::Tcx => Hook::Tcx(args.kernel_devs.clone()),
    };
    let options = LocalOptions {
        pin_dir: args.pins.pin_dir.clone(),
        hook,
        ports,
        tell: args.to.iter().map(|prefix| prefix.parts()).collect(),
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("start a runtime")?;
    runtime.block_on(serve(args.admin_listen, &options))
}

async fn serve(admin: SocketAddr, options: &LocalOptions) -> anyhow::Result<ExitCode> {
    // Before anything is attached, so that a signal sent from then on takes it off.
    let mut signals = Signals::new().context("handle signals")?;
    let listener = match tokio::net::TcpListener::bind(admin).await {
        Ok(listener) => listener,
        Err(error) => return Ok(refuse(format_args!("cannot listen on {admin}: {error}"))),
    };
    let local = match Local::open(options) {
        Ok(local) => Arc::new(local),
        Err(error) => return Ok(refuse(error)),
    };
    if let Some(why) = local.not_telling() {
        output::tell(format_args!("unlatch agent: counting, but nobody is told in band: {why}"));
    }
    let said = match listener.local_addr() {
        Ok(addr) => output::answer(&format!("listening on http://{addr}\n")),
        Err(error) => Err(error.into()),
    };
    if said.is_ok() {
        let source = Arc::clone(&local);
        // Dropped with the signal: the listener closes, and no answer reads the maps any more.
        tokio::select! {
            () = signals.next() => {}
            served = agent::serve(listener, move || source.rows()) => {
                if let Err(error) = served {
                    output::tell(format_args!("unlatch agent: cannot answer: {error}"));
                }
            }
            () = sweep(&local), if local.needs_sweeping() => {}
        }
    }
    if let Err(error) = local.take_off() {
        return Ok(refuse(error));
    }
    said.map(|()| ExitCode::SUCCESS)
}

/// Sweeps every second for as long as it is polled.
async fn sweep(local: &Arc<Local>) {
    let mut ticks = tokio::time::interval(std::time::Duration::from_secs(1));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let local = Arc::clone(local);
        let swept = tokio::task::spawn_blocking(move || local.sweep()).await;
        if let Ok(Err(reason)) = swept {
            output::tell(format_args!("unlatch agent: what goes unseen stays counted: {reason}"));
            // It will not be another time either.
            return std::future::pending().await;
        }
    }
}

fn refuse(why: impl std::fmt::Display) -> ExitCode {
    output::tell(format_args!("unlatch agent: {why}"));
    ExitCode::from(UNAVAILABLE)
}
