//! The flags of `replay`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use engine_sim::model::BLOCK_TOKENS;
use engine_sim::{EngineConfig, Profile};
use router_common::limits::MAX_BACKENDS;
use router_policy::{Fallback, PolicyConfig, PolicyName};

use super::claim::Claim;
use super::driver::Setup;
use super::facade::Group;
use super::http;
use crate::config::values::duration;

/// The name of the oracle among the policies.
pub(super) const ORACLE: &str = "oracle";

/// Every flag that says what or how to replay: senseless beside `--decisions`.
const OF_A_REPLAY: [&str; 22] = [
    "trace",
    "engines",
    "profile",
    "kv_tokens",
    "max_num_seqs",
    "load",
    "arrivals",
    "url",
    "time_scale",
    "policy",
    "prefix_min_match",
    "fallback",
    "hash_blocks",
    "seed",
    "scrape_interval",
    "routers",
    "gossip_ms",
    "gossip_counts_only",
    "non_streaming_share",
    "restart_every",
    "claims",
    "plot",
];

/// Replays traces over simulated engines in virtual time, with the very policy code that `serve` runs
#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    /// Traces, one after the other or several at once: JSON lines with block ids (Mooncake) or with sessions of
    /// messages, or Azure's CSV; plain or zstd
    #[arg(long, value_name = "FILE", required_unless_present = "decisions", num_args = 1..)]
    pub(super) trace: Vec<PathBuf>,
    /// Replays nothing: tells in short what a router decided, from what `serve --record FILE` wrote, plain or zstd
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_A_REPLAY)]
    pub(super) decisions: Option<PathBuf>,
    /// Explains one of those decisions: every candidate's terms, what was known, how old it was. ID is the request's
    /// `X-Request-Id`, the decision's number, or an unambiguous beginning of the former
    #[arg(long, value_name = "ID", requires = "decisions", value_parser = NonEmptyStringValueParser::new())]
    pub(super) explain: Option<String>,
    /// Engines, from 1 to 256
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=MAX_BACKENDS as i64))]
    pub(super) engines: u16,
    /// Hardware and model simulated: h100-8b, a100-8b, h100-70b-tp4 or a100-70b-tp4
    #[arg(long, default_value = "h100-70b-tp4", value_parser = str::parse::<Profile>)]
    pub(super) profile: Profile,
    /// KV pool of an engine in tokens, from 16 to 1,000,000,000 [default: the profile's, about 430,000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(16..=1_000_000_000))]
    pub(super) kv_tokens: Option<u32>,
    /// Seats of an engine, at least 1 and at most its token budget; routers are not told
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(super) max_num_seqs: u32,
    /// Arrival rate as a share of the oracle's closed-loop throughput with 16 requests in flight an engine, from
    /// 0.01 to 10; copies of the trace are superposed as needed [default: as recorded; 0.9 for sessions without
    /// times]
    #[arg(long, value_name = "R", value_parser = load)]
    pub(super) load: Option<f64>,
    /// Only the first N sessions that start; a request without a session is one [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) arrivals: Option<u32>,
    /// Policies to compare; `oracle` uses knowledge no router has. `session` goes by the sessions of the trace; where
    /// a trace has none (block ids, CSV), by the first --hash-blocks of the prompt
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = policy,
          default_value = "prefix-cost,least-in-flight,round-robin,oracle")]
    pub(super) policy: Vec<String>,
    /// `prefix-threshold`: characters of match below which the fallback chooses; 0: any match decides
    #[arg(long, value_name = "CHARS", default_value_t = 0)]
    pub(super) prefix_min_match: u64,
    /// `prefix-threshold`: least-in-flight or lowest-qps
    #[arg(long, value_name = "NAME", default_value = "least-in-flight", value_parser = fallback)]
    pub(super) fallback: Fallback,
    /// `consistent-hash`, and `session` where the trace has no sessions: leading blocks of 256 characters that make
    /// the key, 1 to 65536
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(super) hash_blocks: u32,
    /// Decides everything that chance decides
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) seed: u64,
    /// How often routers ask engines for running, waiting and KV size, from 1ms to 1h
    #[arg(long, value_name = "DUR", default_value = "1s", value_parser = interval)]
    pub(super) scrape_interval: Duration,
    /// Router processes that take requests in turn, from 1 to 16
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub(super) routers: u16,
    /// With several routers: their counts, and what they placed where, reach each other so many milliseconds later,
    /// from 0 to 60,000
    #[arg(long, value_name = "X", default_value_t = 20.0, value_parser = gossip)]
    pub(super) gossip_ms: f64,
    /// With several routers: they tell each other their counts alone, not what they placed where
    #[arg(long)]
    pub(super) gossip_counts_only: bool,
    /// Share of the requests that ask for no stream, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    pub(super) non_streaming_share: f64,
    /// One engine, in turn, loses its cache so often; routers see it at their next scrape [default: never]
    #[arg(long, value_name = "DUR", value_parser = interval)]
    pub(super) restart_every: Option<Duration>,
    /// Sends the same requests, with text made for them, in real time to a router or engine there as well, when the
    /// policies are done; results `http`, of the traffic as its client sees it. What simulated engines sit behind it
    /// is for you to arrange. Streams only. Several take the requests in turn, a session's each at the next
    #[arg(long, value_name = "http://HOST[:PORT]", value_delimiter = ',', value_parser = http::address)]
    pub(super) url: Vec<SocketAddr>,
    /// With --url: seconds of the trace in a real second, from 0.001 to 1000, the engines' --time-scale; times of
    /// `http` are the trace's
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = time_scale)]
    pub(super) time_scale: f64,
    /// A claim on the results, as prefix-cost/oracle<=1.05 or prefix-cost.ttft_p99<=2; exit code 1 if it does not
    /// hold
    #[arg(long = "assert", value_name = "CLAIM", value_parser = str::parse::<Claim>)]
    pub(super) claims: Vec<Claim>,
    /// Prints JSON and nothing else on standard output
    #[arg(long)]
    pub(super) json: bool,
    /// Draws TTFT and requests in flight over time
    #[arg(long, value_name = "FILE.svg")]
    pub(super) plot: Option<PathBuf>,
}

