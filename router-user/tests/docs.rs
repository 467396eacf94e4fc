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

/// Flags of the vLLM production stack that are taken have a row of the page on it, with the key they are here.
#[test]
fn the_migration_page_has_every_flag_that_is_taken() {
    use router_user::config::production_stack::{FLAGS, Means};
    let text = include_str!("../../docs/migration-production-stack.md");
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| `--")).collect();
    for flag in &FLAGS {
        let word = format!("--{}", flag.name);
        let is_named = |row: &&&str| row.split(|c: char| c == '`' || c.is_whitespace()).any(|w| w == word);
        let row = rows.iter().find(is_named);
        match flag.means {
            Means::Lacking(_) => assert_eq!(row, None, "{word} is not taken"),
            Means::NoEffect(_) => assert!(row.is_some(), "{word} has no row"),
            Means::Ours(key) => {
                let row = row.unwrap_or_else(|| panic!("{word} has no row"));
                let is_option = key == "backend";
                assert!(is_option || row.contains(&format!("--{key}")), "{word}: --{key} is not in {row}");
            }
        }
    }
}

/// Names of ours in a text: what a rule or a page builds on.
fn metrics(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("unlatch_")).collect()
}

#[test]
fn alerting_rules_use_names_that_are_exported() {
    let sources = [include_str!("../src/observe/collector.rs"), include_str!("../src/observe/reports.rs")];
    let exported: Vec<&str> = sources.into_iter().flat_map(metrics).collect();
    let used = metrics(include_str!("../../packaging/alerts.yml"));
    assert!(used.len() >= 3, "{used:?}");
    for name in used {
        assert!(exported.contains(&name), "{name} is exported nowhere");
    }
}

/// Command lines of the container example, without the program's name.
fn container_commands() -> Vec<Vec<String>> {
    let text = include_str!("../../packaging/compose.yml");
    let lists = text.lines().filter_map(|line| line.trim().strip_prefix("command: "));
    lists.map(|list| serde_json::from_str(list).expect("a command is a list of words")).collect()
}

#[test]
fn the_container_example_starts_what_there_is() {
    use router_user::cli::{Cli, Cmd};
    let commands = container_commands();
    assert_eq!(commands.len(), 2, "a router and an agent");
    for words in commands {
        let line = words.join(" ");
        let line = move |error: &dyn std::fmt::Display| format!("unlatch {line}: {error}");
        let cli = <Cli as clap::Parser>::try_parse_from(["unlatch".to_owned()].into_iter().chain(words));
        match cli.unwrap_or_else(|error| panic!("{}", line(&error))).command {
            Cmd::Serve(args) => {
                let config = args.resolve().unwrap_or_else(|error| panic!("{}", line(&error)));
                assert!(config.kernel.pin_dir.starts_with("/bpf"), "{config:?}");
            }
            Cmd::Agent(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn container_and_unit_have_the_same_three_capabilities() {
    let compose = include_str!("../../packaging/compose.yml");
    assert!(compose.contains("cap_drop: [ALL]\n  cap_add: [BPF, NET_ADMIN, PERFMON]\n"));
    assert_eq!(compose.matches("cap_add").count(), 1);
    assert!(!compose.contains("privileged: true"));
    let unit = include_str!("../../packaging/unlatch.service");
    assert_eq!(unit.matches("=CAP_BPF CAP_NET_ADMIN CAP_PERFMON\n").count(), 2);
}

#[test]
fn lists_of_backends_are_what_the_program_reads() {
    use router_user::config::backends_file::parse;
    let text = include_str!("../../docs/discovery.md");
    let blocks: Vec<(&str, &str)> = text
        .split("```")
        .skip(1)
        .step_by(2)
        .map(|block| block.split_once('\n').expect("a block has a notation"))
        .collect();
    assert_eq!(blocks.iter().map(|(notation, _)| *notation).collect::<Vec<_>>(), ["toml", "json", "yaml"]);
    for (notation, list) in blocks {
        let path = format!("b.{notation}");
        let read = parse(path.as_ref(), list, &|_| Err(std::io::ErrorKind::NotFound.into()));
        assert_eq!(read.unwrap_or_else(|error| panic!("{error}")).len(), 2, "{notation}");
    }
}
