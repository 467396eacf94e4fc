use bytes::Bytes;
use proptest::prelude::*;
use router_policy::RequestShape;
use router_policy::prefix::{Chain, HashKey};

use crate::parse::shape;

fn key() -> HashKey {
    HashKey::new(std::array::from_fn(|i| i as u8))
}

fn read(body: &str) -> RequestShape {
    shape(&Bytes::copy_from_slice(body.as_bytes()), &key()).unwrap()
}

fn fixture(name: &str) -> Bytes {
    let path = format!("{}/../tests/fixtures/bodies/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(path).unwrap().into()
}

/// Leading blocks two prompts share.
fn shared(a: &Chain, b: &Chain) -> usize {
    a.blocks.iter().zip(&b.blocks).take_while(|(a, b)| a == b).count()
}

fn chat(messages: &[(&str, &str)]) -> String {
    let messages: Vec<_> = messages
        .iter()
        .map(|(role, content)| serde_json::json!({"role": role, "content": content}))
        .collect();
    serde_json::json!({"model": "m", "messages": messages}).to_string()
}

#[test]
fn model_and_stream_are_read_wherever_they_stand() {
    let s = read(r#"{"messages":[],"stream":true,"mod\u0065l":"org\/name"}"#);
    assert_eq!((s.model.as_deref(), s.stream), (Some("org/name"), true));
    for body in [r#"{"model":null}"#, r#"{"model":7}"#, r#"{"model":""}"#, "{}", r#"{"model":{}}"#] {
        let s = read(body);
        assert_eq!((s.model, s.stream, s.shaped), (None, false, false), "{body}");
    }
    assert_eq!(
        read(r#"{"model":"a","model":"b"}"#).model.as_deref(),
        Some("b"),
        "the last of a repeated key counts"
    );
    assert!(!read(r#"{"stream":"true"}"#).stream);
}

#[test]
fn a_model_name_without_bound_is_cut_and_matches_nothing() {
    let name = "x".repeat(5000);
    let s = read(&serde_json::json!({"model": name}).to_string());
    assert_eq!(s.model.unwrap().chars().count(), 1025);
}

#[test]
fn bodies_that_do_not_close_are_refused() {
    for body in ["", " ", "[]", "\"x\"", "{", r#"{"model":"m""#, r#"{"model":"m"} x"#, r#"{"messages":[{]}"#]
    {
        assert!(shape(&Bytes::copy_from_slice(body.as_bytes()), &key()).is_err(), "{body}");
    }
}

#[test]
fn legal_but_odd_bodies_give_what_is_readable() {
    for body in [
        r#"{"model":"m","messages":7}"#,
        r#"{"model":"m","messages":{"role":"user"}}"#,
        r#"{"model":"m","prompt":null}"#,
    ] {
        let s = read(body);
        assert_eq!((s.model.as_deref(), s.shaped), (Some("m"), false), "{body}");
    }
    let s = read(r#"{"model":"m","messages":[1,null,["x"],{"role":7,"content":{"a":1}}]}"#);
    assert!(s.shaped);
}

#[test]
fn every_fixture_has_a_shape() {
    for (name, stream) in [
        ("chat_array_content.json", false),
        ("chat_tools_null_content.json", false),
        ("chat_odd_parts.json", false),
        ("chat_empty_messages.json", false),
        ("chat_extra_fields.json", true),
        ("unicode_boundary_0.json", false),
        ("unicode_boundary_1.json", false),
        ("unicode_lone_surrogate.json", false),
    ] {
        let s = shape(&fixture(name), &key()).unwrap();
        assert_eq!((s.model.as_deref(), s.shaped, s.stream), (Some("m"), true, stream), "{name}");
    }
    assert!(shape(&fixture("unicode_boundary_1.json"), &key()).unwrap().chain.blocks.len() > 20);
}

#[test]
fn a_grown_conversation_extends_the_chain_of_its_first_turn() {
    let (system, user, answer) = ("s".repeat(3000), "u".repeat(700), "a".repeat(900));
    let first = read(&chat(&[("system", &system), ("user", &user)])).chain;
    let grown =
        read(&chat(&[("system", &system), ("user", &user), ("assistant", &answer), ("user", "go on")])).chain;
    assert_eq!(first.blocks.len(), 3714 / 256, "texts, roles with quotes, and borders");
    assert_eq!(shared(&first, &grown), first.blocks.len());
}

#[test]
fn texts_that_differ_share_only_what_is_before() {
    let system = "s".repeat(2560);
    let a = read(&chat(&[("system", &system), ("user", &"a".repeat(600))])).chain;
    let b = read(&chat(&[("system", &system), ("user", &"b".repeat(600))])).chain;
    assert_eq!(shared(&a, &b), 10);
}

#[test]
fn text_of_array_parts_takes_part_in_the_key() {
    let body = |last: &str| {
        let text = |t: &str| serde_json::json!({"type": "text", "text": t});
        let parts = serde_json::json!([text(&"x".repeat(512)), text(last)]);
        serde_json::json!({"model": "m", "messages": [{"role": "user", "content": parts}]}).to_string()
    };
    let (a, b) = (read(&body(&"y".repeat(512))).chain, read(&body(&"z".repeat(512))).chain);
    assert_eq!(a.blocks.len(), 4);
    assert_eq!(shared(&a, &b), 2);
}

#[test]
fn a_picture_counts_by_its_hash_not_by_its_bytes() {
    let body = |data: &str| {
        let parts = serde_json::json!([{"type": "image_url", "image_url": {"url": data}}]);
        let text = "t".repeat(600);
        serde_json::json!({"messages": [{"role": "user", "content": parts}, {"role": "user", "content": text}]})
            .to_string()
    };
    let a = read(&body(&"A".repeat(100_000))).chain;
    let b = read(&body(&format!("{}B", "A".repeat(99_999)))).chain;
    assert!(a.bytes < 700, "{} bytes", a.bytes);
    assert_eq!(shared(&a, &b), 0, "another picture is another prompt");
}

#[test]
fn tools_come_first_wherever_they_stand() {
    let tools = format!(r#"[{{"type":"function","description":"{}"}}]"#, "d".repeat(1000));
    let messages = format!(r#"[{{"role":"user","content":"{}"}}]"#, "u".repeat(1000));
    let a = read(&format!(r#"{{"tools":{tools},"messages":{messages}}}"#)).chain;
    let b = read(&format!(r#"{{"messages":{messages},"tools":{tools}}}"#)).chain;
    assert_eq!(a, b);
    let c = read(&format!(r#"{{"messages":{messages}}}"#)).chain;
    assert_eq!(shared(&a, &c), 0);
}

#[test]
fn tool_calls_beside_a_null_content_tell_conversations_apart() {
    let body = |argument: &str| {
        let calls = serde_json::json!([{"function": {"name": "f", "arguments": argument}}]);
        serde_json::json!({"messages": [{"role": "assistant", "content": null, "tool_calls": calls}]})
            .to_string()
    };
    let (a, b) = (read(&body(&"a".repeat(600))).chain, read(&body(&"b".repeat(600))).chain);
    assert!(a.blocks.len() == 2 && shared(&a, &b) == 0);
}

#[test]
fn prompts_inputs_and_systems_are_read() {
    let text = "p".repeat(600);
    let string = read(&serde_json::json!({"prompt": text}).to_string());
    let array = read(&serde_json::json!({"prompt": [text]}).to_string());
    assert_eq!(string.chain, array.chain, "one prompt is a batch of one");
    let two = read(&serde_json::json!({"prompt": [text, text]}).to_string());
    assert_eq!(two.chain.bytes, 2 * string.chain.bytes);
    assert_eq!(read(&serde_json::json!({"input": text}).to_string()).chain, string.chain);
    let ids = read(&serde_json::json!({"prompt": vec![15_u32; 600]}).to_string());
    assert!(ids.shaped && ids.chain.bytes > 1200);
    let messages = [serde_json::json!({"role": "user", "content": "q"})];
    let system = read(&serde_json::json!({"messages": messages, "system": text}).to_string());
    assert_eq!(shared(&system.chain, &string.chain), 2, "a system text comes before the messages");
    let instructed = read(&serde_json::json!({"input": messages, "instructions": text}).to_string());
    assert_eq!(instructed.chain, system.chain);
}

#[test]
fn chains_of_different_models_share_nothing() {
    let body = |model: &str| serde_json::json!({"model": model, "prompt": "p".repeat(600)}).to_string();
    assert_eq!(shared(&read(&body("a")).chain, &read(&body("b")).chain), 0);
}

#[test]
fn roles_and_contents_cannot_be_confused() {
    let fill = "f".repeat(512);
    let a = read(&chat(&[("user", "x"), ("user", &fill)])).chain;
    let b = read(&chat(&[("user", "x\",\"user"), ("user", &fill)])).chain;
    let c = read(&chat(&[("userx", ""), ("user", &fill)])).chain;
    assert!(shared(&a, &b) == 0 && shared(&a, &c) == 0 && shared(&b, &c) == 0);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_legal_messages_are_read_without_panic(content in any::<String>(), role in any::<String>(), cut in 0..400_usize) {
        let body = serde_json::json!({
            "model": content, "messages": [{"role": role, "content": content}, {"content": [{"text": role}, content]}],
            "tools": [content], "input": role, "prompt": [role, 1],
        }).to_string();
        prop_assert!(shape(&Bytes::from(body.clone()), &key()).unwrap().shaped);
        let cut = cut.min(body.len() - 1);
        prop_assert!(shape(&Bytes::copy_from_slice(&body.as_bytes()[..cut]), &key()).is_err());
    }
}
