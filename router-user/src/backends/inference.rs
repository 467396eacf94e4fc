//! An inference of our own: one token, now and then, over a connection that the kernel's counts know for a probe. It is
//! the only question that a wedged engine does not answer; and the only one that costs it something, so it is not asked
//! while requests show that it lives. It is no client's and is in no count of ours.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::probe::{AskError, Prober};
use super::watch::ReportSink;
use super::{Mark, Target};
use crate::clock;
use crate::config::ModelType;

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
        let Some((path, body)) = question(target.model_type, &model) else {
            return std::future::pending().await;
        };
        // A connection that does not come about is the watch's to judge.
        if let Some(is_answered) = is_answered(&mut prober, path, &body).await {
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

/// The least that a model of a type can be asked for; `None`: not in JSON.
fn question(model_type: Option<ModelType>, model: &str) -> Option<(&'static str, Value)> {
    let mut body = match model_type {
        None | Some(ModelType::Completion) => json!({"prompt": "1", "max_tokens": 1, "temperature": 0}),
        Some(ModelType::Chat | ModelType::Vision | ModelType::Messages) => {
            json!({"messages": [{"role": "user", "content": "1"}], "max_tokens": 1, "temperature": 0})
        }
        Some(ModelType::Embeddings) => json!({"input": "1"}),
        Some(ModelType::Rerank) => json!({"query": "1", "documents": ["1"]}),
        Some(ModelType::Score) => json!({"text_1": "1", "text_2": "1"}),
        Some(ModelType::Transcription) => return None,
    };
    body["model"] = model.into();
    Some((model_type.unwrap_or(ModelType::Completion).path(), body))
}

async fn is_answered(prober: &mut Prober, path: &str, body: &Value) -> Option<bool> {
    match prober.post(path, Bytes::from(body.to_string()), ANSWER_BYTES_MAX).await {
        // A refusal is an answer; what it wants of a request it knows best.
        Ok(answer) => Some(!answer.status.is_server_error()),
        Err(AskError::Connect(_)) => None,
        Err(_) => Some(false),
    }
}

#[cfg(test)]
mod tests {
    use super::{ModelType, question};

    #[test]
    fn each_type_is_asked_on_its_own_path_for_the_model() {
        for (model_type, path, key) in [
            (None, "/v1/completions", "prompt"),
            (Some(ModelType::Chat), "/v1/chat/completions", "messages"),
            (Some(ModelType::Messages), "/v1/messages", "messages"),
            (Some(ModelType::Embeddings), "/v1/embeddings", "input"),
            (Some(ModelType::Rerank), "/v1/rerank", "documents"),
            (Some(ModelType::Score), "/v1/score", "text_2"),
        ] {
            let (asked, body) = question(model_type, "m").unwrap();
            assert_eq!((asked, &body["model"]), (path, &"m".into()));
            assert!(!body[key].is_null(), "{body}");
        }
        assert_eq!(question(Some(ModelType::Transcription), "m"), None, "speech is no JSON");
    }
}
