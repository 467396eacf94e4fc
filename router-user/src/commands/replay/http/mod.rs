//! The same requests over HTTP, in real time, to a router that somebody started: the row `http` of the results.
//!
//! Owns what is sent when, and what is measured; the client is `commands/client`. A request is sent when it is due,
//! whatever became of those before, and its TTFT counts from when it was due, so that a late client makes no router
//! look fast. Times are the trace's: real ones times the time scale.
//!
//! Invariant: arrivals, prompts and lengths are those that the policies in virtual time get.

mod text;

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use engine_sim::Prompt;
use router_policy::Nanos;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::keys;
use super::record::{Record, Run, Samples};
use super::trace::Trace;
use super::workload::Arrival;
use crate::commands::client::{self, Answer};

/// The name of the row.
pub(super) const NAME: &str = "http";
/// A prompt is made so long before it is due, in real time.
const PREPARE: Duration = Duration::from_millis(20);
/// An answer that takes longer in real time counts as refused.
const ANSWER_MAX: Duration = Duration::from_secs(600);
/// The in-flight counts are told so often.
const SAMPLE_NS: u64 = 1_000_000_000;

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Sent {
    pub(super) run: Run,
    /// How late each request was sent, in seconds of the trace.
    pub(super) late_seconds: Vec<f64>,
    /// Why one was refused, if any was.
    pub(super) complaint: Option<String>,
}

/// Address of `http://HOST[:PORT]`.
///
/// # Errors
/// It is of another form, or the name is not known.
pub(super) fn address(url: &str) -> Result<SocketAddr, String> {
    let authority = url.strip_prefix("http://").ok_or("use http://HOST[:PORT]")?.trim_end_matches('/');
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
    let host_port = if has_port { authority.to_owned() } else { format!("{authority}:80") };
    let mut found = host_port.to_socket_addrs().map_err(|e| format!("{host_port}: {e}"))?;
    found.next().ok_or_else(|| format!("{host_port} has no address"))
}

/// Sends everything, to each of `to` in turn, and waits for the answers; `progress` is told the requests that ended.
///
/// # Errors
/// No runtime can be had.
pub(super) fn run(
    to: &[SocketAddr],
    time_scale: f64,
    trace: &Trace,
    arrivals: &[Arrival],
    progress: &dyn Fn(u64),
) -> anyhow::Result<Sent> {
    let to: Arc<[SocketAddr]> = to.into();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("start a runtime")?;
    let ended = runtime.block_on(async {
        let clock = Clock { origin: Instant::now() + PREPARE, time_scale };
        let mut sessions = JoinSet::new();
        let mut ended = Vec::new();
        for (number, arrival) in (0..).zip(arrivals) {
            let wake = tokio::time::sleep_until(clock.instant(arrival.at) - PREPARE);
            tokio::pin!(wake);
            loop {
                // Any order will do: sessions that ended only wait to be counted.
                tokio::select! {
                    () = &mut wake => break,
                    Some(calls) = sessions.join_next() => count(calls, progress, &mut ended),
                }
            }
            sessions.spawn(session(Arc::clone(&to), clock, arrival.at, number, planned(trace, arrival)));
        }
        while let Some(calls) = sessions.join_next().await {
            count(calls, progress, &mut ended);
        }
        ended
    });
    Ok(sent(ended))
}

fn count(calls: Result<Vec<Ended>, tokio::task::JoinError>, progress: &dyn Fn(u64), ended: &mut Vec<Ended>) {
    let calls = calls.expect("invariant: a session is never cancelled and does not panic");
    progress(calls.len() as u64);
    ended.extend(calls);
}

/// Real time to the trace's and back.
#[derive(Clone, Copy, Debug)]
struct Clock {
    origin: Instant,
    time_scale: f64,
}

impl Clock {
    fn instant(self, at: Nanos) -> Instant {
        self.origin + Duration::from_secs_f64(at.seconds_since(Nanos(0)) / self.time_scale)
    }

    fn at(self, instant: Instant) -> Nanos {
        Nanos::from_secs_f64(instant.saturating_duration_since(self.origin).as_secs_f64() * self.time_scale)
    }
}

/// A call to be sent.
struct Planned {
    prompt: Prompt,
    output_tokens: u32,
    gap_seconds: f64,
}

