//! One question for an engine's load: its metrics, and the seats of llama.cpp from `/slots`, to a [`Report`]. It also
//! reads the JSON that engines answer with, lists of slots and of models.
//!
//! What it cannot learn is unknown with its reason; it never fails otherwise. It says once, not at each scrape, when
//! something is wrong with an engine's reports, and when that is over.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use router_policy::{Nanos, Report, Signal, Why};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::Instant;

use super::answer::Text;
use super::finding::Finding;
use super::metrics_text::{Engine, Kind, Parsed, TEXT_BYTES_MAX};
use super::probe::{AskError, Prober, Question};
use super::{Heard, ScrapeFailure, Target};
use crate::clock;

/// Least time between two scrapes of llama.cpp, counted from start to start with some slack for timers: a server
/// whose `/metrics` is read more often notices clients that left a plain request late.
const LLAMA_INTERVAL_MIN: Duration = Duration::from_millis(1_900);

/// Where `trtllm-serve` has its text; at the usual path it has JSON.
const TRTLLM_PATH: &str = "/prometheus/metrics";

/// Models kept of a list, and bytes of a name; others are as if not listed.
const MODELS_MAX: usize = 1024;
const MODEL_BYTES_MAX: usize = 1024;

/// What is remembered between scrapes of one engine.
pub struct Scraper {
    target: Arc<Target>,
    /// The connection for metrics, where they have a port of their own.
    apart: Option<Prober>,
    engine: Option<Engine>,
    path: String,
    /// Whether the other path may still be tried.
    may_move: bool,
    asleep: bool,
    seats: Option<Signal<u32>>,
    started: Option<Instant>,
    /// When the last question began.
    asked: Nanos,
    /// Tokens of prompts that it has counted.
    counted: Option<f64>,
    said: Option<Finding>,
}

/// What a scrape brought.
#[derive(Debug)]
pub struct Scraped {
    /// The report.
    pub report: Report,
    /// Whether what the engine cached is gone: it fell asleep, or was restarted.
    pub lost_cache: bool,
    /// Whether its process is another one than at the last scrape: it started at another time, or counts anew.
    pub is_restart: bool,
    text: Result<Parsed, String>,
}

impl Scraper {
    /// For an engine that was never asked. `apart` asks for metrics, if their port is not that of requests.
    #[must_use]
    pub fn new(target: Arc<Target>, apart: Option<Prober>) -> Self {
        let (engine, path) = (target.metrics.engine, usual_path(&target));
        Self {
            apart,
            engine,
            path,
            may_move: may_move(&target),
            asleep: false,
            seats: None,
            started: None,
            asked: Nanos::default(),
            counted: None,
            said: None,
            target,
        }
    }

    /// Whether it may be asked again already.
    #[must_use]
    pub fn is_due(&self) -> bool {
        let early = |started: Instant| started.elapsed() < LLAMA_INTERVAL_MIN;
        !(self.engine == Some(Engine::LlamaCpp) && self.started.is_some_and(early))
    }

    /// Whether the engine said last that it sleeps, or is paused: it would let requests wait for ever.
    #[must_use]
    pub const fn is_asleep(&self) -> bool {
        self.asleep
    }

    /// Forgets what an engine told that is gone, for the given reason: another one may come back.
    pub fn forget(&mut self, why: &str) {
        (self.seats, self.counted, self.asleep) = Default::default();
        (self.engine, self.path) = (self.target.metrics.engine, usual_path(&self.target));
        self.may_move = may_move(&self.target);
        self.said = None;
        self.target.wakes();
        self.target.set_heard(Heard { engine: self.engine, problem: Some(why.to_owned()), asleep: false });
    }

    /// Asks the engine; `prober` asks where requests go. Dropping the future closes the connection.
    pub async fn scrape(&mut self, prober: &mut Prober) -> Scraped {
        self.started = Some(Instant::now());
        self.asked = clock::now();
        // Names are sought only while something is wrong, or may be.
        let with_names = self.said != Some(Finding::Complete);
        let mut answer = self.read(prober, with_names).await;
        if let Ok(Ok(parsed)) = &answer {
            if parsed.kind == Kind::Json && self.may_move {
                self.may_move = false;
                let other_path = format!("{}{TRTLLM_PATH}", self.target.base_path);
                let usual = std::mem::replace(&mut self.path, other_path);
                let other = self.read(prober, true).await;
                match &other {
                    Ok(Ok(parsed)) if parsed.kind == Kind::Text => answer = other,
                    _ => self.path = usual,
                }
            } else if !is_whole(&parsed.report) && !with_names {
                answer = self.read(prober, true).await;
            }
        }
        self.judge(prober, answer).await
    }

    /// One question for the text; a status other than 200 is the inner error.
    async fn read(
        &mut self,
        prober: &mut Prober,
        with_names: bool,
    ) -> Result<Result<Parsed, StatusCode>, AskError> {
        let question = Question {
            path: &self.path,
            authorization: self.target.metrics.authorization.as_ref(),
            body: None,
        };
        let mut text = Text::new(with_names);
        let prober = self.apart.as_mut().unwrap_or(prober);
        match prober.ask_into(&question, &mut text).await? {
            StatusCode::OK => Ok(Ok(text.into_reader().finish(clock::now(), self.target.metrics.engine))),
            status => Ok(Err(status)),
        }
    }

