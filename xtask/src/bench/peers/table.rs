//! Goals, and the table of what was measured beside them.
//!
//! A figure is a ratio to HAProxy's in the same run, unless its name has a unit. Of CPU and rate the ratio is taken in
//! each round, where both met the same machine, and the median of them counts; of an added delay, which can be near
//! nothing in a round, the medians are compared. Added is what a router has over the direct run of the same round.

use std::fmt::Write;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::bench::median;

const OURS: &str = "custom";
const HAPROXY: &str = "haproxy";
const NGINX: &str = "nginx";
const DIRECT: &str = "direct";

/// One figure and its goal.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: String,
    /// What must be reached, and what is aimed at.
    pub(super) goal: (f64, f64),
    /// Whether less is better.
    pub(super) less: bool,
    pub(super) value: f64,
    /// HAProxy's figure where it is not 1.
    pub(super) haproxy: Option<f64>,
    pub(super) nginx: Option<f64>,
    /// What it was computed from.
    pub(super) note: String,
}

impl Row {
    /// Whether what must be reached is not.
    pub(super) fn is_missed(&self) -> bool {
        !self.reaches(self.goal.0)
    }

    fn reaches(&self, goal: f64) -> bool {
        if self.less { self.value <= goal } else { self.value >= goal }
    }

    fn verdict(&self) -> &'static str {
        match (self.reaches(self.goal.1), self.reaches(self.goal.0)) {
            (true, _) => "aim",
            (false, true) => "must",
            (false, false) => "MISSED",
        }
    }
}

/// How a figure is made of those of the routers.
#[derive(Clone, Copy)]
enum Kind {
    Ratio,
    Added,
}

/// A figure of the peers' bench: name, scenario, path in a line, how, goal, whether less is better.
type Figure = (&'static str, &'static str, &'static str, Kind, (f64, f64), bool);

const FIGURES: [Figure; 7] = [
    ("CPU, small request", "small", "/router_cpu_s_per_1000", Kind::Ratio, (1.25, 0.95), true),
    ("CPU, 100 KB prompt", "big100k", "/router_cpu_s_per_1000", Kind::Ratio, (1.0, 0.75), true),
    ("CPU, 1 MB prompt", "big1m", "/router_cpu_s_per_1000", Kind::Ratio, (1.15, 0.9), true),
    ("CPU, 64-token stream", "stream", "/router_cpu_s_per_1000", Kind::Ratio, (1.3, 1.0), true),
    ("req/s, small", "small", "/rps", Kind::Ratio, (0.8, 1.1), false),
    ("added TTFT p50", "stream", "/ttft_us/p50", Kind::Added, (1.5, 1.0), true),
    ("added delay per token p50", "stream", "/chunk_delay_us/p50", Kind::Added, (1.3, 1.0), true),
];

/// Rows of the scenarios that were timed, from the lines that the peers' bench wrote.
///
/// # Errors
/// A broken line, a scenario without a round of both routers, or a failed request.
pub(super) fn timed(lines: &str) -> Result<Vec<Row>> {
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).context("the bench wrote a broken line"))
        .collect::<Result<_>>()?;
    if let Some(bad) = lines.iter().find(|line| line["errors"].as_u64() != Some(0)) {
        bail!("{} had errors in {}: {}", bad["peer"], bad["scenario"], bad["error_kinds"]);
    }
    let mut rows = Vec::new();
    for (name, scenario, path, kind, goal, less) in FIGURES {
        if !lines.iter().any(|line| line["scenario"] == scenario) {
            continue;
        }
        let of = |peer| figure(&lines, scenario, path, kind, peer);
        let (value, note) = of(OURS).with_context(|| format!("{name}: no round of both routers"))?;
        let nginx = of(NGINX).map(|(value, _)| value);
        rows.push(Row { name: name.to_owned(), goal, less, value, haproxy: Some(1.0), nginx, note });
    }
    if let Some(first) = rows.first_mut() {
        let loads: Vec<f64> = lines.iter().filter_map(|line| line["load1"].as_f64()).collect();
        let _never_fails = write!(first.note, "; load average of the run {:.1} (median)", median(&loads));
    }
    Ok(rows)
}

