//! The scanner against tables, and against serde_json as the naive model.

use proptest::prelude::*;

use super::{BodyError, DEPTH_MAX, Scanner, name, unescape};

#[path = "model_tests.rs"]
mod model;

use model::{differs, members};

#[test]
fn members_are_slices_of_the_text() {
    let text = br#" { "a" : [1, {"b":"]}\""}] ,"c\u0064":"x" , "" :-0.5e+1} "#;
    let found = members(text).unwrap();
    let expected: [(&[u8], &[u8]); 3] =
        [(b"a", br#"[1, {"b":"]}\""}]"#), (br"c\u0064", br#""x""#), (b"", b"-0.5e+1")];
    assert_eq!(found, expected);
}

#[test]
fn what_is_no_complete_object_is_refused() {
    for text in [
        "",
        " ",
        "[]",
        "1",
        "null",
        "{",
        "{}x",
        "{} {}",
        "{,}",
        r#"{"a"}"#,
        r#"{"a":}"#,
        r#"{"a":1,}"#,
        r#"{"a":1 "b":2}"#,
        r#"{"a":"x}"#,
        r#"{"a":"\"}"#,
        r#"{"a":"\x"}"#,
        r#"{"a":"\u12g4"}"#,
        r#"{"a":"\u12"#,
        r#"{"a":[1,]}"#,
        r#"{"a":[1}}"#,
        r#"{"a":{"b":1]}"#,
        r#"{"a":01}"#,
        r#"{"a":1.}"#,
        r#"{"a":.5}"#,
        r#"{"a":1e}"#,
        r#"{"a":-}"#,
        r#"{"a":+1}"#,
        r#"{"a":nul}"#,
        r#"{"a":truex}"#,
        r#"{"a":NaN}"#,
        "{\"a\":\"\n\"}",
        r#"{a:1}"#,
        r#"{'a':1}"#,
        r#"{"a":1}}"#,
        "\u{feff}{}",
        r#"{"a":"#,
        r#"{"a":[{"b":[1,2"#,
    ] {
        assert!(members(text.as_bytes()).is_err(), "accepted: {text}");
    }
}

#[test]
fn every_cut_of_a_body_is_refused() {
    let body = br#"{"model":"m","messages":[{"role":"user","content":"a\u00e9\"\\"}],"n":1.0,"x":null}"#;
    assert!(members(body).is_ok());
    for end in 0..body.len() {
        assert!(members(&body[..end]).is_err(), "accepted a body cut at {end}");
    }
}

#[test]
fn depth_is_bounded_and_at_least_what_serde_json_takes() {
    let nested = |n: usize| format!(r#"{{"a":{}{}}}"#, "[".repeat(n - 1), "]".repeat(n - 1));
    let limit = DEPTH_MAX as usize;
    assert!(members(nested(limit).as_bytes()).is_ok(), "the limit itself is allowed");
    assert!(members(nested(limit + 1).as_bytes()).is_err(), "one deeper is refused");
    assert!(serde_json::from_str::<serde_json::Value>(&nested(limit)).is_err(), "serde_json stops earlier");
    let mixed = r#"{"a":["#.repeat(10_000);
    assert!(members(mixed.as_bytes()).is_err(), "depth does not use the stack");
}

#[test]
fn invalid_utf8_and_lone_surrogates_pass_through() {
    assert!(members(b"{\"a\":\"\xff\xc3\"}").is_ok());
    assert!(members(br#"{"a":"\ud83e def"}"#).is_ok());
}

#[test]
fn strings_stop_at_the_right_byte_at_every_offset() {
    for before in 0..80 {
        for stop in [&br"\\"[..], br#"\""#, br"\u0041", "é".as_bytes()] {
            let mut text = b"{\"k\":\"".to_vec();
            text.extend(std::iter::repeat_n(b'x', before));
            text.extend_from_slice(stop);
            text.extend_from_slice(b"y\"}");
            let found = members(&text).unwrap();
            assert_eq!(found[0].1.len(), before + stop.len() + 3, "offset {before}");
        }
    }
}

#[test]
fn half_a_surrogate_pair_is_noted_and_a_pair_is_not() {
    let notes = |text: &str| {
        let mut s = Scanner::new(text.as_bytes());
        s.skip().unwrap();
        s.end().unwrap();
        s.has_lone_surrogate()
    };
    for pair in [
        r#""\ud83e\udd80""#,
        r#""\uD83E\uDD80x""#,
        r#"["\ud800\udc00","\udbff\udfff"]"#,
        r#""\\ud83e""#,
        r#""\ue000\ud7ff""#,
    ] {
        assert!(!notes(pair), "{pair}");
    }
    for half in [
        r#""\ud83e""#,
        r#""\udd80""#,
        r#""\ud83e\ud83e\udd80""#,
        r#"{"a":["\udbffx\udc00"]}"#,
        r#"{"\ud83e\u0041":1}"#,
    ] {
        assert!(notes(half), "{half}");
    }
}

#[test]
fn escapes_are_read_at_every_offset_of_a_window() {
    for before in 0..140 {
        for escape in [r"\\", r#"\""#, r"\u0022", r"\u005c", r"\ud83e\udd80", r"\n\n\n\n", r#"\\\""#] {
            let text = format!("\"{}{escape}\\\\\" ", "x".repeat(before));
            let mut s = Scanner::new(text.as_bytes());
            assert_eq!(s.string().unwrap().len(), before + escape.len() + 2, "{text}");
        }
    }
}

#[test]
fn names_are_found_however_they_are_escaped() {
    for raw in ["model", r"m\u006fdel", r"\u006d\u006f\u0064\u0065\u006c"] {
        assert_eq!(&*name(raw.as_bytes()), b"model");
    }
    for raw in [r"m\u006fdels", "Model", r"model\u0000"] {
        assert_ne!(&*name(raw.as_bytes()), b"model");
    }
    let long = r"\u0061".repeat(100);
    assert_eq!(&*name(long.as_bytes()), long.as_bytes(), "a key too long to be a name is not copied");
}

#[test]
fn unescape_agrees_with_serde_json_and_replaces_what_is_no_unicode() {
    for raw in [r"plain", r"a\n\t\r\b\f\/\\\u0022", r"\u00e9\ud83e\udd80z", r"org\/name"] {
        let expected: String = serde_json::from_str(&format!("\"{raw}\"")).unwrap();
        assert_eq!(unescape(raw.as_bytes()), expected);
    }
    assert_eq!(unescape(br"a\ud83ez"), "a\u{fffd}z");
    assert_eq!(unescape(br"\udd80\ud83e"), "\u{fffd}\u{fffd}");
    assert_eq!(unescape(br"\ud83eA"), "\u{fffd}A");
    assert_eq!(unescape(b"a\xffb"), "a\u{fffd}b");
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::Value;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        r#"[a"\\\n{}\[\]:,]{0,40}"#.prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((any::<String>(), inner), 0..6)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

/// Texts that are JSON or nearly so: a legal one with a byte removed, doubled or replaced.
fn nearly_json() -> impl Strategy<Value = Vec<u8>> {
    let bytes = prop::sample::select(br#"{}[]",:\u0019eE+-.truefalsn "#.to_vec());
    (any_json(), any::<bool>(), any::<prop::sample::Index>(), 0..4u8, bytes).prop_map(
        |(v, pretty, at, edit, byte)| {
            let outer = serde_json::json!({"k": v, "": [v]});
            let mut text =
                if pretty { serde_json::to_vec_pretty(&outer) } else { serde_json::to_vec(&outer) }.unwrap();
            let at = at.index(text.len());
            match edit {
                0 => {}
                1 => drop(text.remove(at)),
                2 => text.insert(at, byte),
                _ => text[at] = byte,
            }
            text
        },
    )
}

fn check(text: &[u8]) -> Result<(), TestCaseError> {
    differs(text).map_or(Ok(()), |how| Err(TestCaseError::fail(how)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn members_are_those_of_serde_json(text in nearly_json()) {
        check(&text)?;
    }

    #[test]
    fn short_texts_of_json_bytes_are_judged_as_serde_json_does(
        inner in prop::collection::vec(prop::sample::select(br#"{}[]",:\u019eE+-.tn "#.to_vec()), 0..14)
    ) {
        let mut text = b"{\"a\":".to_vec();
        text.extend_from_slice(&inner);
        text.push(b'}');
        check(&text)?;
    }

    #[test]
    fn bytes_never_panic(text in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = members(&text);
        let _ = Scanner::new(&text).skip().map(unescape);
    }
}
