//! The command line: subcommands, and the flags of `serve`, which come from the table of keys.
//!
//! It reads the arguments and, through clap, the environment; nothing else in the program does. Wrong usage ends
//! with exit code 64.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, Parser, Subcommand};

use crate::commands::agent::AgentArgs;
use crate::commands::bpf::BpfArgs;
use crate::commands::check::CheckArgs;
use crate::commands::demo::DemoArgs;
use crate::commands::edge::EdgeArgs;
use crate::commands::engine::EngineArgs;
use crate::commands::replay::ReplayArgs;
use crate::commands::status::StatusArgs;
#[cfg(feature = "top")]
use crate::commands::top::TopArgs;
use crate::config::document::Notation;
use crate::config::production_stack::dynamic;
use crate::config::production_stack::{self, FLAGS, Flag, Given, Takes};
use crate::config::resolve::{Host, resolve};
use crate::config::settings::{Arity, KEYS, Key, Settings, Source};
use crate::config::{Config, ConfigError, file};

/// Exit code of wrong usage or configuration.
pub const EXIT_USAGE: u8 = 64;
/// Exit code when it could not bind or start.
pub const EXIT_START: u8 = 69;
/// Exit code of an internal error.
pub const EXIT_INTERNAL: u8 = 70;

/// Unlatch: an L7 load balancer for LLM inference.
#[derive(Debug, Parser)]
#[command(name = "unlatch", version, about, max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Cmd,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Cmd {
    /// Run the load balancer.
    Serve(ServeArgs),
    /// Show the burst of eight sessions with embedded engines, or replay recorded sessions.
    Demo(DemoArgs),
    /// Run one simulated engine.
    Engine(Box<EngineArgs>),
    /// Replay traces over simulated engines in virtual time and compare policies.
    Replay(Box<ReplayArgs>),
    /// Validate a configuration file.
    Check(CheckArgs),
    /// Print what kernel and routers count per backend; needs no router.
    Status(StatusArgs),
    /// The same, live in the terminal.
    #[cfg(feature = "top")]
    Top(TopArgs),
    /// Count what all clients have in flight at engines of this host; needs no router.
    Agent(AgentArgs),
    /// Show or take off the BPF programs and pins.
    Bpf(BpfArgs),
    /// Show or change what the edge guard drops.
    Edge(EdgeArgs),
}

/// Parses the command line. Help and version are printed and end with 0, wrong usage with [`EXIT_USAGE`].
///
/// # Errors
/// The exit code with which to end; everything was said.
pub fn parse_or_exit_code() -> Result<Cli, ExitCode> {
    parse_from(std::env::args_os()).map_err(|e| {
        // Nothing is left to do if stdout or stderr is closed.
        let _ = e.print();
        exit_code(&e)
    })
}

fn parse_from(args: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(args)
}

fn exit_code(e: &clap::Error) -> ExitCode {
    match e.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::from(EXIT_USAGE),
    }
}

/// What `serve` was asked for: flags over environment, not yet over the file.
#[derive(Clone, Debug, Default)]
pub struct ServeArgs {
    /// The file to read.
    pub config: Option<PathBuf>,
    /// What flags and environment say.
    pub settings: Settings,
    /// What flags of the vLLM production stack say.
    pub theirs: Given,
    /// Its dynamic configuration.
    pub dynamic: Option<dynamic::File>,
}

impl ServeArgs {
    /// Flags over environment over file, checked. Files are read anew by each call.
    ///
    /// # Errors
    /// What cannot be read or used, with the flag, variable, or file, line and key.
    pub fn resolve(&self) -> Result<Config, ConfigError> {
        self.resolve_with_notices().map(|(config, _)| config)
    }

    /// The same, and a line for each word of the vLLM production stack that was given, with ours.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub fn resolve_with_notices(&self) -> Result<(Config, Vec<String>), ConfigError> {
        let theirs = match &self.dynamic {
            Some(file) => self.theirs.clone().over(file.read()?),
            None => self.theirs.clone(),
        };
        let translated = production_stack::translate(&theirs, &self.settings)?;
        let settings = translated.settings.over(self.settings.clone());
        let settings = match &self.config {
            Some(path) => settings.over(read_file(path)?),
            None => settings,
        };
        Ok((resolve(&settings, &Host::this())?, translated.notices))
    }
}

/// Reads and parses a configuration file.
///
/// # Errors
/// What cannot be read, or is no TOML of known keys.
pub fn read_file(path: &Path) -> Result<Settings, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|e| ConfigError {
        at: path.display().to_string(),
        message: format!("cannot read it: {e}"),
    })?;
    file::parse(path, &text)
}

impl ServeArgs {
    /// Reads the flags of the vLLM production stack.
    fn read_theirs(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for flag in FLAGS.iter().filter(|flag| !flag.is_shared()) {
            let Some(text) = matches.get_one::<String>(flag.name) else { continue };
            self.theirs.add(flag, text.clone(), Source::Flag(flag.name));
            let notation = match flag.name {
                "dynamic-config-json" => Notation::Json,
                "dynamic-config-yaml" => Notation::Yaml,
                _ => continue,
            };
            if self.dynamic.replace(dynamic::File { path: text.into(), notation }).is_some() {
                let message = "--dynamic-config-json and --dynamic-config-yaml exclude each other\n";
                return Err(clap::Error::raw(ErrorKind::ArgumentConflict, message));
            }
        }
        Ok(())
    }
}

