//! What the router does right where a real engine is odd, and what it must not break where it is right.

use router_tests::client::{Answer, Client, ask, post};
use router_tests::{router, wait};
use serde_json::{Value, json};

use crate::llama::{MODEL, Pair};

fn chat(messages: &[Value], stream: bool) -> String {
    let body = json!({
        "model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0, "stream": stream,
        "stream_options": stream.then(|| json!({"include_usage": true})),
    });
    post("/v1/chat/completions", &body.to_string())
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

/// Prompt tokens and those found in the engine's cache, by its own usage fields.
fn usage(answer: &Answer, stream: bool) -> (u64, u64) {
    let text = answer.text();
    let usage = if stream {
        assert!(text.trim_end().ends_with("data: [DONE]"), "a stream ends as it should: {text}");
        let events = text.lines().filter_map(|l| l.strip_prefix("data: ")).filter(|l| *l != "[DONE]");
        let mut chunks = events.map(|event| serde_json::from_str::<Value>(event).unwrap());
        chunks.rfind(|c| c["usage"].is_object()).unwrap()["usage"].clone()
    } else {
        serde_json::from_str::<Value>(&text).unwrap()["usage"].clone()
    };
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
    (usage["prompt_tokens"].as_u64().unwrap(), cached)
}

/// The rules of the house, some kilobytes of them, that differ by `who` from the first word on.
fn long_text(who: &str) -> String {
    (0..120).map(|n| format!("{who} rule {n}: be brief. ")).collect()
}

#[test]
fn later_turns_find_their_prefix_where_the_first_went() {
    let name = "later_turns_find_their_prefix_where_the_first_went";
    let Some(pair) = Pair::start(name, |_| {}) else { return };
    for stream in [true, false] {
        for session in 0..3 {
            let mut messages = vec![user(&long_text(&format!("{stream} session {session}")))];
            let (mut home, mut before) = (None, 0);
            for turn in 0..4 {
                let answer = ask(pair.addr(), chat(&messages, stream));
                assert_eq!(answer.status, 200, "{}", answer.text());
                let went = answer.header("x-unlatch-backend").unwrap().to_owned();
                let (prompt, cached) = usage(&answer, stream);
                if turn > 0 {
                    assert_eq!(
                        home.as_ref(),
                        Some(&went),
                        "the idle fleet has no reason to move session {session}"
                    );
                    assert!(
                        cached * 10 >= before * 9,
                        "turn {turn}: {cached} of {before} earlier tokens were cached"
                    );
                }
                (home, before) = (Some(went), prompt);
                messages.push(json!({"role": "assistant", "content": "Yes."}));
                messages.push(user(&format!("And then, {turn}?")));
            }
        }
    }
    router::wait_idle(&pair.router);
}

#[test]
fn a_burst_of_new_sessions_uses_both_engines_evenly() {
    let name = "a_burst_of_new_sessions_uses_both_engines_evenly";
    let in_flight = |config: &mut router_user::config::Config| {
        config.policy.policy = router_policy::PolicyName::LeastInFlight;
    };
    let Some(pair) = Pair::start(name, in_flight) else { return };
    let mut clients: Vec<Client> = (0..8).map(|_| Client::connect(pair.addr())).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        // Long enough that all eight are in flight together: the engine makes some 2,000 tokens a second.
        let body = json!({
            "model": MODEL, "messages": [user(&format!("burst {index}"))], "max_tokens": 3000, "ignore_eos": true,
            "stream": true,
        });
        client.send(post("/v1/chat/completions", &body.to_string()));
    }
    let heads: Vec<String> = clients.iter_mut().map(Client::head).collect();
    let first = format!("x-unlatch-backend: http://{}", pair.engines[0].addr);
    assert!(heads.iter().all(|head| head.starts_with("HTTP/1.1 200")), "{heads:?}");
    let on_first = heads.iter().filter(|head| head.contains(&first)).count();
    assert_eq!(on_first, 4, "live counts split a burst 4+4");
    drop(clients);
    router::wait_idle(&pair.router);
}

#[test]
fn an_unknown_model_is_404_though_the_engine_would_answer() {
    let name = "an_unknown_model_is_404_though_the_engine_would_answer";
    let Some(pair) = Pair::start(name, |_| {}) else { return };
    let request = chat(&[user("hi")], false).replace(&format!("\"{MODEL}\""), "\"nope\"");
    let straight = ask(pair.engines[0].addr, &request);
    assert_eq!(straight.status, 200, "the engine itself does not look at the name");
    let routed = ask(pair.addr(), &request);
    assert_eq!(routed.status, 404);
    let error: Value = serde_json::from_str(&routed.text()).unwrap();
    assert_eq!(error["error"]["code"], "model_not_found");
}

#[test]
fn a_bad_body_is_400_though_the_engine_says_500() {
    let name = "a_bad_body_is_400_though_the_engine_says_500";
    let Some(pair) = Pair::start(name, |_| {}) else { return };
    for body in ["", "{\"model\":", "[]"] {
        let request = post("/v1/chat/completions", body);
        let routed = ask(pair.addr(), &request);
        assert_eq!(routed.status, 400, "{body:?}: {}", routed.text());
        let error: Value = serde_json::from_str(&routed.text()).unwrap();
        assert_eq!(error["error"]["type"], "invalid_request_error");
    }
}

#[test]
fn no_request_fails_though_the_engine_closes_after_each_stream() {
    let name = "no_request_fails_though_the_engine_closes_after_each_stream";
    let Some(pair) = Pair::start(name, |_| {}) else { return };
    let mut client = Client::connect(pair.addr());
    for turn in 0..40 {
        let stream = turn % 2 == 0;
        client.send(chat(&[user(&format!("question {turn}"))], stream));
        let answer = client.answer();
        assert_eq!(answer.status, 200, "turn {turn}: {}", answer.text());
        assert!(answer.is_complete, "turn {turn}");
    }
}

#[test]
fn a_client_that_leaves_a_stream_frees_the_engine() {
    let name = "a_client_that_leaves_a_stream_frees_the_engine";
    let Some(pair) = Pair::start(name, |_| {}) else { return };
    let body = json!({
        "model": MODEL, "messages": [user("long")], "max_tokens": 20_000, "ignore_eos": true, "stream": true,
    });
    let mut client = Client::connect(pair.addr());
    client.send(post("/v1/chat/completions", &body.to_string()));
    let head = client.head();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(client.chunk().is_some());
    assert_eq!(pair.router.in_flight(), 1);
    drop(client);
    router::wait_idle(&pair.router);
    let processing = |addr| {
        let slots = ask(addr, "GET /slots HTTP/1.1\r\nhost: engine\r\nconnection: close\r\n\r\n");
        slots.text().contains("\"is_processing\":true")
    };
    wait::until("no slot goes on generating", || pair.engines.iter().all(|e| !processing(e.addr)));
}
