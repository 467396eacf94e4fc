//! `unlatch engine`: one simulated engine on a port, until it is told to stop.
//!
//! Owns the flags (those of faults in `faults`) and the life of the process; the engine itself is the crate
//! `engine-sim`.
//! Standard output gets exactly one line, `listening on http://ADDR`, once connections are accepted.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use engine_sim::model::BLOCK_TOKENS;
use engine_sim::{Config, Dialect, EngineConfig, Profile, Server, StartError};
use tokio::signal::unix::{SignalKind, signal};

mod faults;

use faults::FaultArgs;

/// Wrong usage or configuration.
const EXIT_USAGE: u8 = 64;
/// Could not bind or start.
const EXIT_UNAVAILABLE: u8 = 69;

/// Runs one simulated engine with vLLM's API.
#[derive(Clone, Debug, clap::Args)]
pub struct EngineArgs {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
    /// A second port for the same, which no fault closes, delays or cuts; /stats tells it if it is 0 here [default:
    /// none]
    #[arg(long, value_name = "ADDR")]
    admin_listen: Option<SocketAddr>,
    /// Sent in the header x-engine-name of every response
    #[arg(long, default_value = "engine")]
    name: String,
    /// The one model served
    #[arg(long, default_value = "sim")]
    model: String,
    /// Asks for this key on /v1/*
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Hardware and model simulated: h100-8b, a100-8b, h100-70b-tp4 or a100-70b-tp4
    #[arg(long, default_value = "h100-8b", value_parser = str::parse::<Profile>)]
    profile: Profile,
    /// Runs so many times as fast as real, from 0.001 to 1000
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    time_scale: f64,
    /// Seats: requests that run at once, at least 1
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_num_seqs: u32,
    /// Tokens of one step, at least as many as seats [default: the profile's, 8192 or 2048]
    #[arg(long, value_name = "N")]
    max_num_batched_tokens: Option<u32>,
    /// KV blocks of 16 tokens, at least 1 [default: the profile's, about 27000]
    #[arg(long, value_name = "N", conflicts_with = "kv_tokens")]
    num_gpu_blocks: Option<u32>,
    /// The same in tokens, at least 16; rounded down to whole blocks
    #[arg(long, value_name = "N")]
    kv_tokens: Option<u32>,
    /// Tokens that host memory keeps cached beside those on the GPU; 0 is no host memory. Caching has both, but
    /// what runs together must fit on the GPU. Copying between them costs no time
    #[arg(long, value_name = "N", default_value_t = 0)]
    host_kv_tokens: u32,
    /// Whose names /metrics has: vllm, sglang, tgi, llamacpp or trtllm
    #[arg(long, value_name = "NAME", default_value = "vllm", value_parser = str::parse::<Dialect>)]
    metrics_dialect: Dialect,
    /// Real time from a start or restart until it is ready, up to a day; 503 till then
    #[arg(long, value_name = "DUR", default_value = "0s", value_parser = faults::duration)]
    start_delay: Duration,
    /// Chooses the words of the answers; timing does not depend on it
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    faults: FaultArgs,
}

impl EngineArgs {
    fn into_config(self) -> Config {
        let usual = EngineConfig::of(self.profile);
        let engine = EngineConfig {
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens.unwrap_or(usual.max_num_batched_tokens),
            num_gpu_blocks: self
                .kv_tokens
                .map(|tokens| tokens / BLOCK_TOKENS)
                .or(self.num_gpu_blocks)
                .unwrap_or(usual.num_gpu_blocks),
            host_blocks: self.host_kv_tokens / BLOCK_TOKENS,
            ..usual
        };
        Config {
            listen: self.listen,
            admin_listen: self.admin_listen,
            name: self.name,
            model: self.model,
            api_key: self.api_key,
            time_scale: self.time_scale,
            seed: self.seed,
            engine,
            start_delay: self.start_delay,
            dialect: self.metrics_dialect,
            faults: self.faults.into_faults(),
        }
    }
}

/// Serves until SIGINT or SIGTERM, then cuts what still runs.
///
/// Exit code 64 if the flags do not go together, 69 if the address cannot be bound; both are explained on standard
/// error.
///
/// # Errors
/// The runtime or the signal handlers cannot be set up, or standard output is closed.
pub fn run(args: EngineArgs) -> anyhow::Result<ExitCode> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("start a runtime")?;
    runtime.block_on(serve(args.into_config()))
}

