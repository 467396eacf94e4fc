//! What real engines report: names found, values right under load, and right again after it.

use router_tests::client::{Client, ask, post};
use router_tests::{router, wait};
use serde_json::{Value, json};

use crate::llama::{MODEL, Pair};

fn completion(prompt: &str, max_tokens: u32, stream: bool) -> String {
    let body = json!({
        "model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "stream": stream, "ignore_eos": true,
    });
    post("/v1/completions", &body.to_string())
}

#[test]
fn what_others_have_at_a_real_engine_is_reported_and_avoided() {
    let name = "what_others_have_at_a_real_engine_is_reported_and_avoided";
    let Some(pair) = Pair::start(name, |_| {}) else { return };
    let reported = |row| {
        let status = router::status(&pair.router, row);
        let value = |signal: &str| status[signal]["value"].clone();
        [
            value("running"),
            value("waiting"),
            status["report"]["state"].clone(),
            status["report"]["engine"].clone(),
        ]
    };
    let idle = [json!(0), json!(0), json!("known"), json!("llamacpp")];
    wait::until("both report that they are idle", || [0, 1].iter().all(|row| reported(*row) == idle));
    assert_eq!(router::status(&pair.router, 0)["seats"], json!({"value": 4, "source": "reported"}));

    // Six streams of another client on four slots.
    let others: Vec<Client> = (0..6)
        .map(|n| {
            let mut client = Client::connect(pair.engines[0].addr);
            client.send(completion(&format!("{n} tell me"), 60_000, true));
            client
        })
        .collect();
    let busy = [json!(4), json!(2), json!("known"), json!("llamacpp")];
    wait::until("the queue is reported", || reported(0) == busy);
    let second = pair.engines[1].addr.to_string();
    for n in 0..6 {
        let answer = ask(pair.addr(), completion(&format!("{n} be brief"), 4, false));
        assert_eq!(answer.status, 200, "{}", answer.text());
        let went = answer.header("x-unlatch-backend").unwrap();
        assert!(went.contains(&second), "{went}: what others have there counts");
    }
    let foreign = router::status(&pair.router, 0)["foreign"]["value"].as_f64();
    assert!(foreign.is_some_and(|n| n > 0.0 && n <= 6.0), "{foreign:?}");
    drop(others);
    wait::until("it reports that it is idle again", || reported(0) == idle);
    assert_eq!(router::status(&pair.router, 0)["report"]["problem"], Value::Null);
}