impl Args for ServeArgs {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .env("UNLATCH_CONFIG")
            .hide_env_values(true)
            .value_name("FILE")
            .help("TOML file with the same keys; flags and environment beat it");
        let theirs = FLAGS.iter().filter(|flag| !flag.is_shared()).map(their_arg);
        command.arg(config).args(KEYS.iter().map(arg)).args(theirs).after_help(
            "The flags of the vLLM production stack's router are taken too, with a notice of ours: \
             docs/migration-production-stack.md",
        )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// A flag of the vLLM production stack. Not in the help, which has ours for it.
fn their_arg(flag: &'static Flag) -> Arg {
    let arg = Arg::new(flag.name).long(flag.name).hide(true).overrides_with(flag.name);
    match flag.takes {
        Takes::Value => arg.action(ArgAction::Set),
        Takes::Nothing => arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_parser(["true", "false"]),
    }
}

/// The flag of a key.
fn arg(key: &'static Key) -> Arg {
    let arg =
        Arg::new(key.name).long(key.name).env(key.env()).hide_env_values(true).value_name(key.value).help(
            match key.default {
                "" => key.help.to_owned(),
                default => format!("{} [default: {default}]", key.help),
            },
        );
    let arg = match key.arity {
        Arity::One => arg.action(ArgAction::Set),
        Arity::Many => arg.action(ArgAction::Append),
        Arity::Switch => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
    };
    // They take it several times, of which the last counts.
    if key.name == "request-stats-window" { arg.overrides_with(key.name) } else { arg }
}

impl FromArgMatches for ServeArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args =
            Self { config: matches.get_one::<String>("config").map(PathBuf::from), ..Self::default() };
        for key in KEYS {
            let values = matches.get_many::<String>(key.name).into_iter().flatten();
            if matches.value_source(key.name) == Some(ValueSource::EnvVariable) {
                // An empty variable counts as unset; a list is separated by blanks.
                let texts = values.flat_map(|v| match key.arity {
                    Arity::Many => v.split_whitespace().map(str::to_owned).collect(),
                    _ if v.is_empty() => Vec::new(),
                    _ => vec![v.clone()],
                });
                texts.for_each(|text| args.settings.add(key, text, Source::Env(key.env())));
            } else {
                for text in values {
                    match Flag::find(key.name).filter(|_| production_stack::says_theirs(key.name, text)) {
                        Some(flag) => args.theirs.add(flag, text.clone(), Source::Flag(flag.name)),
                        None => args.settings.add(key, text.clone(), Source::Flag(key.name)),
                    }
                }
            }
        }
        args.read_theirs(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Cli, Cmd, ServeArgs, exit_code, parse_from};
    use clap::CommandFactory;
    use std::process::ExitCode;

    fn serve(args: &[&str]) -> ServeArgs {
        match parse_from(["unlatch", "serve"].iter().chain(args)).unwrap().command {
            Cmd::Serve(args) => args,
            other => panic!("{other:?}"),
        }
    }

    fn code(args: &[&str]) -> ExitCode {
        exit_code(&parse_from(args).unwrap_err())
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_resolve_to_a_configuration() {
        let c = serve(&[
            "--listen=127.0.0.1:0",
            "--backend",
            "http://a,model=m",
            "--backend=http://b",
            "--debug-headers",
            "--policy",
            "round-robin",
        ])
        .resolve()
        .unwrap();
        assert_eq!((c.listen.port(), c.backends.len(), c.debug_headers), (0, 2, true));
        assert_eq!(c.policy.policy.as_str(), "round-robin");
        assert!(!serve(&["--debug-headers=false"]).resolve().unwrap().debug_headers);
    }

    #[test]
    fn flags_beat_the_file_and_errors_name_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("u.toml");
        std::fs::write(&path, "seed = 1\nworkers = 2\n").unwrap();
        let path = path.to_str().unwrap();
        let c = serve(&["--config", path, "--seed", "5"]).resolve().unwrap();
        assert_eq!((c.seed, c.workers), (Some(5), 2));
        std::fs::write(path, "seed = 1\n\nworkers = 0\n").unwrap();
        let e = serve(&["--config", path]).resolve().unwrap_err().to_string();
        assert!(e.starts_with(&format!("{path}:3: workers: ")), "{e}");
        let e = serve(&["--config", "/nowhere/u.toml"]).resolve().unwrap_err().to_string();
        assert!(e.starts_with("/nowhere/u.toml: cannot read it"), "{e}");
    }

    #[test]
    fn wrong_usage_exits_64_and_help_0() {
        for args in [
            &["unlatch"][..],
            &["unlatch", "fly"],
            &["unlatch", "serve", "--no-such-flag"],
            &["unlatch", "serve", "--seed"],
            &["unlatch", "serve", "--seed=1", "--seed=2"],
        ] {
            assert_eq!(code(args), ExitCode::from(64), "{args:?}");
        }
        for args in [&["unlatch", "--help"][..], &["unlatch", "--version"], &["unlatch", "serve", "--help"]] {
            assert_eq!(code(args), ExitCode::SUCCESS, "{args:?}");
        }
    }

    #[test]
    fn help_states_default_and_variable_of_every_key() {
        let mut command = Cli::command();
        let help = command.find_subcommand_mut("serve").unwrap().render_long_help().to_string();
        for key in super::KEYS {
            assert!(help.contains(&format!("--{}", key.name)), "{}", key.name);
            assert!(help.contains(&format!("[env: {}]", key.env())), "{}", key.name);
        }
        assert!(help.contains("[default: 64MiB]"));
    }
}
