//! An inference of our own: one token, now and then, over a connection that the kernel's counts know for a probe. It is
//! the only question that a wedged engine does not answer; and the only one that costs it something, so it is not asked
//! while requests show that it lives. It is no client's and is in no count of ours.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::time::Instant;

use super::probe::{AskError, Prober};
use super::watch::ReportSink;
use super::{Mark, Target};
use crate::clock;

/// Bytes of an answer of one token at most.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// How engines are asked for a token.
#[derive(Clone, Copy, Debug)]
pub struct Inference {
    /// From question to question.
    pub interval: Duration,
    /// For an answer.
    pub timeout: Duration,
}

/// Asks for ever. Dropping the future closes the connection.
pub(super) async fn ask(
    target: Arc<Target>,
    sink: Arc<dyn ReportSink>,
    config: Inference,
    mark: Option<Mark>,
) {
    let mut prober = Prober::new(Arc::clone(&target), config.timeout, mark);
    let mut next = Instant::now();
    loop {
        next += config.interval;
        tokio::time::sleep_until(next).await;
        let now = clock::now();
        let before = router_policy::Nanos(now.0.saturating_sub(config.interval.as_nanos() as u64));
        // Nobody is there, or its requests show that it lives.
        let is_needed = target.may_try(now) && !target.vitals.has_bytes_since(before);
        let Some(model) = target.first_model().filter(|_| is_needed) else { continue };
        // A connection that does not come about is the watch's to judge.
        if let Some(is_answered) = is_answered(&mut prober, &model).await {
            let tell = |trust| sink.trust(target.id, trust);
            target.vitals.inferred(clock::now(), is_answered, &tell);
            if !is_answered {
                tracing::warn!(backend = target.url, "the engine did not answer an inference probe");
            }
        }
        // Late by its answer; no two at once.
        next = next.max(Instant::now());
    }
}

async fn is_answered(prober: &mut Prober, model: &str) -> Option<bool> {
    let body = json!({"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0});
    match prober.post("/v1/completions", Bytes::from(body.to_string()), ANSWER_BYTES_MAX).await {
        // A refusal is an answer; what it wants of a request it knows best.
        Ok(answer) => Some(!answer.status.is_server_error()),
        Err(AskError::Connect(_)) => None,
        Err(_) => Some(false),
    }
}
