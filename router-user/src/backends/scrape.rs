//! One question for an engine's load: `/metrics`, and the seats of llama.cpp from `/slots`, to a [`Report`]. It also
//! reads the JSON that engines answer with, lists of slots and of models.
//!
//! What it cannot learn is unknown with its reason; it never fails otherwise. It says once, not at each scrape, when
//! a gauge goes missing or comes back.

use std::time::Duration;

use hyper::StatusCode;
use router_policy::{Report, Signal, Why};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::Instant;

use super::ScrapeFailure;
use super::metrics_text::{Engine, Parsed, TEXT_BYTES_MAX, parse};
use super::probe::{AskError, Prober};
use crate::clock;

/// Least time between two scrapes of llama.cpp, counted from start to start with some slack for timers: a server
/// whose `/metrics` is read more often notices clients that left a plain request late.
const LLAMA_INTERVAL_MIN: Duration = Duration::from_millis(1_900);

/// Models kept of a list, and bytes of a name; others are as if not listed.
const MODELS_MAX: usize = 1024;
const MODEL_BYTES_MAX: usize = 1024;

/// What is remembered between scrapes of one engine.
#[derive(Debug, Default)]
pub struct Scraper {
    engine: Engine,
    seats: Option<Signal<u32>>,
    started: Option<Instant>,
    process_start_seconds: Option<f64>,
    said: Option<Finding>,
}

/// What a scrape brought.
#[derive(Debug)]
pub struct Scraped {
    /// The report.
    pub report: Report,
    /// Whether the engine's process is another one than at the last scrape.
    pub restarted: bool,
}

/// What people are told of, once per change.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Finding {
    Complete,
    Unknown { running: Option<Why>, waiting: Option<Why> },
    NoAnswer(String),
}

impl Scraper {
    /// Whether it may be asked again already.
    #[must_use]
    pub fn is_due(&self) -> bool {
        let early = |started: Instant| started.elapsed() < LLAMA_INTERVAL_MIN;
        !(self.engine == Engine::LlamaCpp && self.started.is_some_and(early))
    }

    /// Forgets what an engine told that is gone: another one may come back.
    pub fn forget(&mut self) {
        (self.engine, self.seats, self.process_start_seconds) = Default::default();
    }

    /// Asks the engine. Dropping the future closes the connection.
    pub async fn scrape(&mut self, prober: &mut Prober) -> Scraped {
        self.started = Some(Instant::now());
        let answer = prober.ask("/metrics", TEXT_BYTES_MAX).await;
        let (parsed, failure, finding) = match answer {
            Ok(answer) if answer.status == StatusCode::OK => {
                let parsed = parse(&answer.body, clock::now());
                let finding = finding(&parsed.report);
                let failure = (finding != Finding::Complete).then_some(ScrapeFailure::Incomplete);
                (parsed, failure, finding)
            }
            Ok(answer) => {
                let text = format!("status {}", answer.status.as_u16());
                (unknown(Why::Refused), Some(ScrapeFailure::Refused), Finding::NoAnswer(text))
            }
            Err(e) => {
                let (why, failure) = match e {
                    AskError::TooLarge => (Why::Malformed, ScrapeFailure::TooLarge),
                    _ => (Why::Unreachable, ScrapeFailure::Unreachable),
                };
                (unknown(why), Some(failure), Finding::NoAnswer(e.to_string()))
            }
        };
        if let Some(failure) = failure {
            prober.target().count_scrape_failure(failure);
        }
        if parsed.engine != Engine::Unknown {
            self.engine = parsed.engine;
        }
        self.say(&prober.target().url, finding);
        let restarted = self.is_restart(parsed.process_start_seconds);
        let report = Report { seats: self.seats(prober).await, ..parsed.report };
        Scraped { report, restarted }
    }

    /// Seats of llama.cpp, asked once; others do not tell.
    async fn seats(&mut self, prober: &mut Prober) -> Signal<u32> {
        if self.engine != Engine::LlamaCpp {
            return Signal::default();
        }
        if self.seats.is_none() {
            self.seats = Some(match prober.ask("/slots", TEXT_BYTES_MAX).await {
                Ok(answer) if answer.status == StatusCode::OK => slots(&answer.body),
                Ok(_) => Signal::Unknown(Why::Refused),
                // Not told yet: the next scrape asks again.
                Err(_) => return Signal::Unknown(Why::Unreachable),
            });
        }
        self.seats.unwrap_or_default()
    }

