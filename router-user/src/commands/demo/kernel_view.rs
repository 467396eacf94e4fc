//! The kernel's own counters, read by bpftool from the pinned map while requests are in flight.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;
use tokio::process::Command;

/// Where bpftool is looked for: the path, then where Debian has it for root.
const BPFTOOL: [&str; 2] = ["bpftool", "/usr/sbin/bpftool"];

/// `bpftool map dump pinned <pin_dir>/v1/LOAD`, cut to rows in use and fields that are not zero; or one line that
/// says why there is none.
pub(super) async fn dump(pin_dir: &Path) -> String {
    let map = pin_dir.join(format!("v{}", router_common::limits::LAYOUT_VERSION)).join("LOAD");
    if !map.exists() {
        return format!("no kernel counters: {} is not there", map.display());
    }
    for tool in BPFTOOL {
        let output = Command::new(tool).args(["map", "dump", "pinned"]).arg(&map).output().await;
        let Ok(output) = output else { continue };
        let command = format!("$ bpftool map dump pinned {}", map.display());
        return match serde_json::from_slice::<Value>(&output.stdout) {
            Ok(rows) => format!("{command}   (rows in use, fields that are not zero)\n{}", in_use(&rows)),
            Err(_) => format!("{command}\n{}", String::from_utf8_lossy(&output.stderr).trim()),
        };
    }
    "no kernel counters to show: bpftool is not installed (cargo xtask setup brings it)".to_owned()
}

fn in_use(rows: &Value) -> String {
    let mut text = String::new();
    for row in rows.as_array().into_iter().flatten() {
        let Some(fields) = row.get("value").and_then(Value::as_object) else { continue };
        let set: Vec<String> = fields
            .iter()
            .filter(|(_, v)| !is_zero(v))
            .map(|(name, v)| format!("{name} {}", show(v)))
            .collect();
        if !set.is_empty() {
            let _ = writeln!(text, "  row {}: {}", row["key"], set.join(", "));
        }
    }
    text
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().all(is_zero),
        other => other.as_u64() == Some(0),
    }
}

/// A list without its zero tail.
fn show(value: &Value) -> String {
    let Value::Array(items) = value else { return value.to_string() };
    let used = items.iter().rposition(|v| !is_zero(v)).map_or(0, |last| last + 1);
    let shown: Vec<String> = items[..used].iter().map(Value::to_string).collect();
    format!("[{}{}]", shown.join(","), if used < items.len() { ",0…" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::in_use;
    use serde_json::json;

    #[test]
    fn only_rows_and_fields_in_use_are_shown() {
        let rows = json!([
            {"key": 0, "value": {"conns": 4, "opened": 0, "workers": [4, 0, 1, 0], "q_tokens": [0, 0, 0, 0]}},
            {"key": 1, "value": {"conns": 0, "workers": [0, 0, 0, 0]}},
        ]);
        assert_eq!(in_use(&rows), "  row 0: conns 4, workers [4,0,1,0…]\n");
    }
}
