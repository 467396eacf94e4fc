//! Names in a text that has not those that are wanted: some of them, for people, and which is nearest.

use super::dialect::{Engine, name_of};

/// Names kept of a text, and bytes of one.
const NAMES_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 100;

/// Of what no load is told.
const PREFIXES: [&[u8]; 4] = [b"process_", b"python_", b"http_", b"go_"];
const SUFFIXES: [&[u8]; 6] = [b"_bucket", b"_sum", b"_count", b"_created", b"_total", b"_info"];

/// Some names of a text.
#[derive(Debug, Default)]
pub(super) struct Names(Vec<String>);

impl Names {
    /// A line of it.
    pub(super) fn see(&mut self, line: &[u8]) {
        let name = name_of(line);
        let is_plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b':');
        if name.is_empty()
            || name.len() > NAME_BYTES_MAX
            || self.0.len() >= NAMES_MAX
            || !name.iter().all(is_plain)
            || PREFIXES.iter().any(|p| name.starts_with(p))
            || SUFFIXES.iter().any(|s| name.ends_with(s))
        {
            return;
        }
        if let Ok(name) = std::str::from_utf8(name)
            && !self.0.iter().any(|seen| seen == name)
        {
            self.0.push(name.to_owned());
        }
    }

    pub(super) fn into_vec(self) -> Vec<String> {
        self.0
    }
}

/// A name that stands in a text, and the known one it is nearest to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nearest {
    /// What stands there.
    pub seen: String,
    /// What is known.
    pub known: &'static str,
    /// Characters to change, insert or delete.
    pub distance: usize,
}

/// Of the names seen the one nearest to a gauge of load that `engine` has, or any engine; `None` if nothing was seen
/// that shares more than half of its characters.
#[must_use]
pub fn nearest(
    seen: &[String],
    engine: Option<Engine>,
    wanted: fn(Engine) -> &'static str,
) -> Option<Nearest> {
    let engines = Engine::ALL.into_iter().filter(|e| engine.is_none_or(|known| known == *e));
    let pairs = engines.flat_map(|e| seen.iter().map(move |name| (name, wanted(e))));
    let near = pairs.map(|(name, known)| (distance(name.as_bytes(), known.as_bytes()), name, known));
    let (distance, seen, known) = near.min_by_key(|(distance, ..)| *distance)?;
    (distance * 2 < known.len()).then(|| Nearest { seen: seen.clone(), known, distance })
}

/// Levenshtein's. O(a · b).
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::{Engine, Names, distance, nearest};

    fn seen(text: &str) -> Vec<String> {
        let mut names = Names::default();
        text.lines().for_each(|line| names.see(line.as_bytes()));
        names.into_vec()
    }

    #[test]
    fn distances_by_hand() {
        for (a, b, expected) in [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("abc", "abc", 0)] {
            assert_eq!(distance(a.as_bytes(), b.as_bytes()), expected, "{a} {b}");
            assert_eq!(distance(b.as_bytes(), a.as_bytes()), expected, "{b} {a}");
        }
    }

    #[test]
    fn a_renamed_gauge_is_found_and_an_unrelated_text_names_nothing() {
        let names = seen("vllm:requests_running{a=\"b\"} 4\nvllm:num_requests_waiting 2\npython_info 1\n");
        assert_eq!(names, ["vllm:requests_running", "vllm:num_requests_waiting"]);
        let near = nearest(&names, Some(Engine::Vllm), Engine::running_name).unwrap();
        assert_eq!(
            (near.seen.as_str(), near.known, near.distance),
            ("vllm:requests_running", "vllm:num_requests_running", 4)
        );
        let any = nearest(&seen("llm:num_requests_running 1\n"), None, Engine::running_name).unwrap();
        assert_eq!(any.known, "vllm:num_requests_running");
        assert_eq!(nearest(&seen("up 1\nx_y 2\n"), None, Engine::running_name), None);
        assert_eq!(nearest(&[], None, Engine::running_name), None);
    }

    #[test]
    fn names_are_bounded_and_hold_nothing_but_their_characters() {
        let many: String = (0..1000).map(|n| format!("name_{n} 1\n")).collect();
        assert_eq!(seen(&many).len(), super::NAMES_MAX);
        let odd = format!("<html>\n\u{1b}[31mred 1\n{} 1\na_b{{x=\"y\"}} 1\na_b 2\n", "x".repeat(101));
        assert_eq!(seen(&odd), ["a_b"]);
    }
}
