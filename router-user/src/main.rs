//! `unlatch`: reads the command line and does what it says.

use std::io::Write;
use std::process::ExitCode;

use router_user::cli::{self, Cmd, EXIT_INTERNAL};
use router_user::commands::{agent, bpf, check, demo, edge, engine, replay, serve, status};

// Named so that it is linked: it takes the place of the system's `malloc`.
use mimalloc as _;

fn main() -> ExitCode {
    let cli = match cli::parse_or_exit_code() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let ended = match cli.command {
        Cmd::Serve(args) => Ok(serve::run(args)),
        Cmd::Demo(args) => demo::run(&args),
        Cmd::Engine(args) => engine::run(*args),
        Cmd::Replay(args) => replay::run(&args),
        Cmd::Check(args) => Ok(check::run(&args)),
        Cmd::Status(args) => status::run(&args),
        #[cfg(feature = "top")]
        Cmd::Top(args) => router_user::commands::top::run(&args),
        Cmd::Agent(args) => agent::run(&args),
        Cmd::Bpf(args) => bpf::run(&args),
        Cmd::Edge(args) => edge::run(&args),
    };
    ended.unwrap_or_else(|error| {
        // Nothing is left to do if stderr is closed.
        let _ = writeln!(std::io::stderr(), "unlatch: {error:#}");
        ExitCode::from(EXIT_INTERNAL)
    })
}