async fn serve(config: Config) -> anyhow::Result<ExitCode> {
    // Before the address is announced, so that a signal sent from then on finds its handler.
    let mut interrupt = signal(SignalKind::interrupt()).context("handle SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("handle SIGTERM")?;
    let engine = match Server::start(config).await {
        Ok(engine) => engine,
        Err(error) => {
            let code = match error {
                StartError::Bind { .. } => EXIT_UNAVAILABLE,
                StartError::Engine(_)
                | StartError::TimeScale(_)
                | StartError::Name(_)
                | StartError::Faults(_) => EXIT_USAGE,
            };
            let error = anyhow::Error::new(error).context("the engine did not start");
            writeln!(std::io::stderr(), "unlatch engine: {error:#}").context("write to standard error")?;
            return Ok(ExitCode::from(code));
        }
    };
    writeln!(std::io::stdout(), "listening on {}", engine.url()).context("write to standard output")?;
    // Any order will do: both end the engine.
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    engine.stop().await;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        engine: EngineArgs,
    }

    fn config(flags: &[&str]) -> Result<Config, clap::Error> {
        Cli::try_parse_from([&["engine"], flags].concat()).map(|cli| cli.engine.into_config())
    }

    #[test]
    fn what_is_not_given_comes_from_the_profile() {
        let config = config(&["--profile", "a100-70b-tp4", "--max-num-seqs", "4"]).unwrap();
        assert_eq!(config.engine.profile, Profile::A100_70B_TP4);
        assert_eq!((config.engine.max_num_batched_tokens, config.engine.num_gpu_blocks), (2048, 26_600));
        assert_eq!(config.engine.max_num_seqs, 4);
    }

    #[test]
    fn every_flag_reaches_the_engine() {
        let flags = "--listen 127.0.0.1:1 --name n --model m --api-key k --time-scale 2.5 --max-num-seqs 3 \
                     --max-num-batched-tokens 500 --num-gpu-blocks 70 --seed 9 --host-kv-tokens 1600 \
                     --metrics-dialect tgi --start-delay 2s --admin-listen 127.0.0.1:2";
        let config = config(&flags.split_whitespace().collect::<Vec<_>>()).unwrap();
        assert_eq!(config.listen, SocketAddr::from(([127, 0, 0, 1], 1)));
        assert_eq!(
            (config.name.as_str(), config.model.as_str(), config.api_key.as_deref()),
            ("n", "m", Some("k"))
        );
        assert_eq!((config.time_scale, config.seed), (2.5, 9));
        assert_eq!(config.admin_listen, Some(SocketAddr::from(([127, 0, 0, 1], 2))));
        assert_eq!((config.dialect, config.start_delay), (Dialect::Tgi, Duration::from_secs(2)));
        let engine = config.engine;
        assert_eq!(engine.host_blocks, 100);
        assert_eq!((engine.max_num_seqs, engine.max_num_batched_tokens, engine.num_gpu_blocks), (3, 500, 70));
    }

    #[test]
    fn kv_tokens_are_another_way_to_say_blocks() {
        assert_eq!(config(&["--kv-tokens", "1615"]).unwrap().engine.num_gpu_blocks, 100);
        assert!(config(&["--kv-tokens", "1600", "--num-gpu-blocks", "100"]).is_err(), "not both");
    }

    #[test]
    fn an_unknown_profile_is_a_usage_error_that_names_the_known_ones() {
        let error = config(&["--profile", "h200"]).unwrap_err().to_string();
        assert!(error.contains("h100-8b") && error.contains("a100-70b-tp4"), "{error}");
    }

    #[test]
    fn exit_codes_tell_a_busy_port_from_wrong_settings() {
        let busy = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let listen = busy.local_addr().unwrap().to_string();
        for (flags, code) in [
            (vec!["--listen", &listen], EXIT_UNAVAILABLE),
            (vec!["--listen", "127.0.0.1:0", "--max-num-seqs", "0"], EXIT_USAGE),
            (vec!["--listen", "127.0.0.1:0", "--time-scale", "0"], EXIT_USAGE),
            (vec!["--listen", "127.0.0.1:0", "--kv-tokens", "15"], EXIT_USAGE),
            (vec!["--listen", "127.0.0.1:0", "--fault", "hang,rate=2"], EXIT_USAGE),
            (vec!["--listen", "127.0.0.1:0", "--admin-listen", &listen], EXIT_UNAVAILABLE),
        ] {
            let args = Cli::try_parse_from([vec!["engine"], flags.clone()].concat()).unwrap().engine;
            assert_eq!(run(args).unwrap(), ExitCode::from(code), "{flags:?}");
        }
    }
}
