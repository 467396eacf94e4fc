//! What of a body is prompt, and in which order.

use bytes::Bytes;
use proptest::prelude::*;
use router_policy::RequestShape;
use router_policy::prefix::{Chain, ChainBuilder, HashKey};
use serde_json::{Value, json};

use crate::parse::shape;

fn key() -> HashKey {
    HashKey::new(std::array::from_fn(|i| i as u8))
}

fn read(body: &str) -> RequestShape {
    shape(&Bytes::copy_from_slice(body.as_bytes()), &key()).unwrap()
}

/// The chain of a chat of these messages.
fn chain(messages: &Value) -> Chain {
    read(&json!({"model": "m", "messages": messages}).to_string()).chain
}

/// Leading blocks two prompts share.
fn shared(a: &Chain, b: &Chain) -> usize {
    a.blocks.iter().zip(&b.blocks).take_while(|(a, b)| a == b).count()
}

#[test]
fn text_of_array_parts_takes_part_in_the_key() {
    let body = |last: &str| {
        let text = |t: &str| json!({"type": "text", "text": t});
        let parts = json!([text(&"x".repeat(512)), text(last)]);
        json!({"model": "m", "messages": [{"role": "user", "content": parts}]}).to_string()
    };
    let (a, b) = (read(&body(&"y".repeat(512))).chain, read(&body(&"z".repeat(512))).chain);
    assert_eq!(a.blocks.len(), 4);
    assert_eq!(shared(&a, &b), 2);
}

#[test]
fn a_picture_counts_by_its_hash_not_by_its_bytes() {
    let body = |data: &str| {
        let parts = json!([{"type": "image_url", "image_url": {"url": data}}]);
        let text = "t".repeat(600);
        json!({"messages": [{"role": "user", "content": parts}, {"role": "user", "content": text}]})
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
        let calls = json!([{"function": {"name": "f", "arguments": argument}}]);
        json!({"messages": [{"role": "assistant", "content": null, "tool_calls": calls}]}).to_string()
    };
    let (a, b) = (read(&body(&"a".repeat(600))).chain, read(&body(&"b".repeat(600))).chain);
    assert!(a.blocks.len() == 2 && shared(&a, &b) == 0);
}

#[test]
fn prompts_inputs_and_systems_are_read() {
    let text = "p".repeat(600);
    let string = read(&json!({"prompt": text}).to_string());
    let array = read(&json!({"prompt": [text]}).to_string());
    assert_eq!(string.chain, array.chain, "one prompt is a batch of one");
    let two = read(&json!({"prompt": [text, text]}).to_string());
    assert_eq!(two.chain.bytes, 2 * string.chain.bytes);
    assert_eq!(read(&json!({"input": text}).to_string()).chain, string.chain);
    let ids = read(&json!({"prompt": vec![15_u32; 600]}).to_string());
    assert!(ids.shaped && ids.chain.bytes > 1200);
    let messages = [json!({"role": "user", "content": "q"})];
    let system = read(&json!({"messages": messages, "system": text}).to_string());
    assert_eq!(shared(&system.chain, &string.chain), 2, "a system text comes before the messages");
    let instructed = read(&json!({"input": messages, "instructions": text}).to_string());
    assert_eq!(instructed.chain, system.chain);
}

#[test]
fn token_ids_are_one_prompt_and_count_as_tokens() {
    let ids: Vec<u32> = (0..640).map(|n| n * 200).collect();
    let compact = read(&json!({"prompt": ids}).to_string());
    assert_eq!((compact.chain.blocks.len(), compact.prompt_tokens(4.0)), (10, 641), "a border counts a byte");
    let spaced = read(&serde_json::to_string_pretty(&json!({"prompt": ids})).unwrap());
    assert_eq!(spaced.chain, compact.chain, "blanks between ids are no part of the prompt");
    let mut other = ids.clone();
    other[639] += 1;
    assert_eq!(
        shared(&read(&json!({"prompt": other}).to_string()).chain, &compact.chain),
        (1 + 639 * 4) / 256
    );
    other[300] += 1;
    assert_eq!(
        shared(&read(&json!({"prompt": other}).to_string()).chain, &compact.chain),
        (1 + 300 * 4) / 256
    );
    assert_eq!(read(&json!({"input": ids}).to_string()).chain, compact.chain);
}

