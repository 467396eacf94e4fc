//! Mooncake's form: a JSON line a request, with an id for each 512 tokens of prompt.

use serde::Deserialize;

use super::{Call, Session};

/// Tokens an id stands for.
const UNIT_TOKENS: u32 = 512;

#[derive(Deserialize)]
struct Line {
    /// Milliseconds.
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

/// The request of a line.
pub(super) fn parse(line: &str) -> Result<Session, serde_json::Error> {
    let line: Line = serde_json::from_str(line)?;
    let call = Call {
        ids: line.hash_ids.into(),
        unit_tokens: UNIT_TOKENS,
        prompt_tokens: line.input_length.max(1),
        output_tokens: line.output_length.max(1),
        gap_seconds: 0.0,
    };
    Ok(Session {
        start_seconds: Some((line.timestamp / 1e3).max(0.0)),
        calls: vec![call],
        is_one_client: false,
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_line_is_a_session_of_one_call() {
        let line = r#"{"timestamp": 3000, "input_length": 700, "output_length": 0, "hash_ids": [4, 9]}"#;
        let session = super::parse(line).unwrap();
        assert_eq!(session.start_seconds, Some(3.0));
        let call = &session.calls[0];
        assert_eq!((call.ids.as_ref(), call.unit_tokens), (&[4, 9][..], 512));
        assert_eq!((call.prompt_tokens, call.output_tokens), (700, 1));
        assert!(super::parse(r#"{"timestamp": 1}"#).is_err());
    }
}
