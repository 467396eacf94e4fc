use std::path::Path;
use std::time::Duration;

use super::dynamic::parse;
use super::flags::{FLAGS, Flag, Means, Takes};
use super::{Given, translate};
use crate::config::Config;
use crate::config::document::Notation;
use crate::config::resolve::{Host, resolve};
use crate::config::settings::{KEYS, Key, Settings, Source};

fn given(flags: &[(&str, &str)]) -> Given {
    let mut given = Given::default();
    for (name, text) in flags {
        let flag = Flag::find(name).unwrap();
        given.add(flag, (*text).to_owned(), Source::Flag(flag.name));
    }
    given
}

/// What the words become, as `key=text`.
fn settings(given: &Given) -> Result<Vec<String>, String> {
    let translated = translate(given, &Settings::default()).map_err(|e| e.to_string())?;
    let of_key = |key: &Key| {
        translated
            .settings
            .all(key.name)
            .iter()
            .map(|s| format!("{}={}", key.name, s.text))
            .collect::<Vec<_>>()
    };
    Ok(KEYS.iter().flat_map(of_key).collect())
}

fn config(given: &Given) -> Config {
    let host = Host { cores: 1, read: &|_| unreachable!("no file is named") };
    resolve(&translate(given, &Settings::default()).unwrap().settings, &host).unwrap()
}

fn check(flags: &[(&str, &str)], expected: &[&str]) {
    assert_eq!(settings(&given(flags)).unwrap(), expected, "{flags:?}");
}

const TWO: (&str, &str) = ("static-backends", "http://a:1,http://b:2");

#[test]
fn each_flag_becomes_a_setting() {
    check(&[("port", "8000")], &["listen=0.0.0.0:8000"]);
    check(&[("host", "::")], &["listen=[::]:8001"]);
    check(&[("host", "localhost"), ("port", "9")], &["listen=127.0.0.1:9"]);
    check(&[TWO], &["backend=http://a:1", "backend=http://b:2"]);
    check(
        &[
            TWO,
            ("static-models", "m/x,n"),
            ("static-model-labels", "p,d"),
            ("static-model-types", "chat, rerank"),
        ],
        &[
            "backend=http://a:1,model=m/x,types=chat,labels=model:p",
            "backend=http://b:2,model=n,types=rerank,labels=model:d",
        ],
    );
    check(&[("static-aliases", "gpt4:m:7b,b:n")], &["model-alias=gpt4:m:7b", "model-alias=b:n"]);
    check(&[("routing-logic", "roundrobin")], &["policy=round-robin"]);
    check(
        &[("routing-logic", "session"), ("session-key", "x-user-id")],
        &["policy=session", "session-key=x-user-id"],
    );
    check(
        &[
            ("routing-logic", "prefixaware"),
            ("prefix-min-match-length", "4096"),
            ("prefixaware-fallback", "qps"),
        ],
        &["policy=prefix-threshold", "prefix-min-match=4096", "fallback=lowest-qps"],
    );
    check(&[("prefixaware-fallback", "leastinflight")], &["fallback=least-in-flight"]);
    check(&[("engine-stats-interval", "0.25")], &["scrape-interval=0.25s"]);
    check(&[("request-stats-window", "10")], &["request-stats-window=10s"]);
    check(&[("max-instance-failover-reroute-attempts", "2")], &["reroutes-max=2"]);
    check(&[("log-level", "warning"), ("log-format", "json")], &["log-level=warn", "log-format=json"]);
    check(&[("log-level", "critical")], &["log-level=error"]);
    check(&[("log-stats", "true"), ("service-discovery", "static"), ("request-rewriter", "noop")], &[]);
    check(
        &[TWO, ("static-model-types", "chat,chat"), ("static-backend-health-checks", "true")],
        &["backend=http://a:1,types=chat", "backend=http://b:2,types=chat", "inference-probe=60s"],
    );
}

#[test]
fn how_often_engines_are_asked_for_a_token_counts_only_where_they_are() {
    let timing =
        [("static-backend-health-check-interval", "5"), ("backend-health-check-timeout-seconds", "3")];
    check(&timing, &["inference-probe-timeout=3s"]);
    let asked =
        [TWO, ("static-model-types", "chat,chat"), ("static-backend-health-checks", "true"), timing[0]];
    assert!(settings(&given(&asked)).unwrap().contains(&"inference-probe=5s".to_owned()));
}

#[test]
fn an_engine_given_with_several_models_is_one_backend() {
    let same = ("static-backends", "http://h:1,http://h:1,http://h:1");
    check(
        &[same, ("static-models", "a,b,c"), ("static-model-types", "chat,chat,embeddings")],
        &["backend=http://h:1,model=a,alias=b,alias=c,types=chat;embeddings"],
    );
}

