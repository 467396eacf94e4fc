//! Files of any form, packed or plain: the form is known by the content, not by the name.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::super::packed;
use super::{Session, Trace, azure, blocks, sessions};

/// Largest file read, unpacked.
const FILE_BYTES_MAX: u64 = 4 << 30;

enum Form {
    Blocks,
    Sessions,
    Azure,
}

/// One trace from the files, in which equal ids mean the same prefix across all of them.
///
/// # Errors
/// A file that cannot be read, is of no known form, or has a line that is not of its form (with its number).
pub(in super::super) fn load(files: &[PathBuf]) -> anyhow::Result<Trace> {
    let mut all = Vec::new();
    for file in files {
        let name = file.display();
        let text = read(file).with_context(|| format!("cannot read {name}"))?;
        parse(&text, &mut all).with_context(|| name.to_string())?;
    }
    ensure!(!all.is_empty(), "the trace has no request");
    Ok(Trace::new(all))
}

fn read(file: &Path) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    packed::open(file)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 <= FILE_BYTES_MAX, "it is larger than {FILE_BYTES_MAX} bytes");
    Ok(String::from_utf8(bytes)?)
}

fn parse(text: &str, into: &mut Vec<Session>) -> anyhow::Result<()> {
    let mut lines =
        (1..).zip(text.trim_start_matches('\u{feff}').lines()).filter(|(_, line)| !line.trim().is_empty());
    let Some((_, first)) = lines.clone().next() else { return Ok(()) };
    let first_session = into.len();
    match form(first)? {
        Form::Azure => {
            for (n, line) in lines.skip(1) {
                // Rows of several files are different prompts.
                let session = azure::parse(line, into.len() as u64);
                into.push(session.with_context(|| format!("line {n} is no time and two lengths"))?);
            }
            begin_at_zero(&mut into[first_session..]);
        }
        Form::Blocks => {
            for (n, line) in lines {
                into.push(blocks::parse(line).with_context(|| format!("line {n}"))?);
            }
        }
        Form::Sessions => {
            lines.try_for_each(|(n, line)| {
                into.extend(sessions::parse(line).with_context(|| format!("line {n}"))?);
                anyhow::Ok(())
            })?;
        }
    }
    Ok(())
}

fn form(first: &str) -> anyhow::Result<Form> {
    if first.trim_end() == azure::HEADER {
        return Ok(Form::Azure);
    }
    let line: Value = serde_json::from_str(first).unwrap_or_default();
    match line {
        Value::Object(fields) if fields.contains_key("hash_ids") => Ok(Form::Blocks),
        Value::Object(fields) if fields.contains_key("messages") => Ok(Form::Sessions),
        _ => bail!(
            "line 1 is of no known form: JSON with `hash_ids`, JSON with `messages`, or CSV with `{}`",
            azure::HEADER
        ),
    }
}

/// Dates become seconds since the first of them.
fn begin_at_zero(sessions: &mut [Session]) {
    let first = sessions.iter().filter_map(|s| s.start_seconds).fold(f64::INFINITY, f64::min);
    for start in sessions.iter_mut().filter_map(|s| s.start_seconds.as_mut()) {
        *start -= first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: &str = r#"{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
{"timestamp": 3000, "input_length": 512, "output_length": 5, "hash_ids": [1]}
"#;
    const SESSIONS: &str =
        r#"{"messages": [{"role":"user","content":"x"},{"role":"assistant","content":"y"}]}"#;
    const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.5,10,2\r\n\
                         2023-11-16 18:17:05.5,20,3\r\n";

    fn loaded(contents: &[&[u8]]) -> anyhow::Result<Trace> {
        let files: Vec<_> = contents.iter().map(|_| tempfile::NamedTempFile::new().unwrap()).collect();
        for (file, content) in files.iter().zip(contents) {
            std::fs::write(file.path(), content).unwrap();
        }
        load(&files.iter().map(|f| f.path().to_path_buf()).collect::<Vec<_>>())
    }

    #[test]
    fn the_content_tells_the_form_packed_or_not() {
        for (content, calls) in [(BLOCKS, 2), (SESSIONS, 1), (AZURE, 2)] {
            let plain = loaded(&[content.as_bytes()]).unwrap();
            assert_eq!(plain.calls(), calls, "{content}");
            let packed = zstd::stream::encode_all(content.as_bytes(), 1).unwrap();
            assert_eq!(loaded(&[&packed]).unwrap(), plain);
        }
    }

    #[test]
    fn several_files_are_one_trace() {
        let trace = loaded(&[BLOCKS.as_bytes(), AZURE.as_bytes(), AZURE.as_bytes()]).unwrap();
        assert_eq!(trace.calls(), 6);
        let starts: Vec<_> = trace.sessions[2..].iter().map(|s| s.start_seconds.unwrap()).collect();
        assert_eq!(starts, [0.0, 2.0, 0.0, 2.0], "dates begin at 0");
        let ids: std::collections::HashSet<_> =
            trace.sessions[2..].iter().map(|s| s.calls[0].ids[0]).collect();
        assert_eq!(ids.len(), 4, "every row is a prompt of its own");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (content, want) in [
            ("what is this", "no known form"),
            ("", "no request"),
            ("{\"hash_ids\": []}", "line 1"),
            (&format!("{BLOCKS}nonsense\n"), "line 3"),
            (&format!("{AZURE}x,y,z\n"), "line 4"),
        ] {
            let error = format!("{:#}", loaded(&[content.as_bytes()]).unwrap_err());
            assert!(error.contains(want), "{content}: {error}");
        }
    }
}
