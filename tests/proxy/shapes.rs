//! Bodies that routers have mishandled in the field (fixtures/bodies): they arrive as they were sent, and keep a
//! conversation where it began.

use std::collections::BTreeSet;

use router_policy::PolicyName;
use router_tests::backend::Backend;
use router_tests::client::{Client, ask, post};
use router_tests::router::{config, start};
use router_user::app::RunningRouter;

const CHAT: &str = "/v1/chat/completions";

fn fixture(name: &str) -> String {
    let path = format!("{}/fixtures/bodies/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

/// A router that places by prefix and load over these engines.
fn by_prefix(engines: &[&Backend]) -> RunningRouter {
    let mut config = config(&engines.iter().map(|engine| engine.addr()).collect::<Vec<_>>());
    config.policy.policy = PolicyName::PrefixCost;
    start(config)
}

/// Bodies that arrived anywhere.
fn arrived(engines: &[&Backend]) -> Vec<Vec<u8>> {
    engines.iter().flat_map(|engine| engine.received()).map(|received| received.body).collect()
}

/// R07.
#[test]
fn r07_every_shape_of_a_chat_arrives_unchanged() {
    let (a, b) = (Backend::ok(), Backend::ok());
    let router = by_prefix(&[&a, &b]);
    let names = [
        "chat_array_content.json",
        "chat_tools_null_content.json",
        "chat_odd_parts.json",
        "chat_empty_messages.json",
    ];
    let sent: BTreeSet<_> = names.map(|name| fixture(name).into_bytes()).into();
    for body in &sent {
        let body = str::from_utf8(body).unwrap();
        assert_eq!(ask(router.addr(), post(CHAT, body)).status, 200, "{body}");
    }
    assert_eq!(BTreeSet::from_iter(arrived(&[&a, &b])), sent);
}

/// R07. A text part is longer than the case's, whose texts are less than one block of 256 bytes, too little to have an
/// affinity to.
#[test]
fn r07_a_conversation_of_array_contents_stays_where_it_began() {
    let (a, b) = (Backend::ok(), Backend::ok());
    let router = by_prefix(&[&a, &b]);
    let mut body: serde_json::Value = serde_json::from_str(&fixture("chat_array_content.json")).unwrap();
    body["messages"][0]["content"][0]["text"] = "You are a careful helper. ".repeat(20).into();
    assert_eq!(ask(router.addr(), post(CHAT, &body.to_string())).status, 200);
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(serde_json::json!({"role": "assistant", "content": "It is a crab."}));
    messages
        .push(serde_json::json!({"role": "user", "content": [{"type": "text", "text": "Are you sure?"}]}));
    for _ in 0..5 {
        assert_eq!(ask(router.addr(), post(CHAT, &body.to_string())).status, 200);
    }
    let counts = [a.received().len(), b.received().len()];
    assert!(counts == [6, 0] || counts == [0, 6], "{counts:?}");
    let matched = |body: &serde_json::Value| {
        let answer = ask(router.addr(), post(CHAT, &body.to_string()));
        let decision = answer.header("x-unlatch-decision").unwrap().to_owned();
        !decision.contains("matched=0;")
    };
    assert!(matched(&body));
    body["messages"][0]["content"][0]["text"] = "You are a careless helper. ".repeat(20).into();
    assert!(!matched(&body), "the text of a part takes part in the key");
}

/// R08. A panic would end the connection that the answer is awaited on.
#[test]
fn r08_text_of_any_bytes_is_placed_and_arrives_unchanged() {
    let (a, b) = (Backend::ok(), Backend::ok());
    let router = by_prefix(&[&a, &b]);
    let mut bodies: Vec<String> = (0..4).map(|n| fixture(&format!("unicode_boundary_{n}.json"))).collect();
    // The first half of each, then ASCII.
    for n in 0..4 {
        let mut body: serde_json::Value = serde_json::from_str(&bodies[n]).unwrap();
        let text = text_of(&mut body);
        *text = text.chars().take(text.chars().count() / 2).chain("and so on".chars()).collect();
        bodies.push(body.to_string());
    }
    bodies.push(fixture("unicode_lone_surrogate.json"));
    std::thread::scope(|scope| {
        for body in &bodies {
            let router = router.addr();
            scope.spawn(move || {
                for _ in 0..10 {
                    assert_eq!(ask(router, post(CHAT, body)).status, 200);
                    let path = "GET /v1/models/%E6%A8%A1%E5%9E%8B HTTP/1.1\r\nhost: h\r\n\r\n";
                    assert_eq!(ask(router, path).status, 200);
                }
            });
        }
    });
    let mut expected: Vec<Vec<u8>> =
        bodies.iter().flat_map(|body| vec![body.clone().into_bytes(); 10]).collect();
    let mut posted = arrived(&[&a, &b]);
    posted.retain(|body| !body.is_empty());
    expected.sort();
    posted.sort();
    assert!(posted == expected, "{} bodies of {} arrived unchanged", posted.len(), expected.len());
}

/// The long text of a body: its prompt, or the content of its first message.
fn text_of(body: &mut serde_json::Value) -> &mut String {
    let at = if body.get("prompt").is_some() { "/prompt" } else { "/messages/0/content" };
    match body.pointer_mut(at) {
        Some(serde_json::Value::String(text)) => text,
        other => panic!("no text: {other:?}"),
    }
}

/// R08.
#[test]
fn r08_half_a_surrogate_pair_is_placed_by_load_alone() {
    let engine = Backend::ok();
    let router = by_prefix(&[&engine]);
    let answer = ask(router.addr(), post("/v1/completions", &fixture("unicode_lone_surrogate.json")));
    assert_eq!(answer.status, 200);
    let decision = answer.header("x-unlatch-decision").unwrap();
    assert!(decision.starts_with("unshaped; matched=0; prompt=0"), "{decision}");
}

/// R10.
#[test]
fn r10_unknown_fields_and_the_spelling_of_numbers_survive() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    let body = fixture("chat_extra_fields.json");
    assert_eq!(ask(router.addr(), post(CHAT, &body)).status, 200);
    let mut client = Client::connect(router.addr());
    client.send(format!("POST {CHAT} HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"));
    for chunk in body.as_bytes().chunks(7) {
        client.send([format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.answer().status, 200);
    for received in engine.received() {
        assert_eq!(received.body, body.as_bytes());
    }
    assert_eq!(engine.received().len(), 2);
}
