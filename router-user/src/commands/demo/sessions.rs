//! Recorded agent sessions: what `--real` replays.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::Value;

/// 40 of 200 real tool-agent sessions; see `data/README.md` for source and licence.
const BUILT_IN: &[u8] = include_bytes!("../../../data/tau_airline_slice.jsonl.zst");

/// Largest trace read, unpacked.
const TRACE_BYTES_MAX: u64 = 1 << 30;
/// Characters per token, for the length of an answer.
const CHARS_PER_TOKEN: usize = 4;

/// One conversation.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Session {
    /// All messages, OpenAI form.
    pub(super) messages: Vec<Value>,
    /// Before each assistant message: the wait since the answer before it.
    pub(super) gaps_ms: Vec<u64>,
}

/// One call of a session: the messages before an assistant message, and how long that message was.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// Messages to send: so many of the session's first.
    pub(super) messages: usize,
    /// Tokens of the answer.
    pub(super) answer_tokens: u32,
    /// Wait before sending.
    pub(super) gap_ms: u64,
}

impl Session {
    /// The calls of the session, in order.
    pub(super) fn calls(&self) -> Vec<Call> {
        let assistants = self.messages.iter().enumerate().filter(|(_, m)| m["role"] == "assistant");
        assistants
            .zip(self.gaps_ms.iter().chain(std::iter::repeat(&0)))
            .filter(|((index, _), _)| *index > 0)
            .map(|((index, message), gap_ms)| {
                let said = message.get("content").and_then(Value::as_str).map_or(0, str::len);
                let called = message.get("tool_calls").filter(|t| t.is_array()).map_or(0, |t| t.to_string().len());
                let answer_tokens = ((said + called) / CHARS_PER_TOKEN).clamp(1, 4096) as u32;
                Call { messages: index, answer_tokens, gap_ms: *gap_ms }
            })
            .collect()
    }
}

/// The sessions of a file, or the built-in ones.
///
/// # Errors
/// A file that cannot be read, is no zstd where its name says so, or has a line that is no session.
pub(super) fn load(file: Option<&Path>) -> anyhow::Result<Vec<Session>> {
    let (bytes, name) = match file {
        Some(path) => {
            let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            (bytes, path.display().to_string())
        }
        None => (BUILT_IN.to_vec(), "built-in.zst".to_owned()),
    };
    let text = if name.ends_with(".zst") { unpack(&bytes).context(name.clone())? } else { String::from_utf8(bytes)? };
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let sessions: Vec<Session> = lines
        .map(|(n, line)| serde_json::from_str(line).with_context(|| format!("{name}, line {}", n + 1)))
        .collect::<anyhow::Result<_>>()?;
    ensure!(sessions.iter().any(|s| !s.calls().is_empty()), "{name} has no session with a call");
    Ok(sessions)
}

fn unpack(bytes: &[u8]) -> anyhow::Result<String> {
    let mut text = String::new();
    zstd::stream::read::Decoder::new(bytes)?.take(TRACE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::load;

    #[test]
    fn the_built_in_slice_has_forty_sessions_of_several_calls() {
        let sessions = load(None).unwrap();
        assert_eq!(sessions.len(), 40);
        let calls: Vec<_> = sessions.iter().map(super::Session::calls).collect();
        assert!(calls.iter().all(|c| !c.is_empty()));
        assert_eq!(calls.iter().map(Vec::len).sum::<usize>(), 497);
        for (session, calls) in sessions.iter().zip(&calls) {
            assert!(calls.windows(2).all(|w| w[0].messages < w[1].messages), "each call sends more");
            assert!(calls.iter().all(|c| session.messages[c.messages]["role"] == "assistant"));
        }
    }

    #[test]
    fn a_line_that_is_no_session_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "{\"messages\":[],\"gaps_ms\":[]}\nnonsense\n").unwrap();
        let error = format!("{:#}", load(Some(file.path())).unwrap_err());
        assert!(error.contains("line 2"), "{error}");
    }
}