    fn is_restart(&mut self, now: Option<f64>) -> bool {
        let Some(now) = now else { return false };
        self.process_start_seconds.replace(now).is_some_and(|before| before != now)
    }

    fn say(&mut self, backend: &str, finding: Finding) {
        if self.said.as_ref() == Some(&finding) {
            return;
        }
        match &finding {
            Finding::Complete if self.said.is_none() => {}
            Finding::Complete => tracing::info!(backend, "the engine reports its load again"),
            Finding::NoAnswer(why) => {
                tracing::warn!(backend, why, "the engine does not report its load; own counts go on");
            }
            Finding::Unknown { running, waiting } => {
                let gauges = [(self.engine.running_name(), running), (self.engine.waiting_name(), waiting)];
                for (gauge, why) in gauges {
                    if let Some(why) = why {
                        tracing::warn!(
                            backend,
                            gauge,
                            why = why.as_str(),
                            "a gauge is unknown; own counts go on"
                        );
                    }
                }
            }
        }
        self.said = Some(finding);
    }
}

fn unknown(why: Why) -> Parsed {
    let report = Report {
        running: Signal::Unknown(why),
        waiting: Signal::Unknown(why),
        kv_tokens: Signal::Unknown(why),
        seats: Signal::default(),
    };
    Parsed { report, ..Parsed::default() }
}

fn finding(report: &Report) -> Finding {
    let why = |signal: &Signal<u32>| match signal {
        Signal::Known { .. } => None,
        Signal::Unknown(why) => Some(*why),
    };
    match (why(&report.running), why(&report.waiting)) {
        (None, None) => Finding::Complete,
        (running, waiting) => Finding::Unknown { running, waiting },
    }
}

/// The number of slots in llama.cpp's list of them.
fn slots(body: &[u8]) -> Signal<u32> {
    let count =
        serde_json::from_slice::<Vec<IgnoredAny>>(body).ok().and_then(|all| u32::try_from(all.len()).ok());
    match count.filter(|n| *n > 0) {
        Some(n) => Signal::known(n, clock::now()),
        None => Signal::Unknown(Why::Malformed),
    }
}

/// Ids of an OpenAI-style list of models.
pub(super) fn listed(body: &[u8]) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct List {
        data: Vec<Model>,
    }
    #[derive(Deserialize)]
    struct Model {
        id: String,
    }
    let list: List = serde_json::from_slice(body).ok()?;
    let ids = list.data.into_iter().map(|m| m.id).filter(|id| id.len() <= MODEL_BYTES_MAX);
    Some(ids.take(MODELS_MAX).collect())
}

#[cfg(test)]
mod tests {
    use super::{Scraper, listed, slots};
    use router_policy::{Signal, Why};

    #[test]
    fn slots_are_counted_and_nothing_else_is_a_number_of_seats() {
        assert_eq!(slots(br#"[{"id":0,"is_processing":false},{"id":1}]"#).value(), Some(2));
        for body in [&b"[]"[..], b"{}", b"", b"<html>", br#"{"error":{"code":501}}"#] {
            assert_eq!(slots(body), Signal::Unknown(Why::Malformed));
        }
    }

    #[test]
    fn ids_are_read_from_what_engines_list() {
        let vllm = br#"{"object":"list","data":[{"id":"m","object":"model","max_model_len":4096,"permission":[]},{"id":"lora"}]}"#;
        assert_eq!(listed(vllm).unwrap(), ["m", "lora"]);
        assert_eq!(listed(br#"{"models":[{"name":"x"}],"data":[]}"#).unwrap(), [""; 0]);
        for body in [&b""[..], b"<html>", b"{}", b"[]", br#"{"data":[{"id":7}]}"#, br#"{"data":null}"#] {
            assert!(listed(body).is_none());
        }
        let long = format!(r#"{{"data":[{{"id":"{}"}},{{"id":"m"}}]}}"#, "x".repeat(2000));
        assert_eq!(listed(long.as_bytes()).unwrap(), ["m"]);
    }

    #[test]
    fn another_start_time_is_a_restart_and_an_absent_one_is_none() {
        let mut s = Scraper::default();
        let seen = [Some(5.0), None, Some(5.0), Some(6.0), Some(6.0)].map(|t| s.is_restart(t));
        assert_eq!(seen, [false, false, false, true, false]);
    }
}
