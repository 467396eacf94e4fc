//! Recorded agent sessions with text: a JSON line a session; its n-th call sends all before its n-th assistant
//! message, and expects an answer as long as that message.

use serde::Deserialize;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Call, Session};

/// Four bytes of text are a token, and an id names 16 of them.
const UNIT_TOKENS: u32 = 16;
const TOKEN_BYTES: usize = 4;
const UNIT_BYTES: usize = UNIT_TOKENS as usize * TOKEN_BYTES;

#[derive(Deserialize)]
struct Line {
    messages: Vec<Value>,
    /// Before each assistant message: the wait since the answer before it.
    #[serde(default)]
    gaps_ms: Vec<f64>,
    /// When the session began, in milliseconds, where that is known.
    timestamp: Option<f64>,
}

/// The session of a line; `None` if it has no call.
pub(super) fn parse(line: &str) -> Result<Option<Session>, serde_json::Error> {
    let line: Line = serde_json::from_str(line)?;
    let mut gaps = line.gaps_ms.iter().map(|ms| ms.max(0.0) / 1e3).chain(std::iter::repeat(0.0));
    let (mut prompt, mut calls) = (Prompt::default(), Vec::new());
    for message in &line.messages {
        if message["role"] == "assistant" {
            let gap_seconds = gaps.next().unwrap_or_default();
            if prompt.bytes > 0 {
                let output_tokens = text_bytes(message).div_ceil(TOKEN_BYTES).clamp(1, 1 << 20) as u32;
                calls.push(prompt.call(output_tokens, gap_seconds));
            }
        }
        prompt.push(message);
    }
    let start_seconds = line.timestamp.map(|ms| (ms / 1e3).max(0.0));
    Ok((!calls.is_empty()).then_some(Session { start_seconds, calls, is_one_client: true }))
}

/// All text so far, as chained ids of whole units and the bytes of the one begun.
#[derive(Default)]
struct Prompt {
    ids: Vec<u64>,
    begun: Vec<u8>,
    bytes: usize,
}

impl Prompt {
    fn push(&mut self, message: &Value) {
        for text in texts(message) {
            self.bytes += text.len();
            self.begun.extend_from_slice(text.as_bytes());
            let whole = self.begun.len() / UNIT_BYTES * UNIT_BYTES;
            for unit in self.begun[..whole].chunks_exact(UNIT_BYTES) {
                self.ids.push(xxh3_64_with_seed(unit, self.ids.last().copied().unwrap_or_default()));
            }
            self.begun.drain(..whole);
        }
    }

    fn call(&self, output_tokens: u32, gap_seconds: f64) -> Call {
        let prompt_tokens = u32::try_from(self.bytes.div_ceil(TOKEN_BYTES)).unwrap_or(u32::MAX);
        Call {
            ids: self.ids.as_slice().into(),
            unit_tokens: UNIT_TOKENS,
            prompt_tokens,
            output_tokens,
            gap_seconds,
        }
    }
}

/// Role, content and tool calls of a message.
fn texts(message: &Value) -> impl Iterator<Item = String> {
    let role = message["role"].as_str().unwrap_or_default().to_owned();
    [role].into_iter().chain(said(message))
}

/// Content and tool calls: what an assistant generates.
fn said(message: &Value) -> impl Iterator<Item = String> {
    let content = match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let tools = message.get("tool_calls").filter(|calls| calls.is_array()).map(Value::to_string);
    [content].into_iter().chain(tools)
}

fn text_bytes(message: &Value) -> usize {
    said(message).map(|text| text.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(user: &str) -> Session {
        let line = format!(
            r#"{{"gaps_ms": [0, 1500], "messages": [{{"role":"system","content":"{}"}},
            {{"role":"user","content":"{user}"}}, {{"role":"assistant","content":"12345678"}},
            {{"role":"user","content":"more"}}, {{"role":"assistant","content":null,"tool_calls":[1]}}]}}"#,
            "s".repeat(122),
        );
        parse(&line.replace('\n', " ")).unwrap().unwrap()
    }

    #[test]
    fn a_call_sends_all_before_an_assistant_message() {
        let session = session("hello");
        assert_eq!(session.start_seconds, None);
        let [first, second] = session.calls.as_slice() else { panic!("two calls: {session:?}") };
        assert_eq!(first.prompt_tokens, (128_u32 + 4 + 5).div_ceil(4), "roles and contents");
        assert_eq!((first.output_tokens, first.gap_seconds), (2, 0.0));
        assert_eq!((second.output_tokens, second.gap_seconds), (1, 1.5), "a tool call is generated too");
        assert_eq!(second.prompt_tokens, (137_u32 + 9 + 8 + 4 + 4).div_ceil(4));
        assert_eq!(second.ids[..first.ids.len()], *first.ids, "the second extends the first");
    }

    #[test]
    fn equal_beginnings_have_equal_ids_and_then_no_more() {
        let (a, b) = (session(&"a".repeat(64)), session(&"b".repeat(64)));
        assert_eq!(a.calls[0].ids[..2], b.calls[0].ids[..2], "the system prompt");
        assert_ne!(a.calls[0].ids[2], b.calls[0].ids[2]);
        assert_ne!(a.calls[1].ids.last(), b.calls[1].ids.last(), "ids are chained");
    }

    #[test]
    fn a_session_without_a_call_is_none() {
        assert_eq!(parse(r#"{"messages": [{"role":"user","content":"x"}]}"#).unwrap(), None);
        assert!(parse(r#"{"gaps_ms": []}"#).is_err());
    }
}
