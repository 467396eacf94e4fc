//! Real engines that are told to end, or killed, and come back at their address.

use std::time::{Duration, Instant};

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

fn state(pair: &Pair, row: usize, key: &str) -> Value {
    router::status(&pair.router, row)[key].take()
}

/// Where an answer came from.
fn row(pair: &Pair, head: &str) -> usize {
    pair.engines.iter().position(|engine| head.contains(&engine.addr.to_string())).unwrap()
}

/// The engine stays silent with its stream open; the client is told, and when the engine is back, it is a cold one.
#[test]
fn a_real_engine_told_to_end_ends_its_streams_visibly_and_comes_back_cold() {
    let name = "a_real_engine_told_to_end_ends_its_streams_visibly_and_comes_back_cold";
    let configure = |config: &mut router_user::config::Config| {
        config.policy.scrape_interval = Duration::from_millis(500);
        config.limits.gone_stream_timeout = Some(Duration::from_secs(1));
        config.probe.rules.slow_start = Duration::from_secs(1);
    };
    let Some(mut pair) = Pair::start(name, configure) else { return };
    // A head for the cache, and a stream that would go on for minutes.
    let mut client = Client::connect(pair.addr());
    client.send(completion(&"once upon a time ".repeat(100), 60_000, true));
    let head = client.head();
    let row = row(&pair, &head);
    assert!(client.chunk().is_some());
    assert!(state(&pair, row, "index_blocks").as_u64().unwrap() > 0);
    let asked = Instant::now();
    pair.engines[row].terminate();
    let answer = client.body(head);
    println!("the stream ended {:?} after SIGTERM", asked.elapsed());
    assert!(!answer.is_complete && !answer.text().contains("[DONE]"), "visibly cut");
    wait::until("it is gone", || pair.engines[row].is_over());
    wait::until("nobody is sent there", || state(&pair, row, "state") == "backed_off");
    assert_eq!(router::in_flight(&pair.router, row), 0);
    for _ in 0..4 {
        assert_eq!(ask(pair.addr(), completion("be brief", 4, false)).status, 200, "the other serves");
    }
    pair.engines[row].start_again();
    let back = Instant::now();
    wait::until("it is back", || state(&pair, row, "ready") == true);
    assert_eq!(state(&pair, row, "index_blocks"), 0, "its cache is gone");
    let addr = pair.engines[row].addr.to_string();
    let mut n = 0;
    wait::until("it has traffic", || {
        n += 1;
        let answer = ask(pair.addr(), completion(&format!("{n} another matter "), 4, false));
        assert_eq!(answer.status, 200);
        answer.header("x-unlatch-backend").unwrap().contains(&addr)
    });
    println!("traffic again {:?} after it was started", back.elapsed());
}

/// Back before anybody found its port closed: its counts tell.
#[test]
fn a_real_engine_killed_and_restarted_at_once_is_known_to_be_cold() {
    let name = "a_real_engine_killed_and_restarted_at_once_is_known_to_be_cold";
    let Some(mut pair) = Pair::start(name, |config| config.policy.scrape_interval = Duration::from_secs(1))
    else {
        return;
    };
    let answer = ask(pair.addr(), completion(&"long ago and far away ".repeat(100), 4, false));
    assert_eq!(answer.status, 200);
    let row = row(&pair, answer.header("x-unlatch-backend").unwrap());
    // The counts before are to be known.
    let scraped = || state(&pair, row, "report")["state"] == "known";
    wait::until("it reports", scraped);
    std::thread::sleep(Duration::from_millis(2500));
    assert!(state(&pair, row, "index_blocks").as_u64().unwrap() > 0);
    pair.engines[row].kill();
    pair.engines[row].start_again();
    wait::until("its cache is gone", || state(&pair, row, "index_blocks") == 0);
    wait::until("it serves", || state(&pair, row, "ready") == true);
}
