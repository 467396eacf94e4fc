use std::path::Path;
use std::time::Duration;

use router_policy::{Fallback, PolicyConfig, PolicyName, Tuning};

use super::super::settings::{KEYS, Key, Settings, Source};
use super::super::{Config, KernelConfig, KernelMode, Limits, LogFormat, LogLevel, file};
use super::{ConfigError, Host, resolve};

fn host() -> Host<'static> {
    Host {
        cores: 3,
        read: &|path| Ok(if path.ends_with("b.yaml") { "- http://a\n" } else { "sk-x" }.to_owned()),
    }
}

fn flags(given: &[(&str, &str)]) -> Settings {
    let mut settings = Settings::default();
    for (name, text) in given {
        let key = Key::find(name).unwrap();
        settings.add(key, (*text).to_owned(), Source::Flag(key.name));
    }
    settings
}

fn read(given: &[(&str, &str)]) -> Result<Config, ConfigError> {
    resolve(&flags(given), &host())
}

#[test]
fn defaults_of_the_help_are_those_of_the_types() {
    let c = read(&[]).unwrap();
    assert_eq!(format!("{:?}", c.limits), format!("{:?}", Limits::default()));
    assert_eq!(format!("{:?}", c.policy), format!("{:?}", PolicyConfig::default()));
    assert_eq!(format!("{:?}", c.kernel), format!("{:?}", KernelConfig::default()));
    let ours = Config { workers: 3, ..Config::default() };
    assert_eq!(format!("{c:?}"), format!("{ours:?}"));
}

#[test]
fn every_key_has_an_effect() {
    let values = [
        ("listen", "127.0.0.1:1"),
        ("admin-listen", "[::1]:2"),
        ("admin-token-file", "/t"),
        ("backend", "http://h:1"),
        ("backends-file", "/b.yaml"),
        ("dns-server", "127.0.0.1:5300"),
        ("dns-ttl-min", "2s"),
        ("dns-ttl-max", "9s"),
        ("model-alias", "a:m"),
        ("policy", "random"),
        ("prefix-min-match", "512"),
        ("fallback", "lowest-qps"),
        ("scrape-interval", "2s"),
        ("workers", "7"),
        ("request-stats-window", "30s"),
        ("kernel", "off"),
        ("pin-dir", "/p"),
        ("kernel-cgroup", "/c"),
        ("kernel-hook", "tcx"),
        ("kernel-dev", "eth0"),
        ("gossip-dir", "off"),
        ("state-dir", "/s"),
        ("state-interval", "0"),
        ("state-max-age", "5m"),
        ("suspect-after", "3s"),
        ("edge-dev", "lo"),
        ("edge-deny", "203.0.113.0/24"),
        ("edge-allow", "2001:db8::/32"),
        ("edge-syn-rate", "7"),
        ("edge-syn-burst", "9"),
        ("proxy-path", "/pooling"),
        ("debug-headers", "true"),
        ("compat", "vllm"),
        ("metrics-compat", "vllm"),
        ("seed", "9"),
        ("shutdown-deadline", "0"),
        ("drain-deadline", "1m"),
        ("body-bytes-max", "1KiB"),
        ("bodies-total-bytes-max", "1MiB"),
        ("head-bytes-max", "8KiB"),
        ("head-timeout", "1s"),
        ("client-conns-max", "5"),
        ("connect-timeout", "1s"),
        ("retry-statuses", "none"),
        ("retry-budget", "0"),
        ("reroutes-max", "3"),
        ("stream-idle-timeout", "0"),
        ("sse-keepalive", "15s"),
        ("idle-conns-max", "0"),
        ("idle-conn-age-max", "1s"),
        ("backoff-min", "1s"),
        ("backoff-max", "2s"),
        ("health-path", "off"),
        ("health-status", "200,204"),
        ("probe-timeout", "1s"),
        ("unhealthy-threshold", "5"),
        ("healthy-threshold", "1"),
        ("inference-probe", "30s"),
        ("inference-probe-timeout", "9s"),
        ("eject-failures", "0"),
        ("eject-ratio", "0"),
        ("eject-requests-min", "9"),
        ("eject-window", "1s"),
        ("eject-min", "1s"),
        ("eject-max", "60s"),
        ("trial-requests", "2"),
        ("slow-start", "0s"),
        ("hung-after", "30s"),
        ("gone-stream-timeout", "0"),
        ("index-blocks-max", "2048"),
        ("record", "/r"),
        ("session-key", "x"),
        ("hash-blocks", "3"),
        ("hash-load-factor", "2"),
        ("weigh-by-speed", "true"),
        ("cost-disturbance", "0.3"),
        ("cost-context", "0"),
        ("decode-seconds-start", "1"),
        ("decode-start-samples", "0"),
        ("decode-seconds-min", "1"),
        ("prefill-rate-start", "9000"),
        ("prefill-rate-min", "2000"),
        ("kv-tokens-default", "9"),
        ("chars-per-token-start", "3"),
        ("decode-gain", "0.5"),
        ("prefill-rate-gain", "0.5"),
        ("chars-per-token-gain", "0.5"),
        ("prefill-rate-min-tokens", "0"),
        ("patience-factor", "9"),
        ("patience-seconds", "9"),
        ("report-fade-intervals", "9"),
        ("log-level", "debug"),
        ("log-format", "json"),
    ];
    assert_eq!(
        values.map(|(name, _)| name).to_vec(),
        KEYS.iter().map(|k| k.name).collect::<Vec<_>>(),
        "the table lists every key"
    );
    let default = format!("{:?}", read(&[]).unwrap());
    for (name, text) in values {
        // One of them needs the other.
        let given =
            if name == "kernel-hook" { vec![(name, text), ("kernel-dev", "lo")] } else { vec![(name, text)] };
        let c = read(&given).unwrap_or_else(|e| panic!("{e}"));
        assert_ne!(format!("{c:?}"), default, "{name} changes nothing");
    }
    let c = read(&values).unwrap();
    assert_eq!((c.policy.policy, c.policy.fallback), (PolicyName::Random, Fallback::LowestQps));
    assert_eq!(
        (c.kernel.mode, c.log.level, c.log.format),
        (KernelMode::Off, LogLevel::Debug, LogFormat::Json)
    );
    assert_eq!(c.drain_deadline, Duration::from_secs(60));
    assert_eq!((c.seed, c.shutdown_deadline, c.limits.head_bytes_max), (Some(9), Duration::ZERO, 8192));
}

