//! Who may use what: the directions of dependency that Cargo cannot enforce inside a crate.
//!
//! One table of bans, each with the reason that a violation prints. Invariant: a rule looks at program text only;
//! tests may reach anywhere.

use super::Finding;
use super::lexer::paths;

/// Paths that only some files may name.
struct Ban {
    /// The files it is about, by the start of their path in the checkout.
    within: &'static [&'static str],
    /// Of those, the files that may.
    except: &'static [&'static str],
    /// Starts of paths, at a `::`; the last part may be cut, as in `Tcp*`.
    paths: &'static [&'static str],
    reason: &'static str,
}

const USER: &[&str] = &["router-user/src/"];
const PURE: &[&str] = &["router-user/policy/src/", "router-common/src/", "engine-sim/src/model"];
const STAGES: &str = "accept, parse, forward, account and backends meet only through policy types";

const BANS: &[Ban] = &[
    Ban {
        within: PURE,
        except: &[],
        paths: &[
            "tokio",
            "hyper",
            "hyper_util",
            "tracing",
            "serde",
            "serde_json",
            "std::thread",
            "std::fs",
            "std::env",
        ],
        reason: "pure crates do no IO and start nothing",
    },
    Ban {
        within: PURE,
        except: &["router-common/src/"],
        paths: &["aya"],
        reason: "only the map types know aya, behind the feature `user`",
    },
    Ban {
        within: PURE,
        except: &[],
        paths: &["std::net::Tcp*", "std::net::Udp*", "std::net::ToSocketAddrs", "core::net::Tcp*"],
        reason: "pure crates open no socket",
    },
    Ban {
        within: PURE,
        except: &[],
        paths: &[
            "Instant::now",
            "SystemTime::now",
            "std::time::Instant",
            "std::time::SystemTime",
            "rand::rng",
        ],
        reason: "time and randomness are arguments",
    },
    Ban {
        within: &["router-user/src/accept"],
        except: &[],
        paths: &["crate::parse", "crate::forward", "crate::account", "crate::backends", "crate::proxy"],
        reason: STAGES,
    },
    Ban {
        within: &["router-user/src/parse"],
        except: &[],
        paths: &["crate::accept", "crate::forward", "crate::account", "crate::backends", "crate::proxy"],
        reason: STAGES,
    },
    Ban {
        within: &["router-user/src/forward"],
        except: &[],
        paths: &["crate::accept", "crate::parse", "crate::account", "crate::backends", "crate::proxy"],
        reason: STAGES,
    },
    Ban {
        within: &["router-user/src/account"],
        except: &[],
        paths: &["crate::accept", "crate::parse", "crate::forward", "crate::backends", "crate::proxy"],
        reason: STAGES,
    },
    Ban {
        within: &["router-user/src/backends"],
        except: &[],
        paths: &["crate::accept", "crate::parse", "crate::forward", "crate::account", "crate::proxy"],
        reason: STAGES,
    },
    Ban {
        within: &["router-user/src/gossip", "router-user/src/state"],
        except: &[],
        paths: &[
            "crate::accept",
            "crate::parse",
            "crate::forward",
            "crate::account",
            "crate::backends",
            "crate::proxy",
        ],
        reason: "what is known of engines comes and goes through functions that app gives",
    },
    Ban {
        within: &["router-user/src/discovery"],
        except: &[],
        paths: &[
            "crate::accept",
            "crate::parse",
            "crate::forward",
            "crate::account",
            "crate::gossip",
            "crate::observe",
            "crate::proxy",
        ],
        reason: "discovery says who belongs to the fleet; what follows is the fleet's",
    },
    Ban {
        within: USER,
        except: &[
            "router-user/src/app",
            // The arguments of a command are declared beside it.
            "router-user/src/cli.rs",
            "router-user/src/main.rs",
            "router-user/src/lib.rs",
            "router-user/src/commands/",
        ],
        paths: &["crate::app", "crate::commands"],
        reason: "app alone sees all, and only the commands start it",
    },
    Ban {
        within: USER,
        except: &["router-user/src/account", "router-user/src/edge"],
        paths: &["aya", "aya_log"],
        reason: "aya stays in account and edge",
    },
    Ban {
        // Counting is the same in kernel maps and in plain memory, and must not be able to tell.
        within: &[
            "router-user/src/account/guard",
            "router-user/src/account/ledger",
            "router-user/src/account/reconcile",
        ],
        except: &[],
        paths: &["aya", "aya_log"],
        reason: "counting does not know where its memory is",
    },
    Ban {
        within: USER,
        except: &[
            "router-user/src/forward",
            "router-user/src/backends/probe",
            "router-user/src/backends/scrape",
            "router-user/src/backends/relay",
            // The demo and the replay over HTTP play the clients.
            "router-user/src/commands/client",
        ],
        paths: &["hyper::client", "hyper_util::client"],
        reason: "the HTTP client stays in forward, probe, scrape and relay",
    },
    Ban {
        within: USER,
        except: &[
            "router-user/src/config",
            "router-user/src/parse",
            "router-user/src/backends/scrape",
            "router-user/src/backends/inference",
            "router-user/src/observe/admin",
            "router-user/src/observe/agent",
            "router-user/src/observe/status",
            "router-user/src/observe/reports",
            // These write JSON: answers of the router's own, and what commands print and replay.
            "router-user/src/error.rs",
            "router-user/src/decisions",
            "router-user/src/proxy/own",
            "router-user/src/commands/",
        ],
        paths: &["serde", "serde_json", "toml"],
        reason: "serde stays where outside data is read or JSON is written",
    },
    Ban {
        within: USER,
        except: &["router-user/src/observe"],
        paths: &["tracing_subscriber", "opentelemetry", "tracing_opentelemetry"],
        reason: "subscribers stay in observe",
    },
    Ban {
        within: USER,
        except: &["router-user/src/cli.rs"],
        paths: &["std::env"],
        reason: "the environment is read once, in cli",
    },
    Ban {
        within: &["router-user/src/observe"],
        // It counts what it refuses itself.
        except: &["router-user/src/observe/admin/"],
        paths: &[
            "prometheus_client::metrics::counter",
            "prometheus_client::metrics::family",
            "prometheus_client::metrics::gauge",
            "prometheus_client::metrics::histogram",
        ],
        reason: "metric types live beside what they measure; observe owns registry and exposition",
    },
    Ban {
        within: USER,
        except: &[
            "router-user/src/commands/demo",
            "router-user/src/commands/engine",
            "router-user/src/commands/replay",
        ],
        paths: &["engine_sim"],
        reason: "the simulated engine is for demo, engine and replay",
    },
];

