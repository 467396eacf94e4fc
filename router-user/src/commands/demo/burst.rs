//! Eight new sessions at once on two equal engines, under three policies.
//!
//! The warm-up makes the rate of the window mislead: twelve short requests on A, two long ones on B, all over
//! before the burst; and B alone knows the shared system prompt. A policy that looks at the rate puts all eight
//! on B and keeps them there; one that looks at live load puts four on each.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use engine_sim::{EngineConfig, Profile};
use indicatif::{ProgressBar, ProgressStyle};
use router_policy::{BackendId, Fallback, Outcome, PolicyConfig, PolicyName, Usage};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::ideal::makespan_seconds;
use super::stage::{EngineKind, Stage, name};
use super::{TICK, enter, kernel_view};
use crate::account::State;
use crate::commands::client::{Answer, CHAT, ask, ask_noting, chat_body};
use crate::commands::output;
use crate::parse;

const SEATS: u32 = 4;
const SESSIONS: usize = 8;
const TURNS: usize = 3;
const SHORT_REQUESTS: usize = 12;
const SYSTEM_BYTES: usize = 8192;
const OWN_BYTES: usize = 2304;
const TURN_BYTES: usize = 400;
const ANSWER_TOKENS: u32 = 100;
const LONG_ANSWER_TOKENS: u32 = 120;
/// Threshold above the shared prompt, below a session's second turn.
const MIN_MATCH: u64 = 9216;
/// Real time may exceed the model's by this.
const SLACK: f64 = 1.05;

/// One of the three runs.
struct Act {
    title: &'static str,
    policy: PolicyConfig,
    /// Whether it is there to fail.
    shows_the_failure: bool,
}

/// What a run showed.
struct Shown {
    split: [usize; 2],
    queue_peak: u32,
    makespan: f64,
    ttft: Vec<f64>,
    /// Per session, the engine of each turn.
    went: Vec<Vec<String>>,
    kernel: String,
}

fn acts() -> [Act; 3] {
    let threshold = |fallback| PolicyConfig {
        policy: PolicyName::PrefixThreshold,
        prefix_min_match: MIN_MATCH,
        fallback,
        ..PolicyConfig::default()
    };
    [
        Act {
            title: "prefix-threshold --fallback lowest-qps",
            policy: threshold(Fallback::LowestQps),
            shows_the_failure: true,
        },
        Act {
            title: "prefix-threshold --fallback least-in-flight",
            policy: threshold(Fallback::LeastInFlight),
            shows_the_failure: false,
        },
        Act { title: "prefix-cost (default)", policy: PolicyConfig::default(), shows_the_failure: false },
    ]
}

/// Runs the three acts and prints what they showed; true if each showed what it should.
pub(super) async fn run() -> anyhow::Result<bool> {
    let kind = EngineKind {
        config: EngineConfig { max_num_seqs: SEATS, ..EngineConfig::of(Profile::H100_70B_TP4) },
        time_scale: 1.0,
    };
    let ideal = ideal_seconds(&kind.config)?;
    let acts = acts();
    let bar = ProgressBar::new((acts.len() * (1 + TURNS)) as u64);
    bar.set_style(ProgressStyle::with_template("{elapsed_precise} [{wide_bar}] {msg}")?);
    bar.enable_steady_tick(TICK);
    let mut shown = Vec::new();
    for act in &acts {
        shown.push(play(act, &kind, &bar).await.with_context(|| act.title.to_owned())?);
    }
    bar.finish_and_clear();
    let (text, all_right) = report(&acts, &shown, ideal);
    output::answer(&text)?;
    Ok(all_right)
}

async fn play(act: &Act, kind: &EngineKind, bar: &ProgressBar) -> anyhow::Result<Shown> {
    enter(bar, format!("{}: warm-up", act.title));
    let stage = Stage::start(2, kind, act.policy.clone()).await?;
    warm_up(&stage).await?;
    bar.inc(1);
    let to = stage.router().addr();
    let mut sessions: Vec<Vec<Value>> = (0..SESSIONS).map(opening).collect();
    let mut went = vec![Vec::new(); SESSIONS];
    enter(bar, format!("{}: the burst", act.title));
    for engine in &stage.engines {
        engine.reset_peaks();
    }
    let sent = Instant::now();
    let burst = all_at_once(to, &sessions);
    let (answers, kernel) = tokio::join!(burst, look_at_kernel(&stage));
    let answers = answers?;
    let queue_peak = stage.engines.iter().map(|e| e.stats().seat_queue_peak).max().unwrap_or(0);
    bar.inc(1);
    let ended = answers.iter().map(|a| a.ended).max().unwrap_or(sent);
    note(&answers, &mut went);
    for turn in 1..TURNS {
        enter(bar, format!("{}: turn {}", act.title, turn + 1));
        for (index, messages) in sessions.iter_mut().enumerate() {
            messages
                .push(json!({"role": "assistant", "content": text(&format!("answer {index} {turn}"), 400)}));
            messages
                .push(json!({"role": "user", "content": text(&format!("next {index} {turn}"), TURN_BYTES)}));
        }
        note(&all_at_once(to, &sessions).await?, &mut went);
        bar.inc(1);
    }
    stage.stop().await;
    let first = |engine: String| went.iter().filter(|turns| turns[0] == engine).count();
    Ok(Shown {
        split: [first(name(0)), first(name(1))],
        queue_peak,
        makespan: (ended - sent).as_secs_f64(),
        ttft: answers.iter().map(|a| a.ttft.as_secs_f64()).collect(),
        went,
        kernel,
    })
}

