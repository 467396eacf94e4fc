//! R12: names of models find their pool, and what no engine serves is 404 at once, not 502 or 503.

use std::time::{Duration, Instant};

use router_tests::backend::{Backend, Then};
use router_tests::client::{Answer, Client, ask, post};
use router_tests::fixture;
use router_tests::router::{backend, config, start, wait_idle};
use router_tests::wait;
use router_user::app::RunningRouter;
use serde_json::{Value, json};

/// One engine of `m1`, one that lists `m2` and an adapter.
struct World {
    one: Backend,
    two: Backend,
    router: RunningRouter,
}

fn engine(name: &'static str) -> Backend {
    Backend::start(move |request, exchange| {
        if request.header("upgrade").is_some() {
            exchange
                .send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n");
            exchange.send(format!("x-engine: {name}\r\n\r\n"));
            return Then::Close;
        }
        exchange.answer("200 OK", name)
    })
}

fn world() -> World {
    let (one, two) = (engine("one"), engine("two"));
    two.list(&["m2", "m2-lora"]);
    let mut config = config(&[one.addr(), two.addr()]);
    config.backends[0].spec.model = Some("m1".into());
    config.backends[1] = backend(two.addr());
    config.backends[1].spec.model = None;
    config.limits.backoff_min = Duration::from_secs(3600);
    config.limits.backoff_max = Duration::from_secs(3600);
    World { one, two, router: start(config) }
}

impl World {
    fn received(&self) -> usize {
        self.one.received().len() + self.two.received().len()
    }

    /// Each way to name a model.
    fn ways(name: &str) -> [String; 3] {
        let form = format!(
            "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n...\r\n\
             --x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{name}\r\n--x--\r\n"
        );
        let head = format!(
            "POST /v1/audio/transcriptions HTTP/1.1\r\nhost: h\r\ncontent-type: multipart/form-data; \
             boundary=x\r\ncontent-length: {}\r\n\r\n",
            form.len()
        );
        let socket = fixture::http("ws_realtime.http").replacen("model=m ", &format!("model={name} "), 1);
        [post("/v1/completions", &json!({"model": name, "prompt": "x"}).to_string()), head + &form, socket]
    }

    /// Where it went.
    fn went(&self, request: &str) -> String {
        let before = [&self.one, &self.two].map(|engine| engine.received().len());
        let mut client = Client::connect(self.router.addr());
        client.send(request);
        let head = client.head();
        assert!(head.starts_with("HTTP/1.1 200 ") || head.starts_with("HTTP/1.1 101 "), "{head}");
        drop(client);
        wait_idle(&self.router);
        let after = [&self.one, &self.two].map(|engine| engine.received().len());
        match [after[0] - before[0], after[1] - before[1]] {
            [1, 0] => "one".to_owned(),
            [0, 1] => "two".to_owned(),
            other => panic!("{other:?}"),
        }
    }
}

/// In OpenAI's form, and that a client which sees it asks no more.
fn assert_not_found(answer: &Answer, name: &str) {
    assert_eq!(answer.status, 404, "{name}: {}", answer.head);
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    let error = &body["error"];
    assert_eq!((&error["code"], &error["param"]), (&json!("model_not_found"), &json!("model")));
    assert_eq!(error["type"], "invalid_request_error");
    assert!(error["message"].as_str().unwrap().contains(&format!("`{name}`")), "{error}");
    assert_eq!(answer.header("retry-after"), None);
}

#[test]
fn r12_a_name_finds_its_pool_whichever_way_it_is_named() {
    let world = world();
    for (name, engine) in [("m1", "one"), ("m2-lora", "two"), ("m2", "two")] {
        for request in World::ways(name) {
            for _ in 0..3 {
                assert_eq!(world.went(&request), engine, "{request}");
            }
        }
    }
    let bodies = world.two.received();
    let lora = bodies.iter().filter(|r| r.body == br#"{"model":"m2-lora","prompt":"x"}"#);
    assert_eq!(lora.count(), 3, "unchanged");
}

#[test]
fn r12_what_nobody_serves_is_not_found_at_once_and_nobody_is_asked() {
    let world = world();
    for name in ["nope", "M1"] {
        for request in World::ways(name) {
            let mut least = Duration::MAX;
            for _ in 0..5 {
                let asked = Instant::now();
                assert_not_found(&ask(world.router.addr(), &request), name);
                least = least.min(asked.elapsed());
            }
            assert!(least < Duration::from_millis(50), "{least:?}");
        }
    }
    assert_eq!(world.received(), 0);
}

/// The rule of docs/http.md: what is no name asks for no model, so any engine may answer, and gets the body as it is.
#[test]
fn r12_what_is_no_name_may_go_to_anyone() {
    let world = world();
    for model in [r#""model":"","#, r#""model":null,"#, r#""model":7,"#, r#""model":["m1"],"#, ""] {
        let body = format!(r#"{{{model}"prompt":"x"}}"#);
        let (before, mut went) = (world.received(), std::collections::BTreeSet::new());
        for _ in 0..20 {
            went.insert(world.went(&post("/v1/completions", &body)));
        }
        assert_eq!((world.received() - before, went.len()), (20, 2), "{body}: {went:?}");
        let last = [&world.one, &world.two].map(|engine| engine.received().pop().unwrap().body);
        assert!(last.iter().all(|seen| *seen == body.as_bytes()));
    }
}

#[test]
fn r12_a_model_whose_engines_are_down_is_unavailable_and_not_unknown() {
    let World { one, two, router } = world();
    let _refusing = two.die();
    for _ in 0..3 {
        for name in ["m2", "m2-lora"] {
            let [json, form, _] = World::ways(name);
            for request in [json, form] {
                let answer = ask(router.addr(), request);
                assert_eq!(answer.status, 503, "{name}: {}", answer.text());
                assert_eq!(answer.header("retry-after"), Some("1"));
            }
        }
    }
    wait::until("it is known to be down", || {
        !router.ledger().snapshot(router.ledger().backends()[1]).unwrap().ready
    });
    assert_eq!(ask(router.addr(), &World::ways("m2")[0]).status, 503);
    assert_not_found(&ask(router.addr(), &World::ways("nope")[0]), "nope");
    assert_eq!(ask(router.addr(), &World::ways("m1")[0]).text(), "one");
    assert!(one.received().iter().all(|r| r.body.windows(2).any(|two| two == b"m1")));
}