/// The violations of one file; `file` is relative to the checkout.
pub(super) fn check(file: &str, source: &str) -> Vec<Finding> {
    if is_test_file(file) {
        return Vec::new();
    }
    let bans: Vec<_> = BANS.iter().filter(|ban| ban.is_about(file)).collect();
    if bans.is_empty() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for named in paths(source) {
        if let Some(ban) =
            bans.iter().find(|ban| ban.paths.iter().any(|banned| is_below(&named.path, banned)))
        {
            findings.push(Finding::error(file, named.line, format!("{}: {}", named.path, ban.reason)));
        }
    }
    findings
}

/// Tests that have grown out of the file they are about: `tests.rs` and `admin_tests.rs`.
pub(super) fn is_test_file(file: &str) -> bool {
    file.ends_with("/tests.rs") || file.ends_with("_tests.rs")
}

impl Ban {
    fn is_about(&self, file: &str) -> bool {
        let is_in = |place: &&str| {
            file.strip_prefix(*place).is_some_and(|rest| place.ends_with('/') || ends_name(rest))
        };
        self.within.iter().any(is_in) && !self.except.iter().any(is_in)
    }
}

/// Whether a module's name ends here: `…/accept` is about `accept.rs` and `accept/tls.rs`, not `acceptance.rs`.
fn ends_name(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('/') || rest.starts_with('.')
}

