//! The admin plane over real sockets: who may change something, and what comes of it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use router_tests::backend::Backend;
use router_tests::client::{Answer, Client, ask, chat};
use router_tests::router::{config, metric, start, status};
use router_tests::wait::{self, DEADLINE};
use router_user::app::{Router, RunningRouter};
use router_user::config::{AdminListen, Config, Secret};
use serde_json::Value;

const TOKEN: &str = "correct-horse-battery";

/// A configuration whose admin plane has a token; the file lies in the directory.
fn with_token(backends: &[SocketAddr]) -> (Config, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    (Config { admin_token_file: Some(file), ..config(backends) }, dir)
}

/// One request to the admin plane, with more lines for its head.
fn call(router: &RunningRouter, method: &str, path: &str, head: &str, body: &str) -> Answer {
    let admin = router.admin_addr();
    let length = body.len();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nhost: {admin}\r\n{head}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    ask(admin, text)
}

/// The same with the token.
fn change(router: &RunningRouter, method: &str, path: &str, body: &str) -> (u16, Value) {
    let answer = call(router, method, path, &format!("authorization: Bearer {TOKEN}\r\n"), body);
    (answer.status, serde_json::from_slice(&answer.body).unwrap_or_default())
}

#[test]
fn a_drained_backend_gets_nothing_until_it_is_undrained() {
    let (one, two) = (Backend::ok(), Backend::ok());
    let (config, _dir) = with_token(&[one.addr(), two.addr()]);
    let router = start(config);
    for head in ["", "authorization: Bearer correct-horse-batterx\r\n"] {
        assert_eq!(call(&router, "POST", "/backends/0/drain", head, "").status, 401);
    }
    let cross = format!("authorization: Bearer {TOKEN}\r\norigin: http://evil.example\r\n");
    assert_eq!(call(&router, "POST", "/backends/0/drain", &cross, "").status, 403);
    assert_eq!(status(&router, 0)["state"], "ready", "nobody who may not has changed anything");

    assert_eq!(
        change(&router, "POST", "/backends/0/drain?deadline=5s", ""),
        (202, serde_json::json!({"row": 0}))
    );
    let shown = status(&router, 0);
    assert_eq!((&shown["state"], &shown["drain"]["leaving"]), (&"draining".into(), &false.into()));
    assert!(shown["drain"]["left_seconds"].as_f64().unwrap() <= 5.0, "{shown}");
    for _ in 0..6 {
        assert_eq!(ask(router.addr(), chat()).status, 200);
    }
    assert_eq!((one.received().len(), two.received().len()), (0, 6));
    assert_eq!(metric(&router, "unlatch_backend_state", "state=\"draining\""), 1.0);
    assert_eq!(change(&router, "POST", "/backends/0/undrain", "").0, 202);
    assert_eq!(change(&router, "POST", "/backends/0/undrain", "").0, 409, "it does not drain");
    wait::until("it gets requests again", || {
        assert_eq!(ask(router.addr(), chat()).status, 200);
        !one.received().is_empty()
    });
    assert_eq!(metric(&router, "unlatch_admin_refused_total", "reason=\"denied\""), 2.0);
    assert_eq!(metric(&router, "unlatch_admin_refused_total", "reason=\"other_site\""), 1.0);
}

