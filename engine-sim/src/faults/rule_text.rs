//! A rule in one word, for a flag: `KIND[,KEY=VALUE…]`, as in `status,code=429,retry_after_s=2,rate=0.1`.
//!
//! The keys are those of the JSON form, of the rule and of its fault alike; so the JSON form says what is legal.

use std::str::FromStr;

use serde_json::{Map, Value, json};

use super::spec::Rule;

/// Why a text is no rule.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    /// An item without `=`.
    #[error("'{0}' is not KEY=VALUE")]
    NoValue(String),
    /// No such fault, key or value.
    #[error("'{text}' is no fault: {source}")]
    Unknown {
        /// The whole text.
        text: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let mut items = text.split(',').map(str::trim);
        let kind = items.next().unwrap_or_default();
        let (mut rule, mut fields) = (Map::new(), Map::new());
        for item in items {
            let (key, value) = item.split_once('=').ok_or_else(|| RuleError::NoValue(item.to_owned()))?;
            let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
            let into = if matches!(key, "on" | "rate" | "next") { &mut rule } else { &mut fields };
            into.insert(key.to_owned(), value);
        }
        // Without fields it may be one of those that never have any.
        let has_fields = matches!(kind, "delay" | "status" | "cut") || !fields.is_empty();
        let fault = if has_fields { json!({ kind: fields }) } else { json!(kind) };
        rule.insert("fault".to_owned(), fault);
        serde_json::from_value(Value::Object(rule))
            .map_err(|source| RuleError::Unknown { text: text.to_owned(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::{CutEnd, Delay, Fault, On};

    #[test]
    fn a_word_is_the_rule_that_json_would_be() {
        for (text, want) in [
            ("hang", Rule::always(Fault::Hang)),
            ("reset,next=3", Rule::next(Fault::Reset, 3)),
            (
                "status,code=429,retry_after_s=2,rate=0.1",
                Rule::rate(Fault::Status { code: 429, retry_after_s: Some(2) }, 0.1),
            ),
            ("cut,after_tokens=5,end=done", Rule::always(Fault::Cut { after_tokens: 5, end: CutEnd::Done })),
            (
                "delay,between_chunks_ms=7",
                Rule::always(Fault::Delay(Delay { first_byte_ms: 0, between_chunks_ms: 7 })),
            ),
            (
                "status,code=503,on=probe",
                Rule { on: On::Probe, ..Rule::always(Fault::Status { code: 503, retry_after_s: None }) },
            ),
        ] {
            assert_eq!(text.parse::<Rule>().unwrap(), want, "{text}");
        }
    }

    #[test]
    fn what_is_no_rule_is_refused_with_its_text() {
        for text in
            ["", "explode", "hang,after_tokens=1", "status", "status,code=x", "reset,3", "cut,end=done"]
        {
            let error = text.parse::<Rule>().unwrap_err().to_string();
            assert!(error.contains(text.rsplit(',').next().unwrap()), "{text}: {error}");
        }
    }
}