/// Whether `path` is `banned` or below it. A path may also come in where its tail starts, as in `Instant::now`.
fn is_below(path: &str, banned: &str) -> bool {
    if let Some(cut) = banned.strip_suffix('*') {
        return path.starts_with(cut);
    }
    let is_start =
        |path: &str| path.strip_prefix(banned).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
    is_start(path) || (banned.starts_with(char::is_uppercase) && path.ends_with(&format!("::{banned}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(file: &str, source: &str) -> Vec<String> {
        check(file, source).into_iter().map(|finding| finding.text).collect()
    }

    #[test]
    fn each_rule_finds_its_violation() {
        for (file, source) in [
            ("router-user/policy/src/trie.rs", "use tokio::sync::Mutex;"),
            ("router-user/policy/src/trie.rs", "fn f() { std::time::Instant::now(); }"),
            ("router-user/policy/src/trie.rs", "use std::net::{IpAddr, TcpStream};"),
            ("router-user/policy/src/pick/random.rs", "fn f() { rand::rng(); }"),
            ("router-common/src/tcp.rs", "use std::thread;"),
            ("router-user/src/forward/stream.rs", "use crate::account::Guard;"),
            ("router-user/src/account/ledger.rs", "use crate::{error, proxy::Proxy};"),
            ("router-user/src/backends.rs", "fn f() { crate::parse::body(); }"),
            ("router-user/src/proxy.rs", "use crate::app::App;"),
            ("router-user/src/account/ledger.rs", "use aya::maps::Array;"),
            ("router-user/src/proxy.rs", "use aya::maps::Array;"),
            ("router-user/src/proxy.rs", "use hyper_util::client::legacy::Client;"),
            ("router-user/src/account/guard.rs", "use serde::Serialize;"),
            ("router-user/src/main.rs", "use tracing_subscriber::fmt;"),
            ("router-user/src/config/file.rs", "fn f() { std::env::var(\"X\"); }"),
            ("router-user/src/observe/metrics.rs", "use prometheus_client::metrics::counter::Counter;"),
            ("router-user/src/commands/serve.rs", "use engine_sim::Engine;"),
        ] {
            assert_eq!(check(file, source).len(), 1, "{file}: {source}");
        }
    }

    #[test]
    fn what_is_allowed_is_not_found() {
        for (file, source) in [
            ("router-user/policy/src/key.rs", "use std::net::IpAddr;\nuse core::time::Duration;"),
            ("router-common/src/value.rs", "use aya::Pod;"),
            ("router-user/src/proxy.rs", "use crate::{accept, parse, forward, account, backends};"),
            ("router-user/src/proxy/mod.rs", "use crate::proxy::retry;"),
            ("router-user/src/forward/mod.rs", "use hyper_util::client::pool;\nuse crate::forward::connect;"),
            ("router-user/src/account/kernel.rs", "use aya::Ebpf;"),
            ("router-user/src/acceptance.rs", "use crate::parse;"),
            ("router-user/src/commands/demo.rs", "use engine_sim::Engine;\nuse crate::app;"),
            ("router-user/src/commands/client.rs", "use hyper::client::conn;"),
            ("router-user/src/account/ledger_tests.rs", "use crate::backends::Registry;"),
            ("router-user/src/observe/metrics.rs", "use prometheus_client::registry::Registry;"),
            ("tests/proxy/main.rs", "use tokio::net::TcpListener;"),
        ] {
            assert_eq!(reasons(file, source), Vec::<String>::new(), "{file}: {source}");
        }
    }

    #[test]
    fn a_violation_says_where_what_and_why() {
        let found = check("router-user/src/parse/json.rs", "\nuse crate::forward;");
        let want = "router-user/src/parse/json.rs:2: crate::forward: ";
        assert!(found[0].to_string().starts_with(want), "{}", found[0]);
        assert!(found[0].text.ends_with(STAGES));
    }
}