#[test]
fn backends_come_and_go_by_the_admin_plane() {
    let (one, two) = (Backend::ok(), Backend::ok());
    let (config, _dir) = with_token(&[one.addr()]);
    let router = start(config);
    let added = format!("http://{}", two.addr());
    let body = serde_json::json!({"url": added, "model": "other", "max-in-flight": 3}).to_string();
    assert_eq!(
        change(&router, "POST", "/backends", &body),
        (201, serde_json::json!({"url": added, "rows": [1]}))
    );
    let shown = call(&router, "GET", "/backends/1", "", "");
    let shown: Value = serde_json::from_slice(&shown.body).unwrap();
    assert_eq!(
        (&shown["url"], &shown["source"], &shown["pool"]),
        (&added.into(), &"operator".into(), &"other".into())
    );

    let named = format!(r#"{{"backend":"http://{}"}}"#, one.addr());
    let (status, error) = change(&router, "POST", "/backends", &named);
    assert_eq!((status, &error["error"]["code"]), (409, &"conflict".into()), "the configuration names it");
    assert_eq!(change(&router, "DELETE", "/backends/0", "").0, 409);
    let (status, error) = change(&router, "POST", "/backends", r#"{"backend":"http://h,modle=m"}"#);
    assert_eq!((status, &error["error"]["param"]), (400, &"backend".into()));
    assert!(error["error"]["message"].as_str().unwrap().contains("modle"), "{error}");
    let (status, error) =
        change(&router, "POST", "/backends", r#"{"backend":"http://no.such.name.invalid"}"#);
    assert_eq!(status, 400, "{error}");

    assert_eq!(change(&router, "DELETE", "/backends/1?deadline=1s", "").0, 202);
    wait::until("it leaves", || call(&router, "GET", "/backends/1", "", "").status == 404);
    assert_eq!(change(&router, "DELETE", "/backends/1", "").0, 404);
    assert_eq!(change(&router, "POST", "/reload", "").0, 501, "this router has no file to read again");
}

#[test]
fn a_reload_takes_the_new_token_and_backends_whole_or_not_at_all() {
    let (one, two) = (Backend::ok(), Backend::ok());
    let (first, dir) = with_token(&[one.addr()]);
    let file = dir.path().join("token");
    let second = Config { backends: config(&[one.addr(), two.addr()]).backends, ..first.clone() };
    let router = Router::start_from(first, Some(Box::new(move || Ok(second.clone())))).unwrap();
    std::fs::write(&file, "short").unwrap();
    let (status, error) = change(&router, "POST", "/reload", "");
    assert_eq!((status, &error["error"]["code"]), (400, &"invalid".into()), "{error}");
    assert_eq!(call(&router, "GET", "/backends/1", "", "").status, 404, "nothing changed");
    std::fs::write(&file, "another-token-than-before").unwrap();
    let (status, done) = change(&router, "POST", "/reload", "");
    assert_eq!(
        (status, &done["added"]),
        (200, &serde_json::json!([format!("http://{}", two.addr())])),
        "{done}"
    );
    assert_eq!(change(&router, "POST", "/reload", "").0, 401, "the old token is one no more");
    assert_eq!(call(&router, "GET", "/backends/1", "", "").status, 200);
}

#[test]
fn without_a_token_nobody_changes_anything_and_all_read() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    let refused = call(&router, "POST", "/backends/0/drain", "authorization: Bearer x\r\n", "");
    assert!(refused.status == 403 && refused.text().contains("--admin-token-file"), "{}", refused.text());
    assert_eq!(call(&router, "GET", "/backends/0/engine/slots", "", "").status, 403);
    for path in ["/", "/metrics", "/status", "/healthz", "/readyz", "/backends", "/backends/0"] {
        assert_eq!(call(&router, "GET", path, "", "").status, 200, "{path}");
    }
    let wrong = call(&router, "DELETE", "/status", "", "");
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("GET, HEAD, OPTIONS")));
    let page = call(&router, "GET", "/", "", "");
    assert!(page.header("content-security-policy").unwrap().contains("script-src 'nonce-"));
    assert!(engine.received().is_empty());
}