#[test]
fn wrong_values_are_refused_at_their_flag() {
    for (flags, error) in [
        (&[TWO, ("static-models", "m")][..], "--static-models: 1 entries for 2 of --static-backends"),
        (&[TWO, ("static-model-types", "chat,chat,chat")], "--static-model-types: 3 entries for 2"),
        (&[TWO, ("static-model-labels", "a")], "--static-model-labels: 1 entries for 2"),
        (&[TWO, ("static-models", "m,")], "--static-models: entry 2 of the list is empty"),
        (
            &[TWO, ("static-model-types", "chat,chats")],
            "--static-model-types: `chats` is none of chat, completion",
        ),
        (&[("static-models", "m")], "--static-models: it belongs to --static-backends"),
        (&[("static-aliases", "gpt4")], "--static-aliases: `gpt4` is no alias:model"),
        (
            &[TWO, ("static-backend-health-checks", "true")],
            "--static-backend-health-checks: needs --static-model-types",
        ),
        (
            &[("service-discovery", "k8s")],
            "--service-discovery: `k8s` is the vLLM production stack's, and not here",
        ),
        (
            &[("routing-logic", "kvaware")],
            "--routing-logic: `kvaware` is the vLLM production stack's, and not here",
        ),
        (&[("routing-logic", "session")], "--routing-logic: `session` needs --session-key"),
        (
            &[("prefixaware-fallback", "random")],
            "--prefixaware-fallback: `random` is none of qps, leastinflight",
        ),
        (&[("prefix-min-match-length", "-1")], "--prefix-min-match-length: `-1` is no whole number"),
        (&[("engine-stats-interval", "0")], "--engine-stats-interval: `0` is no number of seconds above 0"),
        (&[("port", "99999")], "--port: `99999` is no port"),
        (&[("host", "my-host")], "--host: `my-host` is no address"),
        (&[("request-rewriter", "mine")], "--request-rewriter: `mine` is not here"),
    ] {
        let message = settings(&given(flags)).unwrap_err();
        assert!(message.starts_with(error), "{message}");
    }
}

#[test]
fn every_flag_that_is_lacking_is_named_with_what_to_use_instead() {
    let lacking = FLAGS.iter().filter(|flag| matches!(flag.means, Means::Lacking(_)));
    let all: Vec<_> = lacking.map(|flag| (flag.name, "1")).collect();
    let message = settings(&given(&all)).unwrap_err();
    for (name, _) in &all {
        assert!(message.contains(&format!("--{name}")), "{name}: {message}");
    }
    let message = settings(&given(&[("callbacks", "m.x"), ("sentry-dsn", "d"), ("port", "1")])).unwrap_err();
    assert!(message.contains("--callbacks") && message.contains("--sentry-dsn"), "{message}");
    assert!(
        message.contains("hooks") && message.contains("/metrics") && !message.contains("--port"),
        "{message}"
    );
}

#[test]
fn each_word_is_told_with_ours() {
    let mut all = vec![TWO];
    for flag in &FLAGS {
        let text = match flag.name {
            "service-discovery" => "static",
            "static-models" | "static-model-labels" => "m,n",
            "static-model-types" => "chat,chat",
            "static-aliases" => "a:m",
            "routing-logic" => "prefixaware",
            "prefixaware-fallback" => "qps",
            "host" => "::1",
            "log-level" => "warning",
            "request-rewriter" => "noop",
            _ if flag.takes == Takes::Nothing => "true",
            _ => "7",
        };
        if !matches!(flag.means, Means::Lacking(_)) && flag.name != TWO.0 && flag.name != "log-format" {
            all.push((flag.name, text));
        }
    }
    let notices = translate(&given(&all), &Settings::default()).unwrap().notices;
    for (name, _) in all.iter().filter(|(name, _)| *name != "session-key") {
        let own: Vec<_> = notices.iter().filter(|n| n.starts_with(&format!("--{name} "))).collect();
        assert_eq!(own.len(), 1, "{name}: {notices:?}");
    }
    let ours = |flag: &Flag| match flag.means {
        Means::Ours("config") => true,
        Means::Ours(key) => Key::find(key).is_some(),
        Means::NoEffect(_) | Means::Lacking(_) => true,
    };
    assert!(FLAGS.iter().all(ours), "the table names keys that there are");
}

#[test]
fn one_thing_is_not_said_in_both_words() {
    let mut ours = Settings::default();
    let key = Key::find("listen").unwrap();
    ours.add(key, "127.0.0.1:1".into(), Source::Flag(key.name));
    let error = translate(&given(&[("port", "2")]), &ours).unwrap_err().to_string();
    assert_eq!(error, "--port: --listen is given too, which says the same");
    let mut ours = Settings::default();
    ours.add(key, "127.0.0.1:1".into(), Source::Env(key.env()));
    assert!(translate(&given(&[("port", "2")]), &ours).is_ok(), "a flag beats the environment");
}

/// Both forms of a dynamic configuration, as the production stack's router documents them.
const JSON: &str = r#"{
    "service_discovery": "static",
    "routing_logic": "roundrobin",
    "static_backends": "http://localhost:9001,http://localhost:9002,http://localhost:9003",
    "static_models": "facebook/opt-125m,meta-llama/Llama-3.1-8B-Instruct,facebook/opt-125m",
    "static_model_types": "completion,chat,completion",
    "static_aliases": "my-alias:meta-llama/Llama-3.1-8B-Instruct"
}"#;

