use bytes::Bytes;
use proptest::prelude::*;
use router_policy::prefix::{Chain, HashKey};
use router_policy::{BackendSpec, RequestShape};

use crate::parse::{Names, shape, shape_with};

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
        ("unicode_boundary_2.json", false),
        ("unicode_boundary_3.json", false),
    ] {
        let s = shape(&fixture(name), &key()).unwrap();
        assert_eq!((s.model.as_deref(), s.shaped, s.stream), (Some("m"), true, stream), "{name}");
    }
    let lone = shape(&fixture("unicode_lone_surrogate.json"), &key()).unwrap();
    assert_eq!((lone.model.as_deref(), lone.shaped), (Some("m"), false), "no key of what is no text");
    assert_eq!(lone.chain, Chain::default());
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
fn an_alias_gives_the_chain_of_its_model_and_keeps_the_clients_word() {
    let spec =
        BackendSpec { model: Some("big".into()), aliases: vec!["fast".into()], ..BackendSpec::default() };
    let names = Names::new([&spec]);
    let of = |model: &str| {
        let body = serde_json::json!({"model": model, "prompt": "x".repeat(600)}).to_string();
        shape_with(&Bytes::from(body), &key(), &names).unwrap()
    };
    let (model, alias, other) = (of("big"), of("fast"), of("other"));
    assert_eq!(model.chain, alias.chain);
    assert_eq!((model.chain.blocks.len(), shared(&model.chain, &other.chain)), (2, 0));
    assert_eq!((alias.model.as_deref(), model.model.as_deref()), (Some("fast"), Some("big")));
}

#[test]
fn chains_of_another_model_adapter_or_salt_share_nothing() {
    let of = |extra: serde_json::Value| {
        let mut body = serde_json::json!({"model": "m", "prompt": "p".repeat(600)});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        read(&body.to_string()).chain
    };
    let domains = [
        serde_json::json!({}),
        serde_json::json!({"model": "other"}),
        serde_json::json!({"cache_salt": "a"}),
        serde_json::json!({"cache_salt": "b"}),
        serde_json::json!({"lora_path": "a"}),
        serde_json::json!({"adapter_id": "a"}),
        serde_json::json!({"adapter": "a"}),
        serde_json::json!({"lora": [{"id": 0, "scale": 0.5}]}),
        serde_json::json!({"lora": [{"id": 0, "scale": 1.0}]}),
        serde_json::json!({"lora_request": {"lora_name": "a", "lora_int_id": 1}}),
        serde_json::json!({"adapter": "a", "cache_salt": "a"}),
        // Without their lengths, the bytes of model and adapter above.
        serde_json::json!({"model": "m\u{5}\"a\""}),
    ];
    let chains: Vec<_> = domains.iter().map(|domain| of(domain.clone())).collect();
    for (i, a) in chains.iter().enumerate() {
        assert_eq!(a.bytes, chains[0].bytes, "the domain is no part of the prompt");
        for b in &chains[..i] {
            assert_eq!(shared(a, b), 0, "{}", domains[i]);
        }
    }
    let absent = of(serde_json::json!({"cache_salt": null, "adapter": null, "tools": null}));
    assert_eq!(absent, chains[0], "null is absent");
}

#[test]
fn answers_and_their_length_are_read() {
    let of = |text: &str| {
        let s = read(text);
        (s.n, s.max_tokens)
    };
    assert_eq!(of(r#"{"prompt":"x"}"#), (1, None));
    assert_eq!(of(r#"{"n":4,"max_tokens":256}"#), (4, Some(256)));
    assert_eq!(of(r#"{"max_tokens":7,"max_completion_tokens":9}"#), (1, Some(9)));
    assert_eq!(of(r#"{"max_completion_tokens":null,"max_tokens":7}"#), (1, Some(7)));
    assert_eq!(of(r#"{"max_output_tokens":5}"#), (1, Some(5)));
    for odd in [
        r#"{"n":0}"#,
        r#"{"n":1.0}"#,
        r#"{"n":-1,"max_tokens":-1}"#,
        r#"{"n":"2","max_tokens":1e3}"#,
        r#"{"n":4294967296}"#,
    ] {
        assert_eq!(of(odd), (1, None), "{odd}");
    }
}

#[test]
fn the_order_of_keys_in_the_body_decides_nothing() {
    let long = |c: &str| c.repeat(400);
    let members = [
        format!(r#""tools":[{{"type":"function","description":"{}"}}]"#, long("d")),
        format!(r#""messages":[{{"role":"user","content":"{}"}}]"#, long("u")),
        format!(r#""system":"{}""#, long("s")),
        format!(r#""instructions":[{{"text":"{}"}}]"#, long("i")),
        r#""model":"m""#.to_owned(),
        r#""cache_salt":"c""#.to_owned(),
        r#""adapter":"a","lora_path":"b""#.to_owned(),
        r#""n":2,"max_tokens":3,"max_completion_tokens":4,"stream":true"#.to_owned(),
    ];
    let body = |members: &[String]| read(&format!("{{{}}}", members.join(",")));
    let first = body(&members);
    assert!(first.chain.blocks.len() == 6 && first.n == 2);
    for turn in 0..members.len() {
        let mut turned = members.clone();
        turned.rotate_left(turn);
        assert_eq!(body(&turned), first);
        turned.reverse();
        assert_eq!(body(&turned), first);
    }
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