impl ReplayArgs {
    /// What every run of these flags has in common.
    pub(super) fn setup(&self) -> Setup {
        let usual = EngineConfig::of(self.profile);
        Setup {
            engine: EngineConfig {
                max_num_seqs: self.max_num_seqs,
                num_gpu_blocks: self.kv_tokens.map_or(usual.num_gpu_blocks, |tokens| tokens / BLOCK_TOKENS),
                ..usual
            },
            engines: usize::from(self.engines),
            scrape_interval: self.scrape_interval,
            non_streaming_share: self.non_streaming_share,
            restart_every: self.restart_every,
            seed: self.seed,
        }
    }

    /// The router's configuration for a policy; `None` for the oracle.
    pub(super) fn policy_config(&self, name: &str) -> Option<PolicyConfig> {
        PolicyName::parse(name).map(|policy| PolicyConfig {
            policy,
            prefix_min_match: self.prefix_min_match,
            fallback: self.fallback,
            scrape_interval: self.scrape_interval,
            hash_blocks: self.hash_blocks,
            ..PolicyConfig::default()
        })
    }

    /// The routers, and what they tell each other.
    pub(super) fn group(&self) -> Group {
        Group {
            routers: usize::from(self.routers),
            delay: Duration::from_secs_f64(self.gossip_ms / 1e3),
            tells_placements: !self.gossip_counts_only,
        }
    }

    /// What clap cannot see: flags that do not go together.
    ///
    /// # Errors
    /// Says which.
    pub(super) fn check(&self) -> Result<(), String> {
        self.setup().engine.check().map_err(|e| e.to_string())?;
        for name in self.claims.iter().flat_map(Claim::policies) {
            if name == http::NAME && self.url.is_empty() {
                return Err(format!("--assert is about `{name}`, which needs --url"));
            }
            if name != http::NAME && !self.policy.iter().any(|policy| policy == name) {
                return Err(format!("--assert is about `{name}`, which --policy does not name"));
            }
        }
        if !self.url.is_empty() && (self.restart_every.is_some() || self.non_streaming_share > 0.0) {
            return Err("--url goes neither with --restart-every nor with --non-streaming-share".to_owned());
        }
        for (at, name) in self.policy.iter().enumerate() {
            if self.policy[..at].contains(name) {
                return Err(format!("--policy names `{name}` twice"));
            }
        }
        Ok(())
    }
}

fn policy(name: &str) -> Result<String, String> {
    if name == ORACLE || PolicyName::parse(name).is_some() {
        return Ok(name.to_owned());
    }
    let names = PolicyName::ALL.map(PolicyName::as_str).join(", ");
    Err(format!("use some of {names}, {ORACLE}"))
}

fn fallback(name: &str) -> Result<Fallback, String> {
    Fallback::parse(name).ok_or_else(|| "use least-in-flight or lowest-qps".to_owned())
}

fn interval(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_millis(1)..=Duration::from_secs(3600))
}

fn load(text: &str) -> Result<f64, String> {
    number(text, 0.01, 10.0)
}

fn time_scale(text: &str) -> Result<f64, String> {
    number(text, 0.001, 1000.0)
}

fn gossip(text: &str) -> Result<f64, String> {
    number(text, 0.0, 60_000.0)
}

fn share(text: &str) -> Result<f64, String> {
    number(text, 0.0, 1.0)
}

fn number(text: &str, least: f64, most: f64) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|n| (least..=most).contains(n));
    number.ok_or_else(|| format!("use a number from {least} to {most}"))
}
