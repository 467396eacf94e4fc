//! The set of engines changes while the router serves: nothing in flight notices, nothing is left behind.

use std::net::SocketAddr;
use std::time::Duration;

use router_policy::BackendId;
use router_tests::backend::Backend;
use router_tests::client::{Client, ask, chat, post};
use router_tests::router::{backend, config, in_flight, start};
use router_tests::wait::{self, Gate};
use router_user::app::RunningRouter;
use router_user::app::fleet::{CONFIGURATION, Refused};
use router_user::backends::Member;
use serde_json::Value;

/// An engine whose stream ends when the gate is opened.
fn streaming(gate: &Gate) -> Backend {
    let gate = gate.clone();
    Backend::start(move |_, exchange| {
        exchange.start_stream();
        exchange.chunk("data: 0\n\n");
        gate.wait();
        exchange.chunk("data: 1\n\n");
        exchange.end_stream()
    })
}

fn members(addrs: &[SocketAddr]) -> Vec<Member> {
    addrs.iter().map(|&addr| Member { config: backend(addr), addr }).collect()
}

/// What `/status` says of each backend.
fn shown(router: &RunningRouter) -> Vec<Value> {
    let text = ask(router.admin_addr(), "GET /status HTTP/1.1\r\nHost: a\r\n\r\n").text();
    let status: Value = serde_json::from_str(&text).unwrap();
    status["backends"].as_array().unwrap().clone()
}

fn metrics(router: &RunningRouter) -> String {
    ask(router.admin_addr(), "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").text()
}

/// Begins a stream and waits for its first event.
fn begin(router: &RunningRouter) -> (Client, String) {
    let mut client = Client::connect(router.addr());
    client.send(chat());
    let head = client.head();
    assert_eq!(client.chunk().as_deref(), Some("data: 0\n\n"));
    (client, head)
}

#[test]
fn a_removed_backend_drains_and_leaves_nothing_behind() {
    let gate = Gate::default();
    let (old, new) = (streaming(&gate), Backend::ok());
    let router = start(config(&[old.addr()]));
    let (mut client, head) = begin(&router);
    let change = router.fleet().set(CONFIGURATION, members(&[new.addr()]));
    let url = |engine: &Backend| format!("http://{}", engine.addr());
    assert_eq!((change.added, change.leaving), (vec![url(&new)], vec![url(&old)]));
    for _ in 0..8 {
        assert_eq!(ask(router.addr(), chat()).status, 200);
    }
    assert_eq!(new.received().len(), 8, "all that is new goes to who stayed");
    let leaving = &shown(&router)[0];
    assert_eq!((&leaving["state"], &leaving["in_flight"]["own"]), (&"draining".into(), &1.into()));
    assert_eq!((&leaving["drain"]["leaving"], &leaving["drain"]["done"]), (&true.into(), &false.into()));
    assert_eq!(leaving["source"], Value::Null);
    gate.open();
    let rest = client.body(head);
    assert!(rest.is_complete && rest.text() == "data: 1\n\n", "its stream ends as if nothing were: {rest:?}");
    wait::until("it leaves", || shown(&router).len() == 1);
    wait::until("its row is given up", || {
        let row = router.account().row(BackendId::new(0).unwrap());
        row.opened == 0 && !metrics(&router).contains(&url(&old))
    });
    let again = router.fleet().set(CONFIGURATION, members(&[new.addr()]));
    assert!(again.is_empty(), "the same again is no change: {again:?}");
}

#[test]
fn a_changed_backend_keeps_counts_index_and_connection() {
    let gate = Gate::default();
    let engine = streaming(&gate);
    let router = start(config(&[engine.addr()]));
    let (mut client, head) = begin(&router);
    let mut changed = members(&[engine.addr()]);
    changed[0].config.spec.model = Some("other".to_owned());
    changed[0].config.spec.max_in_flight = Some(1);
    let change = router.fleet().set(CONFIGURATION, changed);
    assert_eq!((change.changed.len(), change.leaving.len()), (1, 0));
    assert_eq!(in_flight(&router, 0), 1, "what is in flight is counted on");
    let before = ask(router.addr(), chat());
    assert_eq!(before.status, 404, "the model it had: {}", before.text());
    let body = r#"{"model":"other","messages":[{"role":"user","content":"hello"}]}"#;
    let now = ask(router.addr(), post("/v1/chat/completions", body));
    assert_eq!(now.status, 503, "it is full with the one stream: {}", now.text());
    gate.open();
    assert!(client.body(head).is_complete);
    wait::until("the stream ended", || in_flight(&router, 0) == 0);
}