const YAML: &str = r#"
service_discovery: static
routing_logic: session
session_key: x-user-id
static_backend_health_checks: true
static_models:
    facebook/opt-125m:
        static_backends:
            - http://localhost:9001
            - http://localhost:9003
        static_model_type: completion
    meta-llama/Llama-3.1-8B-Instruct:
        static_backends:
            - http://localhost:9002
        static_model_type: chat
static_aliases:
    "my-alias": "facebook/opt-125m"
    "my-other-alias": "meta-llama/Llama-3.1-8B-Instruct"
"#;

fn read(text: &str, notation: Notation) -> Result<Given, String> {
    parse(Path::new("d"), text, notation).map_err(|e| e.to_string())
}

#[test]
fn both_dynamic_formats_give_backends_and_routing() {
    let json = config(&read(JSON, Notation::Json).unwrap());
    assert_eq!((json.backends.len(), json.policy.policy.as_str()), (3, "round-robin"));
    assert_eq!(json.backends[1].spec.model.as_deref(), Some("meta-llama/Llama-3.1-8B-Instruct"));
    assert_eq!(json.model_aliases, [("my-alias".to_owned(), "meta-llama/Llama-3.1-8B-Instruct".to_owned())]);
    let yaml = config(&read(YAML, Notation::Yaml).unwrap());
    let urls: Vec<_> = yaml.backends.iter().map(|b| b.spec.url.as_str()).collect();
    assert_eq!(urls, ["http://localhost:9001", "http://localhost:9003", "http://localhost:9002"]);
    let types: Vec<_> = yaml.backends.iter().map(|b| b.types[0].as_str()).collect();
    assert_eq!(types, ["completion", "completion", "chat"]);
    assert_eq!((yaml.policy.policy.as_str(), &*yaml.session_key), ("session", "x-user-id"));
    assert_eq!((yaml.probe.inference, yaml.model_aliases.len()), (Some(Duration::from_secs(60)), 2));
    assert!(settings(&read("", Notation::Yaml).unwrap()).unwrap().is_empty(), "an empty file says nothing");
}

#[test]
fn flags_beat_the_dynamic_file() {
    let both = given(&[("routing-logic", "roundrobin")]).over(read(YAML, Notation::Yaml).unwrap());
    assert_eq!(config(&both).policy.policy.as_str(), "round-robin");
}

#[test]
fn a_wrong_dynamic_file_is_refused_with_file_line_and_key() {
    for (text, notation, error) in [
        ("{\n\"routing_logik\": \"x\"}", Notation::Json, "d:2: routing_logik: no such key"),
        ("a: 1\n", Notation::Yaml, "d:1: a: no such key"),
        ("routing-logic: roundrobin\n", Notation::Yaml, "d:1: routing-logic: no such key"),
        ("dynamic_config_json: x\n", Notation::Yaml, "d:1: dynamic_config_json: no such key"),
        ("\nstatic_backends: {a: b}\n", Notation::Yaml, "d:2: static_backends: a table is not allowed here"),
        (
            "static_backend_health_checks: 1\n",
            Notation::Yaml,
            "d:1: static_backend_health_checks: a text is not allowed here",
        ),
        (
            "static_models:\n  m:\n    static_backend: []\n",
            Notation::Yaml,
            "d:3: static_backend: no such key of the model `m`",
        ),
        ("static_models:\n  m: [x]\n", Notation::Yaml, "d:2: m: a model is a table"),
        ("[1]", Notation::Json, "d:1: the file is no table"),
        ("{\"a\":1", Notation::Json, "d:1: EOF"),
        ("a: [1\nb: }", Notation::Yaml, "d:"),
        ("{\"port\":1,\"port\":2}", Notation::Json, "d:1: port: the key is given twice"),
    ] {
        let message = read(text, notation).unwrap_err();
        assert!(message.starts_with(error), "{message}");
    }
    let lacking =
        read("\nk8s_port: 8000\nrouting_logic: roundrobin\ncallbacks: m.x\n", Notation::Yaml).unwrap();
    let message = settings(&lacking).unwrap_err();
    assert!(message.contains("d:2: k8s_port") && message.contains("d:4: callbacks"), "{message}");
}

#[test]
fn hostile_dynamic_files_end_soon() {
    let deep = "[".repeat(100_000);
    let bomb = (1..30).fold("a0: &a0 [x, x]\n".to_owned(), |text, n| {
        text + &format!("a{n}: &a{n} [*a{0}, *a{0}, *a{0}, *a{0}]\n", n - 1)
    });
    for (text, notation) in [(&*deep, Notation::Json), (&*deep, Notation::Yaml), (&*bomb, Notation::Yaml)] {
        let message = read(text, notation).unwrap_err();
        assert!(message.len() < 1000, "{message}");
    }
}
