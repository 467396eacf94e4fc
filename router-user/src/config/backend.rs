//! One backend as text, `URL[,key=value…]`, to what is configured. Pure but for reading key files, which the caller
//! lends. Messages never quote credentials.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use hyper::Uri;
use router_common::limits::MAX_BACKENDS;
use router_policy::BackendSpec;

use super::values::{decimal, integer, statuses};
use super::{BackendConfig, HealthConfig, Lookup, MetricsConfig, ModelType, Secret};
use crate::backends::metrics_text::Engine;

/// Characters of a label's key or value at most.
const LABEL_CHARS_MAX: usize = 128;

/// Reads one backend.
///
/// # Errors
/// What is wrong with it.
pub fn parse(text: &str, read: &dyn Fn(&Path) -> io::Result<String>) -> Result<BackendConfig, String> {
    let mut parts = text.split(',');
    let mut backend = from_url(parts.next().unwrap_or_default().trim())?;
    for option in parts {
        let Some((key, value)) = option.trim().split_once('=') else {
            return Err(format!("`{option}` is no key=value"));
        };
        if value.is_empty() {
            return Err(format!("`{key}=` has no value"));
        }
        set(&mut backend, key, value, read).map_err(|e| format!("{key}: {e}"))?;
    }
    whole(backend)
}

/// A backend of which everything was set, if that fits together.
pub(super) fn whole(backend: BackendConfig) -> Result<BackendConfig, String> {
    if backend.spec.model.is_none() && !backend.spec.aliases.is_empty() {
        return Err("alias needs model".to_owned());
    }
    Ok(backend)
}

/// Adds a backend to a list of them.
pub(super) fn add(all: &mut Vec<BackendConfig>, one: BackendConfig) -> Result<(), String> {
    let same = |b: &BackendConfig| (&b.host, b.port, b.lookup) == (&one.host, one.port, one.lookup);
    if all.iter().any(same) {
        return Err(format!("{} is given twice; a second model of an engine is an alias", one.spec.url));
    }
    if all.len() == MAX_BACKENDS {
        return Err(format!("more than {MAX_BACKENDS} backends"));
    }
    all.push(one);
    Ok(())
}

/// Sets one key.
pub(super) fn set(
    backend: &mut BackendConfig,
    key: &str,
    value: &str,
    read: &dyn Fn(&Path) -> io::Result<String>,
) -> Result<(), String> {
    let count = || integer(value, 1..=u64::from(u32::MAX)).map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    let spec = &mut backend.spec;
    match key {
        "model" => once(&mut spec.model, value.to_owned()),
        "alias" => {
            spec.aliases.push(value.to_owned());
            Ok(())
        }
        "max-in-flight" => once(&mut spec.max_in_flight, count()?),
        "max-num-seqs" => once(&mut spec.max_num_seqs, count()?),
        "kv-tokens" => once(&mut spec.kv_tokens, integer(value, 1..=u64::MAX)?),
        "weight" => once(&mut spec.weight, decimal(value, 0.01..=100.0)?),
        "labels" => {
            for label in value.split(';') {
                backend.labels.push(parse_label(label)?);
            }
            Ok(())
        }
        "types" => {
            for name in value.split(';') {
                backend.types.push(ModelType::parse(name)?);
            }
            spec.tasks = ModelType::tasks(&backend.types);
            Ok(())
        }
        "api-key-file" => once(&mut backend.api_key, key_in(value, read)?),
        "engine" => once(&mut backend.metrics.engine, Engine::parse(value).ok_or_else(engines)?),
        "metrics-path" => once(&mut backend.metrics.path, parse_path(value)?),
        "metrics-port" => {
            let port = integer(value, 1..=u64::from(u16::MAX))?;
            once(&mut backend.metrics.port, u16::try_from(port).unwrap_or(u16::MAX))
        }
        "metrics-key-file" => once(&mut backend.metrics.key, key_in(value, read)?),
        "health-path" => once(&mut backend.health.path, parse_path(value)?),
        "health-status" => once(&mut backend.health.statuses, statuses(value, ';')?),
        _ => Err("no such option (model, alias, max-in-flight, max-num-seqs, kv-tokens, weight, labels, types, api-key-file, \
                  engine, metrics-path, metrics-port, metrics-key-file, health-path, health-status)"
            .to_owned()),
    }
}

fn engines() -> String {
    let names: Vec<_> = Engine::ALL.iter().map(|e| e.as_str()).collect();
    format!("none of {}", names.join(", "))
}

