//! The flags of `unlatch engine` that make it ill from the start. At run time `POST /admin/faults` does the same.

use std::ops::RangeInclusive;
use std::time::Duration;

use engine_sim::faults::{Faults, MetricsFaults, Rule, SlowStart};

use crate::config::values;

/// A duration for a flag: nothing to a day.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    const BOUNDS: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(86_400);
    values::duration(text, BOUNDS)
}

fn rule(text: &str) -> Result<Rule, String> {
    text.parse::<Rule>().map_err(|error| error.to_string())
}

fn slow_start(text: &str) -> Result<SlowStart, String> {
    let (factor, span) = text.split_once(',').ok_or_else(|| "must be FACTOR,DUR, as in 4,30s".to_owned())?;
    let factor = factor.parse().map_err(|_| format!("'{factor}' is not a number"))?;
    let for_ms = u64::try_from(duration(span)?.as_millis()).unwrap_or(u64::MAX);
    Ok(SlowStart { factor, for_ms })
}

fn metrics(text: &str) -> Result<MetricsFaults, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// What is wrong with the engine.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct FaultArgs {
    /// A fault for requests, repeatable: delay, status, reset, close, hang or cut, with its fields and rate= (0 to
    /// 1), next= (so many, then none) and on= (generation, probe or all), as in
    /// status,code=429,retry_after_s=2,rate=0.1 or cut,after_tokens=5,end=done
    #[arg(long, value_name = "KIND[,KEY=VALUE...]", value_parser = rule)]
    fault: Vec<Rule>,
    /// Chooses which requests a fault with a rate hits
    #[arg(long, value_name = "N", default_value_t = 0)]
    fault_seed: u64,
    /// Time that a new connection waits before it is served, up to a day; 0s is none
    #[arg(long, value_name = "DUR", default_value = "0s", value_parser = duration)]
    connect_delay: Duration,
    /// Refuses every connection, until POST /admin/faults on --admin-listen changes that
    #[arg(long, requires = "admin_listen")]
    refuse_connections: bool,
    /// After each start so many times slower (1 to 1000) for so long, as in 4,30s
    #[arg(long, value_name = "FACTOR,DUR", value_parser = slow_start)]
    slow_start: Option<SlowStart>,
    /// What is wrong with /metrics, as the field metrics of POST /admin/faults
    #[arg(long, value_name = "JSON", value_parser = metrics)]
    metrics_faults: Option<MetricsFaults>,
}

impl FaultArgs {
    pub(super) fn into_faults(self) -> Faults {
        Faults {
            seed: self.fault_seed,
            refuse_connections: self.refuse_connections,
            connect_delay_ms: u64::try_from(self.connect_delay.as_millis()).unwrap_or(u64::MAX),
            rules: self.fault,
            slow_start: self.slow_start,
            metrics: self.metrics_faults.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use engine_sim::Fault;
    use engine_sim::faults::Page;

    use super::*;
    use crate::commands::engine::EngineArgs;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        engine: EngineArgs,
    }

    fn faults(flags: &[&str]) -> Result<Faults, clap::Error> {
        Cli::try_parse_from([&["engine"], flags].concat()).map(|cli| cli.engine.faults.into_faults())
    }

    #[test]
    fn without_a_flag_nothing_is_wrong() {
        assert_eq!(faults(&[]).unwrap(), Faults::default());
    }

    #[test]
    fn every_flag_reaches_the_faults() {
        let got = faults(&[
            "--fault",
            "status,code=429,retry_after_s=2,rate=0.1",
            "--fault",
            "reset,next=3",
            "--fault-seed=7",
            "--connect-delay=250ms",
            "--admin-listen=127.0.0.1:1",
            "--refuse-connections",
            "--slow-start=4,30s",
            r#"--metrics-faults={"page":"html"}"#,
        ]);
        let want = Faults {
            seed: 7,
            refuse_connections: true,
            connect_delay_ms: 250,
            rules: vec![
                Rule::rate(Fault::Status { code: 429, retry_after_s: Some(2) }, 0.1),
                Rule::next(Fault::Reset, 3),
            ],
            slow_start: Some(SlowStart { factor: 4.0, for_ms: 30_000 }),
            metrics: MetricsFaults { page: Some(Page::Html), ..MetricsFaults::default() },
        };
        assert_eq!(got.unwrap(), want);
    }

    #[test]
    fn what_cannot_be_is_a_usage_error() {
        for flags in [
            ["--fault", "explode"],
            ["--fault", "status"],
            ["--slow-start", "4"],
            ["--slow-start", "4,30"],
            ["--connect-delay", "2"],
            ["--metrics-faults", "{\"pages\":1}"],
        ] {
            assert!(faults(&flags).is_err(), "{flags:?}");
        }
        assert!(faults(&["--refuse-connections"]).is_err(), "nothing could ever open the port again");
    }
}