#[test]
fn a_backend_that_comes_back_while_it_drains_stays_as_it_was() {
    let gate = Gate::default();
    let engine = streaming(&gate);
    let router = start(config(&[engine.addr()]));
    let (mut client, head) = begin(&router);
    router.fleet().set(CONFIGURATION, Vec::new());
    let refused = ask(router.addr(), chat());
    assert_eq!(refused.status, 503, "nobody is left for something new: {}", refused.text());
    let back = router.fleet().set(CONFIGURATION, members(&[engine.addr()]));
    assert!(back.added.is_empty() && back.changed.is_empty(), "{back:?}");
    assert_eq!((&shown(&router)[0]["state"], in_flight(&router, 0)), (&"ready".into(), 1));
    gate.open();
    assert!(client.body(head).is_complete);
    assert_eq!(ask(router.addr(), chat()).status, 200);
}

#[test]
fn a_backend_that_left_and_returns_is_cold() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    let text = "word ".repeat(400);
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#);
    assert_eq!(ask(router.addr(), post("/v1/chat/completions", &body)).status, 200);
    let blocks = || shown(&router).first().map_or(Value::Null, |b| b["index_blocks"].clone());
    wait::until("its prompt is in the index", || blocks().as_u64() > Some(0));
    router.fleet().set(CONFIGURATION, Vec::new());
    wait::until("it leaves", || shown(&router).is_empty());
    router.fleet().set(CONFIGURATION, members(&[engine.addr()]));
    assert_eq!(blocks(), 0);
}

#[test]
fn an_operator_drains_and_takes_it_back() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    let id = BackendId::new(0).unwrap();
    router.fleet().drain(id, None).unwrap();
    assert_eq!(ask(router.addr(), chat()).status, 503);
    wait::until("the drain is done", || shown(&router)[0]["drain"]["done"] == true);
    assert_eq!(router.fleet().remove(id, None), Err(Refused::NamedBy(CONFIGURATION.to_owned())));
    router.fleet().set(CONFIGURATION, members(&[engine.addr()]));
    assert_eq!(shown(&router)[0]["state"], "draining", "the word of an operator outlives a reload");
    router.fleet().undrain(id).unwrap();
    assert_eq!(router.fleet().undrain(id), Err(Refused::NotDraining));
    assert_eq!(ask(router.addr(), chat()).status, 200);
}

#[test]
fn an_operator_adds_and_removes() {
    let (first, second) = (Backend::ok(), Backend::ok());
    let router = start(config(&[first.addr()]));
    let change = router.fleet().add(members(&[second.addr()]));
    assert_eq!(change.added, [format!("http://{}", second.addr())]);
    assert_eq!(shown(&router)[1]["source"], "operator");
    router.fleet().set(CONFIGURATION, members(&[first.addr()]));
    assert_eq!(shown(&router).len(), 2, "a reload leaves what operators added");
    router.fleet().remove(BackendId::new(1).unwrap(), None).unwrap();
    wait::until("it leaves", || shown(&router).len() == 1);
}

#[test]
fn the_deadline_of_a_drain_cuts_visibly() {
    let gate = Gate::default();
    let engine = streaming(&gate);
    let router = start(config(&[engine.addr()]));
    let (mut client, head) = begin(&router);
    router.fleet().drain(BackendId::new(0).unwrap(), Some(Duration::from_millis(100))).unwrap();
    let rest = client.body(head);
    assert!(!rest.is_complete, "a cut answer never looks whole: {rest:?}");
    wait::until("its count is given back", || in_flight(&router, 0) == 0);
    gate.open();
}

#[test]
fn where_one_takes_anothers_place_there_is_no_moment_without_any() {
    let (first, second) = (Backend::ok(), Backend::ok());
    // What it serves is known once it was asked.
    let unasked = |engine: &Backend| {
        let mut member = members(&[engine.addr()]).remove(0);
        member.config.spec.model = None;
        vec![member]
    };
    let router = start(config(&[first.addr()]));
    for engine in [&second, &first, &second] {
        let before = engine.received().len();
        let change = router.fleet().set(CONFIGURATION, unasked(engine));
        assert_eq!((change.added.len(), change.leaving.len()), (1, 1));
        wait::until("the other one gets requests", || {
            let answer = ask(router.addr(), chat());
            assert_eq!(answer.status, 200, "{}", answer.text());
            engine.received().len() > before + 3
        });
        wait::until("the one before leaves", || shown(&router).len() == 1);
    }
}