/// A call that was sent and is over.
struct Ended {
    late_seconds: f64,
    outcome: Result<(Record, String), String>,
}

fn planned(trace: &Trace, arrival: &Arrival) -> Vec<Planned> {
    let calls = trace.sessions[arrival.session as usize].calls.iter();
    let plan = |call: &super::trace::Call| Planned {
        prompt: keys::prompt(trace, call, arrival.copy),
        output_tokens: call.output_tokens,
        gap_seconds: call.gap_seconds,
    };
    calls.map(plan).collect()
}

/// Sends a session's calls, each when the one before was answered; ends early when one is refused.
async fn session(
    to: Arc<[SocketAddr]>,
    clock: Clock,
    start: Nanos,
    number: u64,
    calls: Vec<Planned>,
) -> Vec<Ended> {
    let (mut ended, mut before) = (Vec::new(), start);
    for (turn, call) in (0..).zip(&calls) {
        let body = body(call, keys::mix(number) ^ turn);
        let due = Nanos(before.0.saturating_add(Nanos::from_secs_f64(call.gap_seconds).0));
        tokio::time::sleep_until(clock.instant(due)).await;
        let late_seconds = clock.at(Instant::now()).seconds_since(due);
        let turn_of = to[(number.wrapping_add(turn) % to.len() as u64) as usize];
        let answer = tokio::time::timeout(ANSWER_MAX, client::ask(turn_of, client::COMPLETION, body)).await;
        let outcome = match answer {
            Ok(Ok(answer)) => Ok((record(&answer, due, clock), answer.engine)),
            Ok(Err(error)) => Err(format!("{error:#}")),
            Err(_) => Err(format!("no whole answer within {} s", ANSWER_MAX.as_secs())),
        };
        let is_refused = outcome.is_err();
        if let Ok((record, _)) = &outcome {
            before = record.ended;
        }
        ended.push(Ended { late_seconds, outcome });
        if is_refused {
            break;
        }
    }
    ended
}

/// The request: a stream, of a prompt that no other request's tail is equal to.
fn body(call: &Planned, unique: u64) -> Bytes {
    let body = json!({
        "prompt": text::of(&call.prompt, unique), "max_tokens": call.output_tokens, "ignore_eos": true,
        "stream": true, "stream_options": {"include_usage": true},
    });
    Bytes::from(body.to_string())
}

fn record(answer: &Answer, due: Nanos, clock: Clock) -> Record {
    let tokens = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    Record {
        sent: due,
        first_token: clock.at(answer.first.into()),
        ended: clock.at(answer.ended.into()),
        prompt_tokens: tokens(answer.prompt_tokens),
        cached_tokens: tokens(answer.cached_tokens),
        engine: 0,
    }
}

/// Calls in the order of their ends, engines by the order of their first answers.
fn sent(calls: Vec<Ended>) -> Sent {
    let mut sent = Sent::default();
    let mut engines: Vec<String> = Vec::new();
    for Ended { late_seconds, outcome } in calls {
        sent.late_seconds.push(late_seconds);
        match outcome {
            Ok((record, name)) => {
                let engine = engines.iter().position(|known| *known == name).unwrap_or_else(|| {
                    engines.push(name);
                    engines.len() - 1
                });
                sent.run.records.push(Record { engine, ..record });
            }
            Err(why) => {
                sent.run.refused += 1;
                sent.complaint.get_or_insert(why);
            }
        }
    }
    sent.run.records.sort_by_key(|r| r.ended);
    sent.run.makespan = sent.run.records.last().map_or(Nanos(0), |r| r.ended);
    sent.run.samples = samples(&sent.run.records, engines.len().max(1));
    sent
}

/// How many were in flight at each engine, from when each was due to its end.
fn samples(records: &[Record], engines: usize) -> Samples {
    let begun = records.iter().map(|r| (r.sent, r.engine, true));
    let mut changes: Vec<_> = begun.chain(records.iter().map(|r| (r.ended, r.engine, false))).collect();
    changes.sort_unstable();
    let (mut samples, mut in_flight) = (Samples::new(SAMPLE_NS, engines), vec![0_u32; engines]);
    for (at, engine, begins) in changes {
        samples.until(at, &in_flight);
        let count = &mut in_flight[engine];
        *count = if begins { *count + 1 } else { count.saturating_sub(1) };
    }
    samples
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
