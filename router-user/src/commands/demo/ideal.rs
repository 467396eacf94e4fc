//! What the engine model says a burst takes at an even split: the measure for the real run.

use engine_sim::model::{EventKind, PromptBuilder};
use engine_sim::{Engine, EngineConfig, Nanos, Request, RequestId};

/// Seconds that one engine needs for a burst, in virtual time. `warm` were served before. A prompt is a list of texts.
///
/// # Errors
/// The engine's own refusal.
pub(super) fn makespan_seconds(
    config: &EngineConfig,
    warm: &[Vec<String>],
    burst: &[Vec<String>],
    answer_tokens: u32,
) -> anyhow::Result<f64> {
    let mut engine = Engine::new(*config)?;
    let mut now = Nanos(0);
    for (id, texts) in (0..).zip(warm) {
        submit(&mut engine, now, id, texts, 1)?;
        now = drain(&mut engine, now);
    }
    let start = now;
    for (id, texts) in (1000..).zip(burst) {
        submit(&mut engine, start, id, texts, answer_tokens)?;
    }
    Ok((drain(&mut engine, start).0 - start.0) as f64 / 1e9)
}

fn submit(engine: &mut Engine, now: Nanos, id: u64, texts: &[String], max_tokens: u32) -> anyhow::Result<()> {
    let mut prompt = PromptBuilder::default();
    for text in texts {
        prompt.push(text.as_bytes());
    }
    Ok(engine.submit(now, Request { id: RequestId(id), prompt: prompt.build(), max_tokens })?)
}

/// Runs until nothing is left to do; the time of the last end.
fn drain(engine: &mut Engine, from: Nanos) -> Nanos {
    let (mut last, mut events) = (from, Vec::new());
    while let Some(at) = engine.next_event() {
        engine.advance(at, &mut events);
        let ends = events.drain(..).filter(|e| matches!(e.kind, EventKind::Finished));
        last = ends.map(|e| e.at).fold(last, Nanos::max);
    }
    last
}