#[test]
fn of_a_batch_the_first_prompt_decides_the_chain_and_all_count() {
    let (a, b) = ("a".repeat(600), "b".repeat(900));
    let one = read(&json!({"prompt": a}).to_string()).chain;
    let two = read(&json!({"prompt": [a, b]}).to_string()).chain;
    assert_eq!(two.blocks, one.blocks);
    assert_eq!(two.bytes, one.bytes + 901);
    let swapped = read(&json!({"prompt": [b, a]}).to_string()).chain;
    assert_eq!((shared(&one, &swapped), swapped.bytes), (0, two.bytes));

    let ids = vec![15_u32; 640];
    let one = read(&json!({"prompt": ids}).to_string()).chain;
    let two = read(&json!({"prompt": [ids, [1, 2, 3]]}).to_string()).chain;
    assert_eq!((&two.blocks, two.bytes), (&one.blocks, one.bytes + 12));
    let empty = read(&json!({"prompt": []}).to_string());
    assert!(empty.shaped && empty.chain.bytes == 0);
}

#[test]
fn a_picture_or_sound_counts_by_its_url_or_bytes_alone() {
    let of = |part: Value| {
        chain(&json!([{"role": "user", "content": [part, {"type": "text", "text": "t".repeat(600)}]}]))
    };
    let picture = of(json!({"type": "image_url", "image_url": {"url": "http://h/a.png"}}));
    for same in [
        json!({"image_url": {"url": "http://h/a.png"}, "type": "image_url"}),
        json!({"type": "image_url", "image_url": {"detail": "low", "url": "http://h/a.png"}, "cache_control": {"type": "ephemeral"}}),
        json!({"type": "input_image", "image_url": "http://h/a.png"}),
    ] {
        assert_eq!(of(same), picture);
    }
    let mut all = vec![picture];
    for other in [
        json!({"type": "image_url", "image_url": {"url": "http://h/b.png"}}),
        json!({"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}),
        json!({"type": "input_audio", "input_audio": {"data": "UklGRh==", "format": "wav"}}),
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}),
        json!({"type": "input_file", "file_id": "f-1"}),
        json!({"type": "some_future_part", "x": 1}),
        json!({"type": "some_future_part", "x": 2}),
    ] {
        all.push(of(other));
    }
    for (i, a) in all.iter().enumerate() {
        assert_eq!(a.bytes, all[0].bytes, "each stands for 16 bytes");
        assert!(all[..i].iter().all(|b| shared(a, b) == 0), "part {i} is another prompt");
    }
}