/// A router's figure over HAProxy's.
fn figure(lines: &[Value], scenario: &str, path: &str, kind: Kind, peer: &str) -> Option<(f64, String)> {
    let at = |peer: &str, round: &Value| {
        let line = lines
            .iter()
            .find(|line| line["peer"] == peer && line["scenario"] == scenario && &line["round"] == round)?;
        line.pointer(path)?.as_f64()
    };
    let rounds: Vec<&Value> =
        lines.iter().filter(|line| line["peer"] == DIRECT).map(|line| &line["round"]).collect();
    let mut rounds: Vec<&Value> = rounds.into_iter().filter(|round| at(peer, round).is_some()).collect();
    rounds.dedup();
    match kind {
        Kind::Ratio => {
            let ratios: Vec<f64> =
                rounds.iter().filter_map(|round| Some(at(peer, round)? / at(HAPROXY, round)?)).collect();
            if ratios.is_empty() {
                return None;
            }
            let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
            let most = ratios.iter().copied().fold(0.0, f64::max);
            Some((median(&ratios), format!("{least:.2} to {most:.2} in {} rounds", ratios.len())))
        }
        Kind::Added => {
            let added = |peer| -> Vec<f64> {
                rounds.iter().filter_map(|round| Some(at(peer, round)? - at(DIRECT, round)?)).collect()
            };
            let (ours, theirs) = (added(peer), added(HAPROXY));
            if ours.is_empty() || theirs.is_empty() {
                return None;
            }
            let (ours, theirs) = (median(&ours), median(&theirs));
            Some((ours / theirs, format!("{ours:.0} us, HAProxy {theirs:.0} us")))
        }
    }
}

/// The table.
pub(super) fn text(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<34}{:>8}{:>10}{:>8}{:>8}{:>8}  {:<8}note\n",
        "HAProxy = 1 where no unit", "ours", "HAProxy", "nginx", "must", "aim", "reached"
    );
    for row in rows {
        let cell = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
        let _never_fails = writeln!(
            text,
            "{:<34}{:>8.2}{:>10}{:>8}{:>8}{:>8}  {:<8}{}",
            row.name,
            row.value,
            cell(row.haproxy),
            cell(row.nginx),
            row.goal.0,
            row.goal.1,
            row.verdict(),
            row.note
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(peer: &str, round: u32, cpu: f64, ttft: f64) -> String {
        let line = json!({"peer": peer, "scenario": "stream", "round": round, "errors": 0, "load1": 2.0,
            "router_cpu_s_per_1000": if peer == DIRECT { Value::Null } else { json!(cpu) },
            "ttft_us": {"p50": ttft}, "chunk_delay_us": {"p50": ttft}});
        format!("{line}\n")
    }

    #[test]
    fn cpu_is_compared_within_a_round_and_delays_by_what_a_router_adds() {
        let mut lines = String::new();
        // The second round's machine is ten times slower: no matter.
        for (round, slow) in [(0, 1.0), (1, 10.0), (2, 1.0)] {
            lines += &line(DIRECT, round, 0.0, 100.0);
            lines += &line(HAPROXY, round, 2.0 * slow, 300.0);
            lines += &line(OURS, round, 1.0 * slow, 200.0);
        }
        let rows = timed(&lines).unwrap();
        let values: Vec<_> = rows.iter().map(|row| (row.name.as_str(), row.value)).collect();
        let expected =
            [("CPU, 64-token stream", 0.5), ("added TTFT p50", 0.5), ("added delay per token p50", 0.5)];
        assert_eq!(values, expected);
        assert!(rows[0].note.contains("load average of the run 2.0"), "{}", rows[0].note);
    }

    #[test]
    fn a_run_with_errors_or_without_one_of_the_routers_is_no_result() {
        let whole = [line(DIRECT, 0, 0.0, 1.0), line(HAPROXY, 0, 1.0, 2.0)].concat();
        assert!(timed(&whole).is_err(), "ours is missing");
        let failed = line(OURS, 0, 1.0, 2.0).replace("\"errors\":0", "\"errors\":3");
        assert!(timed(&(whole + &failed)).unwrap_err().to_string().contains("errors"));
    }

    #[test]
    fn the_verdict_knows_which_way_is_better() {
        let row = |value, less| Row {
            name: String::new(),
            goal: if less { (1.25, 0.95) } else { (0.8, 1.1) },
            less,
            value,
            haproxy: None,
            nginx: None,
            note: String::new(),
        };
        let verdicts = |less| [0.7, 1.0, 1.3].map(|value| row(value, less).verdict());
        assert_eq!(verdicts(true), ["aim", "must", "MISSED"]);
        assert_eq!(verdicts(false), ["MISSED", "must", "aim"]);
        assert!(row(1.3, true).is_missed() && !row(1.3, false).is_missed());
        assert!(row(f64::NAN, true).is_missed(), "nothing measured is not reached");
    }
}
