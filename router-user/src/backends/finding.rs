//! What is wrong with an engine's reports, in words, said once per change.

use router_policy::{Report, Why};

use super::metrics_text::{Engine, Kind, Parsed, nearest};

/// Names of a text that are said at most.
const NAMES_SAID: usize = 6;

/// What people are told of. Two that are equal are one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// Running and waiting are known.
    Complete,
    /// There is no text to read.
    NoAnswer(String),
    /// The text has no gauge that is known.
    NoGauge { kind: Kind, expected: Option<Engine> },
    /// A gauge of the engine is missing or no number, or both cannot be true.
    Unknown { engine: Engine, running: Option<Why>, waiting: Option<Why> },
}

impl Finding {
    /// Of a text and the report as it is kept.
    pub(super) fn of(parsed: &Parsed, kept: &Report, expected: Option<Engine>) -> Self {
        match (kept.running.why(), kept.waiting.why(), parsed.engine) {
            (None, None, _) => Self::Complete,
            (_, _, None) => Self::NoGauge { kind: parsed.kind, expected },
            (running, waiting, Some(engine)) => Self::Unknown { engine, running, waiting },
        }
    }

    /// The same for people, with what stands in the text instead; `None` while nothing is wrong.
    pub(super) fn problem(&self, names: &[String]) -> Option<String> {
        let problem = match self {
            Self::Complete => return None,
            Self::NoAnswer(why) => why.clone(),
            Self::NoGauge { kind: Kind::Empty, .. } => "the text is empty".to_owned(),
            Self::NoGauge { kind: Kind::Html, .. } => "it is a page of HTML".to_owned(),
            Self::NoGauge { kind: Kind::Json, .. } => "it is JSON".to_owned(),
            Self::NoGauge { kind: Kind::Text, expected } => {
                let whose = expected.map_or("any engine known", Engine::as_str);
                format!("it has no gauge of {whose}{}", instead(names, *expected, true, true))
            }
            Self::Unknown { engine, running, waiting } => match (running, waiting) {
                (Some(Why::Contradicted), _) => {
                    "it says that nothing runs or waits while requests of this router are there".to_owned()
                }
                (Some(Why::Frozen), _) => "its text does not change while it has work".to_owned(),
                _ => gauges(*engine, *running, *waiting, names),
            },
        };
        Some(problem)
    }
}

/// What is wrong with the gauges, and what stands there instead of those that are missing.
fn gauges(engine: Engine, running: Option<Why>, waiting: Option<Why>, names: &[String]) -> String {
    let said = [(engine.running_name(), running), (engine.waiting_name(), waiting)];
    let said = said.into_iter().filter_map(|(name, why)| Some(format!("{name} is {}", why?.as_str())));
    let said: Vec<String> = said.collect();
    let is_missing = |why| why == Some(Why::Missing);
    said.join(", ") + &instead(names, Some(engine), is_missing(running), is_missing(waiting))
}

/// The names there that are nearest to the missing ones, and some others.
fn instead(names: &[String], engine: Option<Engine>, running: bool, waiting: bool) -> String {
    if !running && !waiting {
        return String::new();
    }
    let near = [
        running.then(|| nearest(names, engine, Engine::running_name)),
        waiting.then(|| nearest(names, engine, Engine::waiting_name)),
    ];
    let near = near.into_iter().flatten().flatten();
    let mut text: String = near.map(|n| format!("; nearest to {} is {}", n.known, n.seen)).collect();
    let some: Vec<&str> = names.iter().take(NAMES_SAID).map(String::as_str).collect();
    let more = if names.len() > NAMES_SAID { ", …" } else { "" };
    text += &match some.is_empty() {
        true => "; no name is there".to_owned(),
        false => format!("; names there: {}{more}", some.join(", ")),
    };
    text
}

#[cfg(test)]
mod tests {
    use router_policy::{Nanos, Report, Signal, Why};

    use super::{Engine, Finding};
    use crate::backends::metrics_text::{Parsed, Reader};

    fn read(text: &str) -> Parsed {
        let mut reader = Reader::new(true);
        reader.feed(text.as_bytes()).unwrap();
        reader.finish(Nanos(1), None)
    }

    fn problem(text: &str) -> Option<String> {
        let parsed = read(text);
        Finding::of(&parsed, &parsed.report, None).problem(&parsed.names)
    }

    #[test]
    fn a_problem_says_what_is_missing_and_what_stands_there() {
        let both = "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n";
        assert_eq!(problem(both), None);
        assert_eq!(problem("").as_deref(), Some("the text is empty"));
        assert_eq!(problem("<html>").as_deref(), Some("it is a page of HTML"));
        assert_eq!(problem("[{}]").as_deref(), Some("it is JSON"));
        let renamed = problem("vllm:num_running_requests 1\nvllm:num_requests_waiting 0\n").unwrap();
        for part in [
            "vllm:num_requests_running is missing",
            "nearest to vllm:num_requests_running is vllm:num_r",
            "names there: vllm:num_running_requests, vllm:num_requests_waiting",
        ] {
            assert!(renamed.contains(part), "{renamed}");
        }
        let foreign = problem("engine_running_requests 1\nup 1\n").unwrap();
        assert!(foreign.starts_with("it has no gauge of any engine known"), "{foreign}");
        assert!(foreign.ends_with("names there: engine_running_requests, up"), "{foreign}");
        let nan = problem("vllm:num_requests_running NaN\nvllm:num_requests_waiting 0\n").unwrap();
        assert_eq!(
            nan, "vllm:num_requests_running is malformed",
            "nothing is sought for a gauge that is there"
        );
        assert!(problem("# nothing else\n").unwrap().ends_with("no name is there"));
    }

    #[test]
    fn what_the_policy_does_not_believe_is_said_in_its_own_words() {
        let parsed = read("vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n");
        for (why, part) in [(Why::Contradicted, "nothing runs"), (Why::Frozen, "does not change")] {
            let unknown = Signal::Unknown(why);
            let kept = Report { running: unknown, waiting: unknown, ..parsed.report.clone() };
            let finding = Finding::of(&parsed, &kept, Some(Engine::Vllm));
            assert!(finding.problem(&[]).unwrap().contains(part));
        }
    }
}
