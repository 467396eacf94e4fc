//! Eight sessions at once on two engines of four seats, everything fresh for each trial.

use std::fs;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Bench;
use super::table::Row;
use crate::run;

/// Name, and the system prompt that the sessions share.
const BURSTS: [(&str, &str); 2] =
    [("burst, trials of 4+4", "0"), ("the same, 8 KB of shared prompt", "8192")];

/// Runs the trials of both.
///
/// # Errors
/// The script fails.
pub(super) fn measure(bench: &Bench, trials: u32) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, shared) in BURSTS {
        let raw = bench.raw("burst.jsonl")?;
        let mut script = bench.script("burst.py");
        script.args(["--peers", "custom", "--no-warm", "--turns", "0", "--shared-bytes", shared]);
        script
            .args(["--ttft-ms", "300", "--long-secs", "1", "--trials", &trials.to_string(), "--out"])
            .arg(&raw);
        run::show(&mut script)?;
        let (equal, others) = equal_splits(&fs::read_to_string(&raw)?)?;
        rows.push(Row {
            name: name.to_owned(),
            goal: (f64::from(trials), f64::from(trials)),
            less: false,
            value: f64::from(equal),
            haproxy: None,
            nginx: None,
            note: format!("of {trials}{others}"),
        });
    }
    Ok(rows)
}

/// How many trials were split in halves without an error, and what the others were.
fn equal_splits(lines: &str) -> Result<(u32, String)> {
    let (mut equal, mut others) = (0, String::new());
    for line in lines.lines() {
        let trial: Value = serde_json::from_str(line).context("burst.py wrote a broken line")?;
        let turn = &trial["turns"][0];
        if turn["split"] == json!([4, 4]) && turn["errors"].as_array().is_some_and(Vec::is_empty) {
            equal += 1;
        } else {
            others += &format!(", {} with errors {}", turn["split"], turn["errors"]);
        }
    }
    Ok((equal, others))
}

#[cfg(test)]
mod tests {
    use super::equal_splits;

    #[test]
    fn only_a_trial_of_four_and_four_without_an_error_counts() {
        let lines = [
            r#"{"turns":[{"split":[4,4],"errors":[]}]}"#,
            r#"{"turns":[{"split":[8,0],"errors":[]}]}"#,
            r#"{"turns":[{"split":[4,4],"errors":["HTTP 503"]}]}"#,
            r#"{"turns":[]}"#,
        ];
        let (equal, others) = equal_splits(&lines.join("\n")).unwrap();
        assert_eq!(equal, 1);
        assert!(others.contains("[8,0]") && others.contains("503"), "{others}");
    }
}