pub(super) fn parse_path(text: &str) -> Result<String, String> {
    let is_path = text.starts_with('/') && !text.contains(['?', '#']) && text.parse::<Uri>().is_ok();
    if is_path { Ok(text.to_owned()) } else { Err(format!("`{text}` is no path like /metrics")) }
}

fn key_in(path: &str, read: &dyn Fn(&Path) -> io::Result<String>) -> Result<Secret, String> {
    let text = read(Path::new(path)).map_err(|e| format!("cannot read {path}: {e}"))?;
    parse_key(&text)
}

fn once<T>(slot: &mut Option<T>, value: T) -> Result<(), String> {
    if slot.replace(value).is_some() { Err("given twice".to_owned()) } else { Ok(()) }
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once(':').ok_or_else(|| format!("`{text}` is no key:value"))?;
    label(key, value)
}

/// A label within its bounds.
pub(super) fn label(key: &str, value: &str) -> Result<(String, String), String> {
    if key.is_empty() || key.chars().count().max(value.chars().count()) > LABEL_CHARS_MAX {
        return Err(format!("`{key}` or its value has a wrong length"));
    }
    Ok((key.to_owned(), value.to_owned()))
}

/// The key of a key file: its one line.
fn parse_key(text: &str) -> Result<Secret, String> {
    let key = text.trim();
    if key.is_empty() || !key.bytes().all(|b| b.is_ascii_graphic()) {
        return Err("the file holds no key of printable characters".to_owned());
    }
    Ok(Secret::new(key.to_owned()))
}