#[test]
fn an_engines_own_paths_are_asked_with_its_own_key() {
    let engine = Backend::start(|_, exchange| exchange.answer("202 Accepted", r#"{"is_sleeping":true}"#));
    let (mut config, _dir) = with_token(&[engine.addr()]);
    config.backends[0].api_key = Some(Secret::new("sk-engine".to_owned()));
    let router = start(config);
    let body = r#"{"lora_name":"a"}"#;
    let head = format!("authorization: Bearer {TOKEN}\r\ncookie: a=b\r\ncontent-type: application/json\r\n");
    let answer = call(&router, "POST", "/backends/0/engine/v1/load_lora_adapter?x=1", &head, body);
    assert_eq!((answer.status, answer.text()), (202, r#"{"is_sleeping":true}"#.to_owned()));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let asked = engine.received().pop().unwrap();
    assert_eq!(asked.line(), "POST /v1/load_lora_adapter?x=1 HTTP/1.1");
    assert_eq!(asked.header("authorization"), Some("Bearer sk-engine"));
    assert_eq!((asked.header("cookie"), asked.body.as_slice()), (None, body.as_bytes()));
    assert_eq!(change(&router, "POST", "/backends/0/sleep?level=1", "").0, 202);
    assert_eq!(engine.received().pop().unwrap().line(), "POST /sleep?level=1 HTTP/1.1");
    assert_eq!(call(&router, "GET", "/backends/0/is_sleeping", "", "").status, 202, "all may read that");
    let lines = |engine: &Backend| engine.received().len();
    let before = lines(&engine);
    assert_eq!(change(&router, "POST", "/backends/7/sleep", "").0, 404);
    assert_eq!(lines(&engine), before);
    drop(engine);
    let (status, error) = change(&router, "GET", "/backends/0/engine/slots", "");
    assert_eq!((status, &error["error"]["code"]), (502, &"engine_failed".into()), "{error}");
}

/// One request over the Unix socket; its status line and all that follows.
fn over(socket: &Path, method: &str, path: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn over_its_socket_an_operator_needs_no_token() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("admin.sock");
    let engine = Backend::ok();
    let at = AdminListen::Unix(socket.clone());
    let router = start(Config { admin_listen: at.clone(), ..config(&[engine.addr()]) });
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(over(&socket, "GET", "/readyz").ends_with("ready\n"));
    assert!(over(&socket, "POST", "/backends/0/drain").starts_with("HTTP/1.1 202 "));
    assert!(over(&socket, "GET", "/readyz").starts_with("HTTP/1.1 503 "), "its only backend drains");
    let second = Router::start(Config { admin_listen: at, ..config(&[]) });
    assert!(second.is_err(), "somebody listens there");
    drop(router);
    assert!(!socket.exists(), "the end takes the file away");
}

#[test]
fn snapshots_come_every_second_until_the_router_ends() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    let mut client = Client::connect(router.admin_addr());
    client.send("GET /events HTTP/1.1\r\nhost: h\r\n\r\n");
    let head = client.head();
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("text/event-stream"), "{head}");
    assert_eq!(client.chunk().as_deref(), Some("retry: 2000\n\n"));
    let mut next = || {
        let chunk = client.chunk()?;
        let json = chunk.strip_prefix("data: ").unwrap().strip_suffix("\n\n").unwrap();
        Some(serde_json::from_str::<Value>(json).unwrap())
    };
    let first = next().unwrap();
    assert_eq!((&first["backends"][0]["row"], &first["backends"][0]["placed"]), (&0.into(), &0.into()));
    assert_eq!((&first["subscribers"], &first["ready"]), (&1.into(), &true.into()));
    assert_eq!(ask(router.addr(), chat()).status, 200);
    let second = std::iter::from_fn(&mut next).find(|shown| shown["backends"][0]["placed"] == 1).unwrap();
    assert_eq!(second["decisions"].as_object().unwrap().values().filter_map(Value::as_u64).sum::<u64>(), 1);
    let total = second["ttft_buckets"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(total, serde_json::json!([null, 1]));
    // A subscriber does not hold the end up.
    drop(router);
    while next().is_some() {}
}

#[test]
fn subscribers_beyond_the_bound_are_refused_and_a_place_comes_free() {
    let router = start(config(&[]));
    let subscribe = || {
        let mut stream = TcpStream::connect(router.admin_addr()).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(b"GET /events HTTP/1.1\r\nhost: h\r\n\r\n").unwrap();
        let mut line = [0; 12];
        stream.read_exact(&mut line).unwrap();
        (stream, String::from_utf8(line.to_vec()).unwrap())
    };
    let mut open: Vec<_> = (0..16).map(|_| subscribe()).collect();
    assert!(open.iter().all(|(_, line)| line == "HTTP/1.1 200"));
    assert_eq!(subscribe().1, "HTTP/1.1 503");
    assert_eq!(metric(&router, "unlatch_admin_refused_total", "reason=\"subscribers\""), 1.0);
    open.pop();
    wait::until("the place of one who left is free", || subscribe().1 == "HTTP/1.1 200");
}

#[test]
fn an_engine_put_to_sleep_by_its_id_gets_nothing_until_it_is_woken() {
    let (sleeper, other) = (Backend::ok(), Backend::ok());
    let (mut config, _dir) = with_token(&[sleeper.addr(), other.addr()]);
    // Its metrics say nothing of sleep, so no scrape may end it.
    sleeper.say("vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n");
    config.policy.scrape_interval = std::time::Duration::from_millis(20);
    let router = start(config);
    let id = status(&router, 0)["engine_id"].as_str().unwrap().to_owned();
    let path = format!("/sleep?level=1&id={id}");
    assert_eq!(call(&router, "POST", &path, "", "").status, 401, "it changes something");
    assert_eq!(status(&router, 0)["state"], "ready");
    assert_eq!(change(&router, "POST", &path, "").0, 200);
    assert_eq!(sleeper.only().line(), "POST /sleep?level=1 HTTP/1.1");
    assert_eq!(status(&router, 0)["state"], "asleep");
    let scraped = sleeper.probes().len();
    wait::until("it is scraped again", || sleeper.probes().len() > scraped + 6);
    for _ in 0..6 {
        assert_eq!(ask(router.addr(), chat()).status, 200);
    }
    assert_eq!((sleeper.received().len(), other.received().len()), (1, 6));
    assert_eq!(call(&router, "GET", &format!("/is_sleeping?id={id}"), "", "").status, 200);
    assert_eq!(change(&router, "POST", &format!("/wake_up?id={id}"), "").0, 200);
    wait::until("it gets requests again", || {
        assert_eq!(ask(router.addr(), chat()).status, 200);
        sleeper.received().len() > 3
    });
    assert_eq!(change(&router, "POST", "/sleep?id=0000000000000000", "").0, 404);
    assert_eq!(change(&router, "POST", "/sleep", "").0, 404, "no engine is named");
}
