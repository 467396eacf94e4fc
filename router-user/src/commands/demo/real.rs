//! Recorded agent sessions over HTTP, under three policies.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use engine_sim::{EngineConfig, Profile};
use indicatif::{ProgressBar, ProgressStyle};
use router_policy::{PolicyConfig, PolicyName};
use tokio::task::JoinSet;

use super::sessions::Session;
use super::stage::{EngineKind, Stage, name};
use super::{TICK, enter};
use crate::commands::client::{Answer, CHAT, ask, chat_body};
use crate::commands::output;

const POLICIES: [PolicyName; 3] = [PolicyName::RoundRobin, PolicyName::LeastInFlight, PolicyName::PrefixCost];

/// Replays the sessions under each policy and prints what it got; true if prefix-cost hit the most tokens.
pub(super) async fn run(sessions: &[Session], engines: usize, time_scale: f64) -> anyhow::Result<bool> {
    let calls: usize = sessions.iter().map(|s| s.calls().len()).sum();
    let bar = ProgressBar::new((calls * POLICIES.len()) as u64);
    bar.set_style(ProgressStyle::with_template("{elapsed_precise} [{wide_bar}] {pos}/{len} calls, {msg}")?);
    bar.enable_steady_tick(TICK);
    let kind = EngineKind { config: EngineConfig::of(Profile::H100_70B_TP4), time_scale };
    let sessions: Vec<Arc<Session>> = sessions.iter().cloned().map(Arc::new).collect();
    let mut rows = Vec::new();
    for policy in POLICIES {
        enter(&bar, policy.as_str().to_owned());
        let stage = Stage::start(engines, &kind, PolicyConfig { policy, ..PolicyConfig::default() }).await?;
        let began = Instant::now();
        let answers = replay(&stage, &sessions, time_scale, &bar).await.context(policy.as_str())?;
        rows.push(Row::new(policy, &answers, engines, time_scale, began.elapsed()));
        stage.stop().await;
    }
    bar.finish_and_clear();
    output::answer(&report(&rows, sessions.len(), calls, engines, time_scale))?;
    let best = rows.iter().map(|r| r.cached_tokens).max();
    Ok(rows.last().map(|r| r.cached_tokens) == best)
}

async fn replay(
    stage: &Stage,
    sessions: &[Arc<Session>],
    time_scale: f64,
    bar: &ProgressBar,
) -> anyhow::Result<Vec<Answer>> {
    let to = stage.router().addr();
    let mut tasks = JoinSet::new();
    for session in sessions {
        let (session, bar) = (Arc::clone(session), bar.clone());
        tasks.spawn(async move {
            let mut answers = Vec::new();
            for call in session.calls() {
                tokio::time::sleep(Duration::from_secs_f64(call.gap_ms as f64 / 1e3 / time_scale)).await;
                let body = chat_body(&session.messages[..call.messages], call.answer_tokens);
                answers.push(ask(to, CHAT, body).await?);
                bar.inc(1);
            }
            anyhow::Ok(answers)
        });
    }
    let mut all = Vec::new();
    while let Some(answers) = tasks.join_next().await {
        all.extend(answers??);
    }
    Ok(all)
}

/// What one policy got; seconds are the engines' (scaled back).
struct Row {
    policy: PolicyName,
    prompt_tokens: u64,
    cached_tokens: u64,
    ttft: Vec<f64>,
    split: Vec<usize>,
    took: Duration,
}

impl Row {
    fn new(policy: PolicyName, answers: &[Answer], engines: usize, time_scale: f64, took: Duration) -> Self {
        let mut ttft: Vec<f64> = answers.iter().map(|a| a.ttft.as_secs_f64() * time_scale).collect();
        ttft.sort_unstable_by(f64::total_cmp);
        let served = |index| answers.iter().filter(|a| a.engine == name(index)).count();
        Self {
            policy,
            prompt_tokens: answers.iter().map(|a| a.prompt_tokens).sum(),
            cached_tokens: answers.iter().map(|a| a.cached_tokens).sum(),
            ttft,
            split: (0..engines).map(served).collect(),
            took,
        }
    }

    fn percentile_ms(&self, p: f64) -> f64 {
        let at = (p * (self.ttft.len().saturating_sub(1)) as f64).round() as usize;
        self.ttft.get(at).map_or(0.0, |s| s * 1e3)
    }
}

fn report(rows: &[Row], sessions: usize, calls: usize, engines: usize, time_scale: f64) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{sessions} recorded agent sessions (tau-bench airline), {calls} calls a policy, {engines} simulated engines \
         at {time_scale} × real time; TTFT in the engines' milliseconds.\n"
    );
    let _ = writeln!(
        text,
        "{:<16} {:>11} {:>7} {:>7} {:>7} {:>7} {:>7}  split",
        "policy", "hit tokens", "hit %", "p50", "p90", "p99", "took s"
    );
    for r in rows {
        let hit = 100.0 * r.cached_tokens as f64 / r.prompt_tokens.max(1) as f64;
        let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|p| r.percentile_ms(p));
        let split: Vec<String> = r.split.iter().map(usize::to_string).collect();
        let took = r.took.as_secs_f64();
        let _ = writeln!(
            text,
            "{:<16} {:>11} {hit:>6.1} {p50:>7.0} {p90:>7.0} {p99:>7.0} {took:>7.1}  {}",
            r.policy.as_str(),
            r.cached_tokens,
            split.join("+")
        );
    }
    text
}