    async fn judge(
        &mut self,
        prober: &mut Prober,
        answer: Result<Result<Parsed, StatusCode>, AskError>,
    ) -> Scraped {
        let (why, failure, text) = match answer {
            Ok(Ok(parsed)) => {
                if !is_whole(&parsed.report) {
                    self.target.count_scrape_failure(ScrapeFailure::Incomplete);
                }
                return self.take(prober, parsed).await;
            }
            Ok(Err(status)) => (Why::Refused, ScrapeFailure::Refused, format!("status {}", status.as_u16())),
            Err(e @ AskError::TooLarge) => (Why::Malformed, ScrapeFailure::TooLarge, e.to_string()),
            Err(e @ AskError::Unreadable(_)) => (Why::Malformed, ScrapeFailure::Incomplete, e.to_string()),
            Err(e) => (Why::Unreachable, ScrapeFailure::Unreachable, e.to_string()),
        };
        self.target.count_scrape_failure(failure);
        let report = Report { seats: self.seats(prober).await, ..unknown(why) };
        Scraped { report, lost_cache: false, is_restart: false, text: Err(text) }
    }

    async fn take(&mut self, prober: &mut Prober, parsed: Parsed) -> Scraped {
        self.engine = parsed.engine.or(self.engine);
        let falls_asleep = parsed.awake == Some(false) && !self.asleep;
        self.asleep = parsed.awake.map_or(self.asleep, |awake| !awake);
        if parsed.awake == Some(true) {
            self.target.seen_awake(self.asked);
        }
        let is_restart = self.is_restart(parsed.process_start_seconds, parsed.counted);
        let report = Report { seats: self.seats(prober).await, ..parsed.report.clone() };
        Scraped { report, lost_cache: is_restart || falls_asleep, is_restart, text: Ok(parsed) }
    }

    /// Seats of llama.cpp, asked once; others do not tell.
    async fn seats(&mut self, prober: &mut Prober) -> Signal<u32> {
        if self.engine != Some(Engine::LlamaCpp) {
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

    /// What is absent says nothing. Counts are looked at only where no time is told: sums over several processes may
    /// fall when one of them is missing.
    fn is_restart(&mut self, started: Option<f64>, counted: Option<f64>) -> bool {
        let before = started.and_then(|now| self.target.set_process_start(now)).zip(started);
        let is_another = before.is_some_and(|(was, is)| was != is);
        let counted = counted.and_then(|now| self.counted.replace(now)).zip(counted);
        let counts_anew = counted.is_some_and(|(was, is)| is < was);
        is_another || (counts_anew && started.is_none())
    }

    /// Says what is wrong with a scrape, if that is new; `kept` is its report as far as it is believed.
    pub fn say(&mut self, scraped: &Scraped, kept: &Report) {
        let (finding, names) = match &scraped.text {
            Ok(parsed) => (Finding::of(parsed, kept, self.target.metrics.engine), &parsed.names[..]),
            Err(why) => (Finding::NoAnswer(why.clone()), &[][..]),
        };
        let heard = self.target.heard();
        if self.said.as_ref() == Some(&finding) && heard.asleep == self.asleep && heard.engine == self.engine
        {
            return;
        }
        let (backend, problem) = (self.target.url.as_str(), finding.problem(names));
        match &problem {
            _ if self.said.as_ref() == Some(&finding) => {}
            Some(problem) => {
                tracing::warn!(backend, problem, "the engine's load is unknown; own counts go on");
            }
            None if self.said.is_none() => {}
            None => tracing::info!(backend, "the engine reports its load again"),
        }
        if heard.asleep != self.asleep {
            match self.asleep {
                true => tracing::warn!(backend, "the engine sleeps; it gets no requests"),
                false => tracing::info!(backend, "the engine is awake again"),
            }
        }
        self.target.set_heard(Heard { engine: self.engine, problem, asleep: self.asleep });
        self.said = Some(finding);
    }
}

fn usual_path(target: &Target) -> String {
    match (&target.metrics.path, target.metrics.engine) {
        (Some(path), _) => path.clone(),
        (None, Some(Engine::TrtLlm)) => format!("{}{TRTLLM_PATH}", target.base_path),
        (None, _) => format!("{}/metrics", target.base_path),
    }
}

/// Whether the text may turn out to be elsewhere.
const fn may_move(target: &Target) -> bool {
    target.metrics.path.is_none() && target.metrics.engine.is_none()
}

fn is_whole(report: &Report) -> bool {
    report.running.why().is_none() && report.waiting.why().is_none()
}

pub(super) fn unknown(why: Why) -> Report {
    Report {
        running: Signal::Unknown(why),
        waiting: Signal::Unknown(why),
        kv_use: Signal::Unknown(why),
        kv_tokens: Signal::Unknown(why),
        seats: Signal::default(),
        fingerprint: None,
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
    use super::{Scraper, Target, listed, slots};
    use hyper::header::HeaderValue;
    use router_policy::{BackendId, Signal, Why};
    use std::sync::Arc;

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
        let (id, addr) = (BackendId::new(0).unwrap(), "127.0.0.1:1".parse().unwrap());
        let host = HeaderValue::from_static("h");
        let target = Target::new(id, "http://h".into(), addr, host, String::new(), None, false);
        let mut s = Scraper::new(Arc::new(target), None);
        let seen = [Some(5.0), None, Some(5.0), Some(6.0), Some(6.0)].map(|t| s.is_restart(t, None));
        assert_eq!(seen, [false, false, false, true, false]);
        let counted = [Some(0.0), Some(7.0), None, Some(9.0), Some(2.0), Some(2.0)];
        let seen = counted.map(|n| s.is_restart(None, n));
        assert_eq!(seen, [false, false, false, false, true, false], "it counts anew");
        assert!(!s.is_restart(Some(6.0), Some(1.0)), "the time is the better word");
    }
}
