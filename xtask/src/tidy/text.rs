//! Rules about the text itself: length, leftovers, places of one machine, blanks.

use super::Finding;
use super::lexer::program_text;
use super::rules::is_test_file;

/// Lines of program text past which a file should be split, and past which it must be.
const LENGTH_WARNED: usize = 300;
const LENGTH_REFUSED: usize = 450;

/// Written in two parts, so that this file does not find itself.
const LEFTOVERS: [&str; 5] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("#[", "ignore"),
];

/// Directories that only one machine has.
const MACHINE_PLACES: [&str; 4] =
    [concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/wo", "rk/"), concat!("/tm", "p/")];

/// The findings of one file; `file` is relative to the checkout.
pub(super) fn check(file: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let mut find = |what: String| findings.push(Finding::error(file, at + 1, what));
        if let Some(leftover) = LEFTOVERS.iter().find(|leftover| line.contains(**leftover)) {
            find(format!("`{leftover}`: do it, or open an issue"));
        }
        if let Some(place) = MACHINE_PLACES.iter().find(|place| names_place(line, place)) {
            find(format!("`{place}` is a place on one machine"));
        }
        if line.ends_with([' ', '\t']) {
            find("blanks at the end of the line".to_owned());
        }
        if line.contains('\t') {
            find("a tab".to_owned());
        }
    }
    if file.ends_with(".rs") && !is_test_file(file) {
        findings.extend(length(file, program_text(text).lines().count()));
    }
    findings
}

fn length(file: &str, lines: usize) -> Option<Finding> {
    let text = format!("{lines} lines without tests: split it by what it is about");
    match lines {
        LENGTH_REFUSED.. => Some(Finding::error(file, lines, text)),
        LENGTH_WARNED.. => Some(Finding::warning(file, lines, text)),
        _ => None,
    }
}

/// Whether `place` is the start of a path here, and not the middle of a longer one.
fn names_place(line: &str, place: &str) -> bool {
    line.match_indices(place).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '}' | '/'))
    })
}

/// Top-level crates that a document does not name.
pub(super) fn unnamed_crates(file: &str, document: &str, crates: &[String]) -> Vec<Finding> {
    let missing = crates.iter().filter(|name| !document.contains(name.as_str()));
    missing.map(|name| Finding::error(file, 1, format!("does not mention the crate `{name}`"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        check("a.md", text).len()
    }

    #[test]
    fn leftovers_places_and_blanks_are_found() {
        for text in [
            format!("// {} later", LEFTOVERS[0]),
            format!("    {})", LEFTOVERS[2]),
            format!("{}]", LEFTOVERS[4]),
            format!("see {}x", MACHINE_PLACES[0]),
            format!("\"{}x\"", MACHINE_PLACES[3]),
            "end ".to_owned(),
            "a\tb".to_owned(),
        ] {
            assert_eq!(count(&text), 1, "{text}");
        }
    }

    #[test]
    fn a_longer_path_is_no_place_of_a_machine() {
        assert_eq!(count(&format!("..{0}x a{0}x /var{0}x", MACHINE_PLACES[3])), 0);
    }

    #[test]
    fn a_long_file_is_warned_of_and_a_longer_one_refused() {
        let lines = |count: usize| check("a.rs", &"x\n".repeat(count));
        assert!(lines(LENGTH_WARNED - 1).is_empty());
        assert!(!lines(LENGTH_WARNED)[0].is_error);
        assert!(lines(LENGTH_REFUSED)[0].is_error);
        let mostly_tests = format!("x\n\n#[cfg(test)]\nmod tests {{\n{}}}", "x\n".repeat(LENGTH_REFUSED));
        assert!(check("a.rs", &mostly_tests).is_empty(), "tests do not count");
    }

    #[test]
    fn a_document_names_every_crate() {
        let crates = ["a-b".to_owned(), "c-d".to_owned()];
        assert_eq!(unnamed_crates("README.md", "about a-b", &crates).len(), 1);
    }
}
