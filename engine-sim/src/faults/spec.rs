//! The set of faults as it is written in JSON. Every field may be left out; the empty set is no fault.

use serde::{Deserialize, Serialize};

use super::metrics::MetricsFaults;

/// Everything that is wrong with an engine at one time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Chooses which requests are hit where a rule has a rate.
    pub seed: u64,
    /// Connections are refused, as by a port nobody listens on; open ones go on.
    pub refuse_connections: bool,
    /// From accepting a connection to reading from it.
    pub connect_delay_ms: u64,
    /// Asked in order: the first delay and the first other fault that hit are what a request gets.
    pub rules: Vec<Rule>,
    /// The engine is slow from the moment this is set, and again after each restart.
    pub slow_start: Option<SlowStart>,
    /// What is wrong with `/metrics`.
    pub metrics: MetricsFaults,
}

/// A fault and the requests that get it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// What happens.
    pub fault: Fault,
    /// Which requests it is about.
    #[serde(default)]
    pub on: On,
    /// Share of these requests that are hit, 0 to 1.
    #[serde(default = "always")]
    pub rate: f64,
    /// So many hits, then no more; without it there is no end.
    #[serde(default)]
    pub next: Option<u64>,
}

impl Rule {
    /// The fault for every generation, without end.
    #[must_use]
    pub fn always(fault: Fault) -> Self {
        Self { fault, on: On::default(), rate: 1.0, next: None }
    }

    /// The fault for the next `count` generations.
    #[must_use]
    pub fn next(fault: Fault, count: u64) -> Self {
        Self { next: Some(count), ..Self::always(fault) }
    }

    /// The fault for this share of the generations, 0 to 1.
    #[must_use]
    pub fn rate(fault: Fault, rate: f64) -> Self {
        Self { rate, ..Self::always(fault) }
    }
}

fn always() -> f64 {
    1.0
}

/// Which requests a rule is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum On {
    /// Chats and completions.
    #[default]
    Generation,
    /// `/health` and `/v1/models`, which routers ask to see whether an engine lives.
    Probe,
    /// Both.
    All,
}

/// One thing that can happen to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// It is late, and may have another fault beside this.
    Delay(Delay),
    /// It is refused.
    Status {
        /// From 400 to 599.
        code: u16,
        /// Seconds in `Retry-After`, if it is to be sent.
        #[serde(default)]
        retry_after_s: Option<u32>,
    },
    /// The connection is reset (RST) before a byte of the answer.
    Reset,
    /// The connection is closed (FIN) before a byte of the answer.
    Close,
    /// Not a byte ever comes, and the connection stays open.
    Hang,
    /// The answer breaks off. One without a stream breaks off in the middle of its body, whatever `end` says of
    /// `[DONE]`.
    Cut {
        /// Tokens that still come; an answer that has fewer breaks off after its last one.
        after_tokens: u32,
        /// What comes instead of the rest.
        #[serde(default)]
        end: CutEnd,
    },
}

/// What a late request waits for, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Delay {
    /// Between the moment the engine has its first byte and the moment it sends it.
    pub first_byte_ms: u64,
    /// Before each chunk of a stream but the first.
    pub between_chunks_ms: u64,
}

/// How a cut answer ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CutEnd {
    /// The connection is closed (FIN) in the middle of the body.
    #[default]
    Close,
    /// The connection is reset (RST) in the middle of the body.
    Reset,
    /// The body ends as HTTP wants it, but without `[DONE]`.
    End,
    /// `[DONE]`, and the body ends as HTTP wants it.
    Done,
    /// Silence on an open connection; the engine goes on with the request.
    Stall,
}

/// An engine that is slow at first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlowStart {
    /// Everything takes so many times as long, from 1 to 1000.
    pub factor: f64,
    /// For so many real milliseconds.
    pub for_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Faults, serde_json::Error> {
        serde_json::from_str(json)
    }

    #[test]
    fn the_empty_object_is_no_fault() {
        assert_eq!(read("{}").unwrap(), Faults::default());
    }

    #[test]
    fn what_is_written_is_read_back() {
        let rules = vec![
            Rule::next(Fault::Status { code: 429, retry_after_s: Some(2) }, 3),
            Rule { on: On::Probe, ..Rule::rate(Fault::Reset, 0.25) },
            Rule::always(Fault::Cut { after_tokens: 4, end: CutEnd::Done }),
            Rule::always(Fault::Delay(Delay { first_byte_ms: 5, between_chunks_ms: 0 })),
        ];
        let slow_start = Some(SlowStart { factor: 4.0, for_ms: 500 });
        let faults = Faults { seed: 7, rules, slow_start, ..Faults::default() };
        assert_eq!(read(&serde_json::to_string(&faults).unwrap()).unwrap(), faults);
    }

    #[test]
    fn a_rule_needs_no_more_than_its_fault() {
        for (fault, want) in [
            (r#""hang""#, Fault::Hang),
            (r#"{"status":{"code":503}}"#, Fault::Status { code: 503, retry_after_s: None }),
            (r#"{"cut":{"after_tokens":2}}"#, Fault::Cut { after_tokens: 2, end: CutEnd::Close }),
        ] {
            let faults = read(&format!(r#"{{"rules":[{{"fault":{fault}}}]}}"#)).unwrap();
            assert_eq!(faults.rules, [Rule::always(want)]);
        }
    }

    #[test]
    fn what_is_unknown_is_refused() {
        for json in [
            r#"{"rule":[]}"#,
            r#"{"rules":[{"fault":"explode"}]}"#,
            r#"{"rules":[{"fault":{"status":{"code":500,"retry":1}}}]}"#,
            r#"{"rules":[{"fault":"hang","times":1}]}"#,
            r#"{"metrics":{"page":"json"}}"#,
        ] {
            assert!(read(json).is_err(), "{json}");
        }
    }
}