fn note(answers: &[Answer], went: &mut [Vec<String>]) {
    for (turns, answer) in went.iter_mut().zip(answers) {
        turns.push(answer.engine.clone());
    }
}

/// Sends every session's messages at once; answers in the order of the sessions.
async fn all_at_once(to: SocketAddr, sessions: &[Vec<Value>]) -> anyhow::Result<Vec<Answer>> {
    let mut tasks = JoinSet::new();
    for (index, messages) in sessions.iter().enumerate() {
        let body = chat_body(messages, ANSWER_TOKENS);
        tasks.spawn(async move { (index, ask(to, CHAT, body).await) });
    }
    let mut answers: Vec<Option<Answer>> = vec![None; sessions.len()];
    while let Some(task) = tasks.join_next().await {
        let (index, answer) = task?;
        answers[index] = Some(answer.with_context(|| format!("session {}", index + 1))?);
    }
    answers.into_iter().map(|a| a.ok_or_else(|| anyhow!("a session got no answer"))).collect()
}

/// Dumps the kernel's counters as soon as all sessions are in flight.
async fn look_at_kernel(stage: &Stage) -> String {
    if let State::Off { reason } = stage.router().account().state() {
        return format!("no kernel counters, this run counted in process memory: {reason}\n");
    }
    let ledger = stage.router().ledger();
    let in_flight = || -> usize {
        let own = |id: &BackendId| ledger.snapshot(*id).map_or(0, |s| s.own.requests as usize);
        ledger.backends().iter().map(own).sum()
    };
    for _ in 0..200 {
        if in_flight() == SESSIONS {
            return kernel_view::dump(&stage.pin_dir).await;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    "the eight requests were never in flight all at once, so there is nothing to show".to_owned()
}

/// Twelve short requests on A one after another, and two long ones on B, placed by force, not by the policy.
async fn warm_up(stage: &Stage) -> anyhow::Result<()> {
    let [a, b] = [0, 1].map(|index| stage.router().ledger().backends()[index]);
    let short = async {
        for index in 0..SHORT_REQUESTS {
            let message = json!({"role": "user", "content": text(&format!("short {index}"), 200)});
            forced(stage, a, &[message], 4).await?;
        }
        anyhow::Ok(())
    };
    let long = |index: usize| async move {
        let own = json!({"role": "user", "content": text(&format!("long {index}"), OWN_BYTES)});
        forced(stage, b, &[system_message(), own], LONG_ANSWER_TOKENS).await
    };
    let (short, first, second) = tokio::join!(short, long(0), long(1));
    short.and(first).and(second).context("warm-up")
}

/// One request to the engine that the caller chose, counted and learned from like any other.
async fn forced(stage: &Stage, id: BackendId, messages: &[Value], max_tokens: u32) -> anyhow::Result<()> {
    let body = chat_body(messages, max_tokens);
    let ledger = stage.router().ledger();
    let shape = parse::shape(&body, stage.router().hash_key())?;
    let (_, mut guard) = ledger.pick_forced(&shape, id)?;
    let engine =
        &stage.engines[stage.router().ledger().backends().iter().position(|&b| b == id).unwrap_or(0)];
    ask_noting(engine.addr(), CHAT, body, || guard.first_byte()).await?;
    guard.finish(Outcome::Completed, &Usage::default());
    Ok(())
}

fn opening(index: usize) -> Vec<Value> {
    vec![system_message(), json!({"role": "user", "content": text(&format!("session {index}"), OWN_BYTES)})]
}

fn system_message() -> Value {
    json!({"role": "system", "content": text("the shared system prompt", SYSTEM_BYTES)})
}

/// Exactly `bytes` of text that differs from the first words on.
fn text(what: &str, bytes: usize) -> String {
    let mut text = format!("{what}; ").repeat(bytes / what.len() + 1);
    text.truncate(bytes);
    text
}

/// The burst at 4+4 in the engine model's own time: the slower of an engine that knows the shared prompt and one
/// that does not.
fn ideal_seconds(config: &EngineConfig) -> anyhow::Result<f64> {
    // The engine counts a message's role and text.
    let own = |index: usize| -> Vec<String> {
        let texts = opening(index);
        let part = |m: &Value, key: &str| m[key].as_str().unwrap_or_default().to_owned();
        texts.iter().flat_map(|m| [part(m, "role"), part(m, "content")]).collect()
    };
    let burst: Vec<Vec<String>> = (0..SESSIONS / 2).map(own).collect();
    let cold = makespan_seconds(config, &[], &burst, ANSWER_TOKENS)?;
    let warm = makespan_seconds(config, &[own(99)], &burst, ANSWER_TOKENS)?;
    Ok(cold.max(warm))
}

fn report(acts: &[Act], shown: &[Shown], ideal: f64) -> (String, bool) {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "Eight new sessions at once, two equal engines of {SEATS} seats; only B knows their system prompt.\n"
    );
    let _ = writeln!(
        text,
        "{:<46} {:>5} {:>6} {:>12} {:>9} {:>7} {:>15}",
        "policy", "split", "queued", "idle engine", "makespan", "/ideal", "TTFT mean/max s"
    );
    let mut all_right = true;
    for (act, s) in acts.iter().zip(shown) {
        let mean = s.ttft.iter().sum::<f64>() / s.ttft.len() as f64;
        let max = s.ttft.iter().copied().fold(0.0, f64::max);
        let idle = if s.split.contains(&0) { "yes" } else { "no" };
        let split = format!("{}+{}", s.split[0], s.split[1]);
        let (took, ratio) = (s.makespan, s.makespan / ideal);
        let _ = writeln!(
            text,
            "{:<46} {split:>5} {:>6} {idle:>12} {took:>7.2} s {ratio:>7.2} {mean:>7.2} / {max:<5.2}",
            act.title, s.queue_peak
        );
        let is_even = s.split == [4, 4] && s.queue_peak == 0 && ratio <= SLACK;
        let is_as_it_should_be = is_even != act.shows_the_failure;
        all_right &= is_as_it_should_be;
    }
    let _ = writeln!(
        text,
        "{:<46} {:>5} {:>6} {:>12} {ideal:>7.2} s {:>7}   (the engine model's virtual time)\n",
        "ideal", "4+4", 0, "no", "1.00"
    );
    for (act, s) in acts.iter().zip(shown) {
        let _ = writeln!(text, "Where each session went, turn by turn: {}", act.title);
        let turns: Vec<String> =
            s.went.iter().enumerate().map(|(i, t)| format!("{}: {}", i + 1, t.join(" "))).collect();
        let _ = writeln!(text, "  {}", turns.join("   "));
        let moved = s.went.iter().filter(|t| t.iter().collect::<BTreeSet<_>>().len() > 1).count();
        let _ =
            writeln!(text, "  {} of {SESSIONS} stayed on one engine for all {TURNS} turns", SESSIONS - moved);
    }
    let _ = writeln!(text, "\nThe kernel during the burst ({}):\n{}", acts[2].title, shown[2].kernel);
    let _ = writeln!(
        text,
        "{}",
        if all_right {
            "All as it should be: live load splits 4+4, the rate does not."
        } else {
            "NOT as it should be: the last two runs must split 4+4 without a queue, the first must not."
        }
    );
    (text, all_right)
}

#[cfg(test)]
mod tests {
    use super::{ANSWER_TOKENS, EngineConfig, OWN_BYTES, Profile, SEATS, SYSTEM_BYTES, ideal_seconds, text};

    #[test]
    fn texts_have_their_length_and_differ_at_once() {
        assert_eq!(text("a b", OWN_BYTES).len(), OWN_BYTES);
        assert_ne!(text("session 1", 20)[..12], text("session 2", 20)[..12]);
        assert_eq!(SYSTEM_BYTES % 256, 0);
    }

    #[test]
    fn the_ideal_lies_between_one_stream_and_one_after_another() {
        let config = EngineConfig { max_num_seqs: SEATS, ..EngineConfig::of(Profile::H100_70B_TP4) };
        let ideal = ideal_seconds(&config).unwrap();
        let alone = f64::from(ANSWER_TOKENS) * 0.017;
        assert!(ideal > alone && ideal < 4.0 * alone, "{ideal}");
    }
}