/// A backend of which the URL is known.
pub(super) fn from_url(text: &str) -> Result<BackendConfig, String> {
    let uri = text.parse::<Uri>().map_err(|_| "no URL like http://host:port".to_owned())?;
    let authority = uri.authority().map_or("", |a| a.as_str());
    if authority.contains('@') {
        return Err("the URL holds credentials; give a key by api-key-file=".to_owned());
    }
    let lookup = match uri.scheme_str() {
        Some("http") => Lookup::Address,
        Some("srv+http") => Lookup::Service,
        Some("https") => return Err(format!("`{text}`: TLS to backends is not available yet; use http://")),
        _ => return Err(format!("`{text}` is no URL like http://host:port")),
    };
    if uri.query().is_some() || text.contains('#') {
        return Err(format!("`{text}`: a backend's URL has no query or fragment"));
    }
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    // A port that is there but no number would else be taken for none.
    let port = uri.port_u16();
    let has_port_text = authority.rsplit_once(']').map_or(authority, |(_, after)| after).contains(':');
    if host.is_empty() || port == Some(0) || (has_port_text && port.is_none()) {
        return Err(format!("`{text}`: host or port is missing or wrong"));
    }
    if lookup == Lookup::Service && (has_port_text || host.parse::<IpAddr>().is_ok()) {
        return Err(format!("`{text}`: of srv+http:// the DNS says hosts and ports; name the record alone"));
    }
    let base_path = uri.path().trim_end_matches('/').to_owned();
    let url = format!("{}://{authority}{base_path}", uri.scheme_str().unwrap_or("http"));
    Ok(BackendConfig {
        spec: BackendSpec { url, ..BackendSpec::default() },
        host,
        port: port.unwrap_or(80),
        lookup,
        base_path,
        types: Vec::new(),
        labels: Vec::new(),
        api_key: None,
        metrics: MetricsConfig::default(),
        health: HealthConfig::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::{BackendConfig, Engine, Lookup, ModelType, parse};
    use router_policy::Task;
    use std::io;
    use std::path::Path;

    fn read(path: &Path) -> io::Result<String> {
        match path.to_str() {
            Some("key") => Ok("sk-secret\n".to_owned()),
            Some("empty") => Ok(" \n".to_owned()),
            _ => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }

    fn ok(text: &str) -> BackendConfig {
        parse(text, &read).unwrap()
    }

    fn error(text: &str) -> String {
        parse(text, &read).unwrap_err()
    }

    #[test]
    fn urls_are_split_into_host_port_and_base() {
        for (text, host, port, base, url) in [
            ("http://h", "h", 80, "", "http://h"),
            ("http://10.0.0.1:8000/", "10.0.0.1", 8000, "", "http://10.0.0.1:8000"),
            ("http://[::1]:8000", "::1", 8000, "", "http://[::1]:8000"),
            ("http://[fd00::2]", "fd00::2", 80, "", "http://[fd00::2]"),
            ("http://h:1/a/b/", "h", 1, "/a/b", "http://h:1/a/b"),
            (
                "srv+http://_http._tcp.e.example/a",
                "_http._tcp.e.example",
                80,
                "/a",
                "srv+http://_http._tcp.e.example/a",
            ),
        ] {
            let b = ok(text);
            assert_eq!(
                (b.host.as_str(), b.port, b.base_path.as_str(), b.spec.url.as_str()),
                (host, port, base, url)
            );
        }
    }

    #[test]
    fn a_service_names_its_record_alone() {
        assert_eq!(ok("srv+http://_http._tcp.e.example").lookup, Lookup::Service);
        assert_eq!(ok("http://e.example").lookup, Lookup::Address);
        for text in ["srv+http://e.example:80", "srv+http://10.0.0.1", "srv+http://[::1]", "srv://e.example"]
        {
            assert!(parse(text, &read).is_err(), "{text}");
        }
    }

    #[test]
    fn options_are_read() {
        let b = ok(
            "http://h:1,model=m,alias=a,alias=b,max-in-flight=9,max-num-seqs=4,kv-tokens=5000,weight=0.5,\
                    labels=zone:a;tier:b,types=chat;rerank,api-key-file=key",
        );
        assert_eq!(b.spec.model.as_deref(), Some("m"));
        assert_eq!(b.spec.aliases, ["a", "b"]);
        assert_eq!((b.spec.max_in_flight, b.spec.max_num_seqs), (Some(9), Some(4)));
        assert_eq!((b.spec.kv_tokens, b.spec.weight), (Some(5000), Some(0.5)));
        assert_eq!(b.labels, [("zone".to_owned(), "a".to_owned()), ("tier".to_owned(), "b".to_owned())]);
        assert_eq!(b.types, [ModelType::Chat, ModelType::Rerank]);
        let tasks = [Task::Generate, Task::Score, Task::Embed].map(|t| b.spec.tasks.has(t));
        assert_eq!(tasks, [true, true, false]);
        assert_eq!(b.api_key.unwrap().reveal(), "sk-secret");
        assert!(b.metrics.engine.is_none() && b.metrics.path.is_none() && b.metrics.port.is_none());
        let m = ok("http://h:1,engine=triton,metrics-path=/m,metrics-port=8002,metrics-key-file=key").metrics;
        assert_eq!((m.engine, m.path.as_deref(), m.port), (Some(Engine::Triton), Some("/m"), Some(8002)));
        assert_eq!(m.key.unwrap().reveal(), "sk-secret");
        let h = ok("http://h:1,health-path=/live,health-status=200;204").health;
        assert_eq!((h.path.as_deref(), h.statuses), (Some("/live"), Some(vec![200, 204])));
    }

    #[test]
    fn wrong_backends_are_refused_with_the_reason() {
        for (text, part) in [
            ("", "no URL"),
            ("h:8000", "no URL"),
            ("ftp://h", "no URL"),
            ("https://h", "TLS"),
            ("http://h:0", "port"),
            ("http://h:99999", "port"),
            ("http://h?x=1", "query"),
            ("http://h,model", "no key=value"),
            ("http://h,model=", "no value"),
            ("http://h,modle=m", "no such option"),
            ("http://h,model=a,model=b", "twice"),
            ("http://h,alias=a", "needs model"),
            ("http://h,max-in-flight=0", "whole number"),
            ("http://h,max-num-seqs=x", "whole number"),
            ("http://h,weight=0", "no number"),
            ("http://h,labels=x", "key:value"),
            ("http://h,types=chat;chats", "`chats` is none of chat, completion"),
            ("http://h,engine=vlm", "none of vllm, sglang"),
            ("http://h,metrics-path=metrics", "no path"),
            ("http://h,metrics-path=/a b", "no path"),
            ("http://h,metrics-path=/a?b", "no path"),
            ("http://h,metrics-port=0", "whole number"),
            ("http://h,metrics-port=65536", "whole number"),
            ("http://h,metrics-key-file=empty", "no key"),
            ("http://h,health-path=live", "no path"),
            ("http://h,health-status=2", "no status"),
            ("http://h,health-status=200,health-status=204", "twice"),
            ("http://h,api-key-file=nowhere", "cannot read nowhere"),
            ("http://h,api-key-file=empty", "no key"),
        ] {
            let e = error(text);
            assert!(e.contains(part), "{text}: {e}");
        }
    }

    #[test]
    fn credentials_are_refused_and_not_printed() {
        for text in ["http://user:pass@h:1", "https://user:pass@h:1"] {
            let e = error(text);
            assert!(e.contains("credentials") && !e.contains("pass"), "{e}");
        }
    }
}
