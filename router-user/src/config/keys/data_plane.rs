//! Keys of requests: what is passed on, and its bounds.

use super::one;
use crate::config::settings::{Arity, Key};

pub(super) const KEYS: &[Key] = &[
    Key {
        name: "proxy-path",
        value: "PREFIX",
        default: "",
        arity: Arity::Many,
        help: "Paths that are passed on besides /v1 and the known inference paths; ends at a segment's end. An \
               administration path of engines must be named itself",
    },
    Key {
        name: "debug-headers",
        value: "BOOL",
        default: "false",
        arity: Arity::Switch,
        help: "Add x-unlatch-backend and x-unlatch-decision to responses",
    },
    one(
        "compat",
        "NAME",
        "",
        "On the data port also what clients of another router ask for: vllm (the production stack's /engines, /metrics \
         and ?id=) [default: nothing]",
    ),
    one(
        "metrics-compat",
        "NAME",
        "",
        "In /metrics also another router's names: vllm (the production stack's) [default: none]",
    ),
    one("seed", "N", "", "Seed of the policy's random choices [default: from the operating system]"),
    one(
        "shutdown-deadline",
        "DUR",
        "30s",
        "After SIGTERM requests in flight have this long to end, 0s to 1h; 0s: they \
        are cut at once",
    ),
    one(
        "drain-deadline",
        "DUR",
        "10m",
        "Requests in flight at a backend that leaves the fleet have this long to end, 0s to 24h; 0s: they are cut at \
        once",
    ),
    one("body-bytes-max", "BYTES", "64MiB", "One request body, 1 byte to 1GiB; beyond it 413"),
    one(
        "bodies-total-bytes-max",
        "BYTES",
        "1GiB",
        "All request bodies held at once, 1 byte to 1TiB; beyond it 503",
    ),
    one("head-bytes-max", "BYTES", "64KiB", "Request line and headers, 8KiB to 1MiB; beyond it 431"),
    one("head-timeout", "DUR", "30s", "Time for a request's head to arrive, 10ms to 1h"),
    one(
        "client-conns-max",
        "N",
        "16384",
        "Client connections at once, 1 to 1000000; beyond it new ones wait",
    ),
    one("connect-timeout", "DUR", "5s", "Connecting to a backend, 10ms to 1h"),
    one(
        "retry-statuses",
        "LIST",
        "429,503",
        "Answers of an engine after which another is asked, of 429, 500, 502, 503, 504, or none; a POST is sent again \
         after 429 and 503 only, which say that it did not run",
    ),
    one(
        "retry-budget",
        "X",
        "0.2",
        "Such retries per request over time, 0 to 1; at most 10 saved up; 0: none",
    ),
    one(
        "reroutes-max",
        "N",
        "255",
        "Times that a request no engine answered is placed anew, each time elsewhere, 0 to 255; 0: never",
    ),
    one(
        "stream-idle-timeout",
        "DUR",
        "10m",
        "Longest silence within an answer after its first byte, 100ms to 24h; beyond it the answer is broken off; \
         0: none",
    ),
    one(
        "sse-keepalive",
        "DUR",
        "0",
        "After such a silence a comment line is sent within a stream of events, 100ms to 24h; 0: never",
    ),
    one(
        "idle-conns-max",
        "N",
        "256",
        "Idle connections kept per backend and worker, up to 65536; 0: none is kept",
    ),
    one(
        "idle-conn-age-max",
        "DUR",
        "4s",
        "An idle connection is not used again after this long, 0s to 1h; 0s: none is \
        used again",
    ),
    one(
        "backoff-min",
        "DUR",
        "250ms",
        "First back-off of a backend that refuses connections, 1ms to 1h; it doubles",
    ),
    one("backoff-max", "DUR", "10s", "Longest back-off, backoff-min to 1h"),
];