#[test]
fn the_text_of_tools_and_their_results_counts_in_every_dialect() {
    let text = |c: &str| c.repeat(600);
    let of = |c: &str| {
        [
            json!([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": text(c)}]}]),
            json!([{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": text(c)}]}]}]),
            json!([{"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {"q": text(c)}}]}]),
            json!([{"type": "function_call", "name": "f", "arguments": text(c)}]),
            json!([{"type": "function_call_output", "call_id": "x", "output": text(c)}]),
            json!([{"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": text(c)}}]),
            json!([{"role": "assistant", "content": [{"type": "refusal", "refusal": text(c)}]}]),
        ]
    };
    for (a, b) in of("a").iter().zip(of("b")) {
        let (x, y) = (chain(a), chain(&b));
        assert!((600..700).contains(&x.bytes), "{} bytes of {a}", x.bytes);
        assert!(x.blocks.len() == 2 && shared(&x, &y) == 0, "{a}");
    }
}

#[test]
fn the_last_of_a_repeated_key_counts() {
    let long = "l".repeat(600);
    let once = read(&format!(r#"{{"messages":[{{"role":"user","content":"{long}"}}]}}"#)).chain;
    for twice in [
        format!(r#"{{"messages":[1],"messages":[{{"role":"user","content":"{long}"}}]}}"#),
        format!(r#"{{"messages":[{{"content":["x","y"],"role":"a","content":"{long}","role":"user"}}]}}"#),
    ] {
        assert_eq!(read(&twice).chain, once, "{twice}");
    }
}

/// Texts with all that a client may have to escape.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), "[a-z \\n\"\\\\\u{e9}\u{1f980}]{0,700}"]
}

fn message() -> impl Strategy<Value = Value> {
    let role = prop::sample::select(vec!["system", "user", "assistant", "tool", "developer"]);
    let part = prop_oneof![
        text().prop_map(|t| json!({"type": "text", "text": t})),
        text().prop_map(|t| json!({"type": "image_url", "image_url": {"url": t}})),
        text().prop_map(Value::from),
    ];
    let content = prop_oneof![
        4 => text().prop_map(Value::from),
        1 => prop::collection::vec(part, 0..4).prop_map(Value::from),
        1 => Just(Value::Null),
    ];
    (role, content, prop::option::of(text())).prop_map(|(role, content, call)| {
        let mut message = json!({"role": role, "content": content});
        if let Some(call) = call {
            message["tool_calls"] = json!([{"function": {"name": "f", "arguments": call}}]);
        }
        message
    })
}

/// A JSON text with every character beyond ASCII as an escape, as Python writes it.
fn ascii(body: &str) -> String {
    let escape = |c: char| c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect();
    body.chars().map(|c| if c.is_ascii() { c.to_string() } else { escape(c) }).collect()
}

/// The same members in another order, in the body and in each message.
fn turned(members: &[(&str, Value)], by: usize) -> String {
    let object = |mut members: Vec<(String, String)>| {
        let by = by % members.len().max(1);
        members.rotate_left(by);
        let members: Vec<_> = members.iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
        format!("{{{}}}", members.join(", "))
    };
    let message =
        |m: &Value| object(m.as_object().unwrap().iter().map(|(k, v)| (k.clone(), v.to_string())).collect());
    let value = |(key, value): &(&str, Value)| match (*key, value) {
        ("messages", Value::Array(all)) => {
            format!("[{}]", all.iter().map(message).collect::<Vec<_>>().join(","))
        }
        _ => value.to_string(),
    };
    object(members.iter().map(|member| (member.0.to_owned(), value(member))).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_conversation_that_grew_begins_with_the_chain_it_had(
        messages in prop::collection::vec(message(), 1..8), turn in any::<prop::sample::Index>(), escaped in any::<bool>()
    ) {
        let of = |messages: &[Value]| {
            let body = json!({"model": "m", "messages": messages}).to_string();
            read(&if escaped { ascii(&body) } else { body }).chain
        };
        let (before, after) = (of(&messages[..turn.index(messages.len())]), of(&messages));
        prop_assert!(before.bytes < after.bytes);
        prop_assert_eq!(shared(&before, &after), before.blocks.len());
    }

    #[test]
    fn a_change_in_a_message_changes_the_blocks_from_its_first_byte_on(
        messages in prop::collection::vec(message(), 1..8), turn in any::<prop::sample::Index>()
    ) {
        let turn = turn.index(messages.len());
        let mut changed = messages.clone();
        changed[turn]["role"] = json!("changed");
        let (before, after) = (chain(&json!(messages)), chain(&json!(changed)));
        // Its border and the quote of its role stay.
        let first_changed = chain(&json!(messages[..turn])).bytes + 2;
        prop_assert_eq!(shared(&before, &after) as u64, first_changed / 256);
    }

    #[test]
    fn the_order_of_keys_decides_nothing(
        messages in prop::collection::vec(message(), 1..5), tools in text(), salt in text(), by in 1..7_usize
    ) {
        let members = [
            ("model", json!("m")), ("messages", json!(messages)), ("tools", json!([tools])),
            ("cache_salt", json!(salt)), ("stream", json!(true)), ("n", json!(2)), ("max_tokens", json!(5)),
        ];
        prop_assert_eq!(read(&turned(&members, by)), read(&turned(&members, 0)));
    }

    #[test]
    fn token_ids_are_read_as_serde_json_reads_them(ids in prop::collection::vec(any::<u32>(), 0..200), pretty in any::<bool>()) {
        let write = if pretty { serde_json::to_string_pretty } else { serde_json::to_string };
        let chain = read(&write(&json!({"prompt": [ids, [1]]})).unwrap()).chain;
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let mut expected = Chain { bytes: 4, ..Chain::default() };
        if !ids.is_empty() {
            let key = key();
            let mut builder = ChainBuilder::new(&key, &[0, 0, 0, 0, 0, 0, 0, 0, 0]);
            builder.update(&[0x06]);
            builder.update(&bytes);
            expected = builder.finish();
            expected.bytes += 4;
        }
        prop_assert_eq!(chain, expected);
    }
}
