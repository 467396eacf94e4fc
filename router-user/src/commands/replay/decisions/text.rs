//! An explained decision as text: the sentence, the terms, what was known, and how old that was.

use std::fmt::Write;

use super::explained::{Considered, Explained};
use super::words::{count, number, or_unknown, table};

/// One decision, with a mark at the chosen candidate.
pub(super) fn text(e: &Explained) -> String {
    let mut text = format!("decision {}", e.id);
    if let Some(request) = &e.request {
        let _ = write!(text, " for request {request}");
    }
    let how = if e.stream { "streamed" } else { "not streamed" };
    let _ = writeln!(
        text,
        "\nat {:.3} s of the router's clock; prompt of {} tokens, {how}, hash {}\n{}\n",
        e.at_s,
        number(e.prompt_tokens as f64),
        e.prompt,
        e.because
    );
    text += &terms(e);
    text.push('\n');
    text += &known(e);
    text.push('\n');
    text += &ages(e);
    let pool = &e.pool_means;
    let _ = write!(
        text,
        "\npool means, or start values: {:.2} s of decoding, {} tokens/s of prefill, {:.2} characters a token; ",
        pool.decode_seconds,
        number(pool.prefill_tokens_per_second),
        pool.chars_per_token,
    );
    text += &match (pool.uncached_tokens, pool.prompt_tokens) {
        (Some(uncached), Some(prompt)) => {
            format!("a request has {} tokens, of them {} uncached\n", number(prompt), number(uncached))
        }
        _ => "the mean request is unknown\n".to_owned(),
    };
    text
}

fn terms(e: &Explained) -> String {
    let is_weighed = e.candidates.iter().any(Considered::is_weighed);
    let mut heads = vec!["cost in tokens"];
    heads.extend(e.candidates.first().into_iter().flat_map(|c| c.terms.named()).map(|(name, _)| name));
    heads.push("total");
    if is_weighed {
        heads.push("by speed");
    }
    rows(e, &heads, |c| {
        let named = c.terms.named().into_iter().map(|(_, tokens)| tokens);
        let compared = is_weighed.then_some(c.compared);
        named.chain([c.total]).chain(compared).map(number).collect()
    })
}

fn known(e: &Explained) -> String {
    let heads = [
        "known",
        "in flight",
        "own",
        "others",
        "foreign",
        "Q",
        "C",
        "K",
        "seats",
        "matched",
        "prefill/s",
        "kernel: awaiting",
        "streaming",
    ];
    rows(e, &heads, |c| {
        let k = &c.known;
        vec![
            or_unknown(k.in_flight, count),
            or_unknown(k.own, |n| n.to_string()),
            k.others.to_string(),
            or_unknown(k.foreign, count),
            number(k.q_tokens),
            number(k.c_tokens),
            number(k.kv_tokens),
            k.seats.to_string(),
            number(k.matched_tokens as f64),
            number(k.prefill_tokens_per_second),
            or_unknown(k.kernel_awaiting, |n| n.to_string()),
            or_unknown(k.kernel_streaming, |n| n.to_string()),
        ]
    })
}

fn ages(e: &Explained) -> String {
    let heads = ["how old", "report", "own", "others", "foreign", "K", "seats", "prefill", "last byte"];
    rows(e, &heads, |c| {
        let (ages, k) = (&c.age_seconds, &c.known);
        vec![
            or_unknown(ages.report, seconds),
            or_unknown(ages.own, |_| "now".to_owned()),
            "now".to_owned(),
            or_unknown(ages.foreign, seconds),
            told(&k.kv_source, ages.kv_tokens),
            told(&k.seats_source, ages.seats),
            samples(k.prefill_samples),
            or_unknown(ages.last_byte, seconds),
        ]
    })
}

/// A line a candidate, the chosen one with a star.
fn rows(e: &Explained, heads: &[&str], cells: impl Fn(&Considered) -> Vec<String>) -> String {
    let head = format!("  {}", heads[0]);
    let heads: Vec<&str> = [head.as_str()].into_iter().chain(heads[1..].iter().copied()).collect();
    let row = |c: &Considered| {
        let name = format!("{} {}", if c.is_chosen { '*' } else { ' ' }, c.backend);
        [name].into_iter().chain(cells(c)).collect()
    };
    table(&heads, &e.candidates.iter().map(row).collect::<Vec<Vec<String>>>())
}

/// Whence, and how long ago if a report told it.
fn told(source: &str, age: Option<f64>) -> String {
    let source = source.replace('_', " ");
    age.map_or_else(|| source.clone(), |age| format!("{source} {}", seconds(age)))
}

fn samples(n: u64) -> String {
    match n {
        0 => "assumed".to_owned(),
        1 => "1 sample".to_owned(),
        n => format!("{n} samples"),
    }
}

fn seconds(age: f64) -> String {
    format!("{age:.2} s")
}