#[test]
fn wrong_values_name_their_flag() {
    for (name, text) in [
        ("listen", "localhost"),
        ("listen", ""),
        ("model-alias", "a"),
        ("model-alias", "a:"),
        ("policy", "best"),
        ("compat", "sglang"),
        ("metrics-compat", ""),
        ("reroutes-max", "256"),
        ("fallback", "random"),
        ("scrape-interval", "0"),
        ("scrape-interval", "10"),
        ("workers", "0"),
        ("kernel", "yes"),
        ("kernel-hook", "xdp"),
        ("kernel-hook", "tcx"),
        ("kernel-dev", "a/b"),
        ("pin-dir", "rel"),
        ("gossip-dir", "rel"),
        ("state-dir", "rel"),
        ("state-max-age", "0"),
        ("proxy-path", "x"),
        ("proxy-path", "/a%2f"),
        ("debug-headers", "1"),
        ("seed", "-1"),
        ("body-bytes-max", "0"),
        ("head-bytes-max", "1KiB"),
        ("backoff-max", "1ms"),
        ("health-path", "health"),
        ("health-status", "ok"),
        ("eject-max", "1ms"),
        ("index-blocks-max", "0"),
        ("cost-context", "-1"),
        ("hash-load-factor", "0.5"),
        ("decode-gain", "2"),
        ("session-key", ""),
        ("log-level", "loud"),
        ("backend", "h"),
        ("backends-file", "/b.txt"),
        ("dns-server", "dns.example"),
        ("dns-ttl-max", "10ms"),
    ] {
        let e = read(&[(name, text)]).unwrap_err().to_string();
        assert!(e.starts_with(&format!("--{name}: ")), "{e}");
    }
}

#[test]
fn an_alias_stands_for_one_model_and_for_no_other_alias() {
    let both = |a: &'static str, b: &'static str| read(&[("model-alias", a), ("model-alias", b)]);
    assert_eq!(both("a:m:7b", "a:m:7b").unwrap().model_aliases, [("a".to_owned(), "m:7b".to_owned())]);
    assert!(both("m:m", "n:n").unwrap().model_aliases.is_empty());
    for (a, b, part) in
        [("a:m", "a:n", "two models"), ("a:b", "b:c", "an alias itself"), ("b:c", "a:b", "an alias itself")]
    {
        assert!(both(a, b).unwrap_err().message.contains(part), "{a} {b}");
    }
}

#[test]
fn every_policy_can_be_asked_for() {
    for policy in PolicyName::ALL {
        assert_eq!(read(&[("policy", policy.as_str())]).unwrap().policy.policy, policy);
    }
}

#[test]
fn the_defaults_of_the_keys_are_the_policys_own() {
    assert_eq!(read(&[]).unwrap().policy.tuning, Tuning::default());
    assert_eq!(format!("{:?}", read(&[]).unwrap().policy), format!("{:?}", PolicyConfig::default()));
}

#[test]
fn an_engine_given_twice_is_refused() {
    let e = read(&[("backend", "http://h:1"), ("backend", "http://h:1/v2,model=x")]).unwrap_err().to_string();
    assert!(e.contains("given twice"), "{e}");
    assert_eq!(read(&[("backend", "http://h:1"), ("backend", "http://h:2")]).unwrap().backends.len(), 2);
}

#[test]
fn backends_beyond_the_last_row_are_refused() {
    let texts: Vec<_> = (1..=257).map(|port| format!("http://h:{port}")).collect();
    let given: Vec<_> = texts.iter().map(|t| ("backend", t.as_str())).collect();
    assert_eq!(read(&given[..256]).unwrap().backends.len(), 256);
    assert!(read(&given).unwrap_err().message.contains("256"));
}

#[test]
fn flag_beats_environment_beats_file() {
    let text = "workers = 1\nseed = 1\nlisten = \"127.0.0.1:1\"\nbackend = [\"http://file\"]\n";
    let from_file = file::parse(Path::new("f.toml"), text).unwrap();
    let mut env = Settings::default();
    for (name, text) in [("workers", "2"), ("seed", "2")] {
        let key = Key::find(name).unwrap();
        env.add(key, text.to_owned(), Source::Env(key.env()));
    }
    let all = flags(&[("workers", "3"), ("backend", "http://flag")]).over(env).over(from_file);
    let c = resolve(&all, &host()).unwrap();
    assert_eq!((c.workers, c.seed, c.listen.port()), (3, Some(2), 1));
    assert_eq!(c.backends.len(), 1, "lists are not merged");
    assert_eq!(c.backends[0].host, "flag");
}

#[test]
fn secrets_are_not_printed() {
    let c = read(&[("backend", "http://h:1,api-key-file=k")]).unwrap();
    assert_eq!(c.backends[0].api_key.as_ref().unwrap().reveal(), "sk-x");
    assert!(!format!("{c:?}").contains("sk-x"));
}
