//! The documentation says what the program does: the table of settings is the program's own.

use router_user::config::settings::KEYS;

/// One row of the table.
fn row(key: &router_user::config::settings::Key) -> String {
    let default = if key.default.is_empty() { "-" } else { key.default };
    let words: Vec<&str> = key.help.split_whitespace().collect();
    format!("| `{}` | `{}` | {} |", key.name, default, words.join(" ").replace('|', "\\|"))
}

#[test]
fn the_table_of_settings_is_the_programs_own() {
    let text = include_str!("../../docs/configuration.md");
    let expected: Vec<String> = KEYS.iter().map(row).collect();
    let found: Vec<&str> = text.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(found, expected, "write these rows into docs/configuration.md:\n{}", expected.join("\n"));
}

/// Names of ours in a text: what a rule or a page builds on.
fn metrics(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("unlatch_")).collect()
}

#[test]
fn alerting_rules_use_names_that_are_exported() {
    let exported = metrics(include_str!("../src/observe/status.rs"));
    let used = metrics(include_str!("../../packaging/alerts.yml"));
    assert!(used.len() >= 3, "{used:?}");
    for name in used {
        assert!(exported.contains(&name), "{name} is exported nowhere");
    }
}
