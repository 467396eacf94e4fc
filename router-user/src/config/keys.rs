//! The table of keys, in the order of the help: what can be set, how often, by default to what, and what it means.

use super::settings::{Arity, Key};

const fn one(name: &'static str, value: &'static str, default: &'static str, help: &'static str) -> Key {
    Key { name, value, default, arity: Arity::One, help }
}

/// Every key, in the order of the help.
pub const KEYS: &[Key] = &[
    one("listen", "ADDR", "0.0.0.0:8001", "Data plane: address and port; port 0 takes a free one"),
    one(
        "admin-listen",
        "ADDR|unix:PATH",
        "127.0.0.1:8002",
        "Metrics, health, status page and administration: address and port (port 0 takes a free one), or a Unix socket of mode \
        0600, over which changing calls need no token",
    ),
    one(
        "admin-token-file",
        "FILE",
        "",
        "File with the token, 16 to 4096 printable characters, that changing calls over TCP need; read again at a \
        reload. Without it they are refused",
    ),
    Key {
        name: "backend",
        value: "URL[,KEY=VALUE…]",
        default: "",
        arity: Arity::Many,
        help: "An engine: http://HOST[:PORT][/BASE], or srv+http://RECORD[/BASE] of which SRV records say host, port and weight; then model=, alias= (repeatable), max-in-flight=, max-num-seqs=, \
               kv-tokens=, weight= (0.01 to 100), labels=K:V[;K:V…], types=T[;T…] (chat, completion, vision, messages, \
               embeddings, rerank, score, transcription; else it gets every path), api-key-file=; of its metrics: engine= (vllm, \
               sglang, tgi, llamacpp, trtllm, triton; else as the text shows), metrics-path= (else /metrics below BASE), \
               metrics-port=, metrics-key-file= (else its api-key-file, at its own port only); health-path=, \
               health-status= (one or more, like 200;204) as the keys of these names. At most 256; none: every \
               request is answered 503",
    },
    Key {
        name: "backends-file",
        value: "FILE",
        default: "",
        arity: Arity::Many,
        help: "A list of further engines, read again when it changes: .toml, .json, .yaml or .yml, at most 1MiB; each \
               entry a text as for backend, or a table of its keys with url",
    },
    Key {
        name: "dns-server",
        value: "IP[:PORT]",
        default: "",
        arity: Arity::Many,
        help: "Ask this server for names, as they are, instead of those of /etc/resolv.conf",
    },
    one(
        "dns-ttl-min",
        "DUR",
        "1s",
        "A name is asked for again when its TTL ends, but not sooner, 100ms to 1h; after a failure first, then twice as \
         long each time, up to 10s",
    ),
    one("dns-ttl-max", "DUR", "60s", "The same, but not later, dns-ttl-min to 24h"),
    Key {
        name: "watch-config",
        value: "BOOL",
        default: "false",
        arity: Arity::Switch,
        help: "Read the file of --config again when it changes, as SIGHUP does",
    },
    Key {
        name: "model-alias",
        value: "ALIAS:MODEL",
        default: "",
        arity: Arity::Many,
        help: "A name that stands for a model: the engine is sent the model's name in its place; at most 1024",
    },
    one(
        "policy",
        "NAME",
        "prefix-cost",
        "How a backend is chosen: prefix-cost, least-in-flight, p2c, round-robin, random, session, \
        consistent-hash, lowest-qps, prefix-threshold",
    ),
    one(
        "prefix-min-match",
        "CHARS",
        "0",
        "prefix-threshold only: characters of match, rounded down to whole blocks of \
        256, from which affinity decides; 0: any match does",
    ),
    one(
        "fallback",
        "NAME",
        "least-in-flight",
        "prefix-threshold only: the choice below the threshold, least-in-flight \
        or lowest-qps",
    ),
    one(
        "scrape-interval",
        "DUR",
        "1s",
        "Time between two questions to an engine, 100ms to 1h; /metrics of llama.cpp is \
        asked no more often than every 2s",
    ),
    one("workers", "N", "", "Threads of the data plane, 1 to 1024 [default: the cores]"),
    one("request-stats-window", "DUR", "60s", "Window of lowest-qps, 1s to 1h"),
    one(
        "kernel",
        "MODE",
        "auto",
        "Counting in the kernel: auto (if it may, else in process memory), on (refuse to start \
        without), off",
    ),
    one("pin-dir", "DIR", "/sys/fs/bpf/unlatch", "Kernel objects are pinned in DIR/v<layout version>"),
    one("kernel-cgroup", "PATH", "", "Cgroup the programs attach to [default: this process's own]"),
    one(
        "kernel-hook",
        "HOOK",
        "cgroup",
        "What the programs attach to: cgroup, or tcx where that is out of reach: the devices of kernel-dev, Linux 6.6 \
        or newer",
    ),
    Key {
        name: "kernel-dev",
        value: "IF",
        default: "",
        arity: Arity::Many,
        help: "kernel-hook tcx only: the network devices that lead to backends, of which each connection passes one",
    },
    one(
        "gossip-dir",
        "DIR|off",
        "/run/unlatch/gossip",
        "Router processes of this host that share it tell each other which prompts they placed where; must be this user's \
        alone, and is made if need be; without it, or off: nobody is told",
    ),
    one(
        "state-dir",
        "DIR",
        "",
        "Save here what the engines hold and have taught, so that a restart is warm; must be this user's alone, and is \
        made if need be; routers that share it have a file each [default: nothing is saved]",
    ),
    one("state-interval", "DUR", "1m", "state-dir only: from save to save, 1s to 24h; 0: at the end only"),
    one(
        "state-max-age",
        "DUR",
        "1h",
        "state-dir only: what was saved of an engine longer ago is not used, 1s to 24h: others may have used its cache since",
    ),
    one(
        "suspect-after",
        "TIME",
        "30s",
        "A backend that leaves requests without a byte for so long while others of its pool answer is shown as suspect, up to 1h; other signs hold so long at most; 0s: none is",
    ),
    one(
        "edge-dev",
        "IF",
        "",
        "Guard the port of --listen at this network device, before the kernel's TCP sees a packet [default: off]",
    ),
    Key {
        name: "edge-deny",
        value: "PREFIX",
        default: "",
        arity: Arity::Many,
        help: "edge-dev only: drop everything these sources send to a guarded port, like 203.0.113.0/24 or 2001:db8::/32",
    },
    Key {
        name: "edge-allow",
        value: "PREFIX",
        default: "",
        arity: Arity::Many,
        help: "edge-dev only: neither drop nor limit these sources; of allowed and denied prefixes the longest decides",
    },
    one(
        "edge-syn-rate",
        "N",
        "100",
        "edge-dev only: connections a source (an IPv6 source: its /64) may open per second, up to 100000; 0: any number",
    ),
    one(
        "edge-syn-burst",
        "N",
        "200",
        "edge-dev only: connections a source may open at once after a pause, 1 to 100000",
    ),
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
    one(
        "health-path",
        "PATH|off",
        "/health",
        "Below a backend's path: asked each scrape-interval; where an engine has no /health, its list of models is all \
        that is asked; off: that anyway",
    ),
    one(
        "health-status",
        "LIST",
        "200",
        "Statuses of health-path that are good, 200 to 599; redirects are not followed",
    ),
    one("probe-timeout", "DUR", "2s", "For an answer to a probe or scrape, connecting included, 10ms to 1h"),
    one(
        "unhealthy-threshold",
        "N",
        "3",
        "Probes in a row that fail until a backend is ejected, 1 to 1000; one that times out counts only if no byte of \
        a request came meanwhile",
    ),
    one(
        "healthy-threshold",
        "N",
        "2",
        "Probes in a row that pass until a backend is taken back that was away or failed probes, 1 to 1000",
    ),
    one(
        "inference-probe",
        "DUR",
        "0",
        "Ask each backend for one token so often, 1s to 24h, unless bytes of requests came meanwhile; by the path of its first type (transcription: not), else by completions; 0: never",
    ),
    one("inference-probe-timeout", "DUR", "30s", "For that token, 100ms to 1h"),
    one(
        "eject-failures",
        "N",
        "5",
        "Requests in a row that a backend fails until it is ejected, up to 1000: 5xx, answers it cut, clients that left \
        late without a byte; from half as many on it is suspect, of the last kind from one; 0: any number",
    ),
    one(
        "eject-ratio",
        "X",
        "0.5",
        "Share of its requests that fail within eject-window from which it is ejected, 0 to 1; 0: none",
    ),
    one(
        "eject-requests-min",
        "N",
        "20",
        "Requests within eject-window from which the share counts, 1 to 1000000",
    ),
    one("eject-window", "DUR", "10s", "Window of eject-ratio, 100ms to 1h"),
    one("eject-min", "DUR", "5s", "First ejection for failed requests or for hanging, 1ms to 1h; it doubles"),
    one("eject-max", "DUR", "15s", "Longest ejection, eject-min to 1h"),
    one(
        "trial-requests",
        "N",
        "1",
        "Requests at a time at a backend that is tried after an ejection, 1 to 1000",
    ),
    one(
        "slow-start",
        "DUR",
        "10s",
        "Time in which a backend that came back gets its whole share, 0s to 1h; 0s: at once",
    ),
    one(
        "hung-after",
        "DUR",
        "5s",
        "A backend that sends no byte for 4 times the expected time to first byte and so much longer, while it has \
        requests, is suspect, after twice that ejected, 10ms to 1h",
    ),
    one(
        "gone-stream-timeout",
        "DUR",
        "5s",
        "Answers of a backend whose port refuses connections are broken off after so long a silence, 10ms to 1h; 0: no \
        sooner than others",
    ),
    one(
        "index-blocks-max",
        "N",
        "3670016",
        "Blocks of 256 characters the prefix index keeps, 1024 to 1073741824, in at most 48 bytes each; beyond \
         either the oldest go",
    ),
    one(
        "record",
        "FILE",
        "",
        "Append one line a decision to this file: every candidate's terms, the request's id, no text [default: off]",
    ),
    one(
        "session-key",
        "NAME",
        "x-session-id",
        "session only: the header that names the session, else the body's member of that name",
    ),
    one(
        "hash-blocks",
        "N",
        "16",
        "consistent-hash only: leading blocks of 256 characters that make the key, 1 to 65536",
    ),
    one(
        "hash-load-factor",
        "X",
        "1.25",
        "session, consistent-hash: a backend with more than this times the mean in flight is passed over, 1 to 100; 1: as even as possible",
    ),
    Key {
        name: "weigh-by-speed",
        value: "BOOL",
        default: "false",
        arity: Arity::Switch,
        help: "prefix-cost only: weigh each cost by the engine's speed (mean prefill rate / its own), for unequal engines",
    },
    one(
        "cost-disturbance",
        "X",
        "0.2",
        "prefix-cost: what a token of prefill costs each request in flight beside it, in tokens, 0 to 10; 0: nothing",
    ),
    one(
        "cost-context",
        "X",
        "0.05",
        "prefix-cost: what a prompt token in flight costs in slower decoding, in tokens, 0 to 10; 0: nothing",
    ),
    one(
        "decode-seconds-start",
        "X",
        "5",
        "Decode time of an answer assumed before any was seen, seconds, 0 to 3600; 0: the least counts",
    ),
    one(
        "decode-start-samples",
        "X",
        "4",
        "Samples that the assumed decode time counts for beside those of an engine, 0 to 1000; 0: the first sample takes its place",
    ),
    one(
        "decode-seconds-min",
        "X",
        "0.5",
        "Least mean decode time in the seat term, seconds, 0 to 3600; 0: waiting for a seat may look free",
    ),
    one(
        "prefill-rate-start",
        "X",
        "15000",
        "Prefill rate assumed before any was seen, tokens per second, 1 to 10000000",
    ),
    one(
        "prefill-rate-min",
        "X",
        "1000",
        "Least mean prefill rate in the seat term, tokens per second, 1 to 10000000",
    ),
    one("kv-tokens-default", "N", "400000", "KV pool of an engine that tells none, tokens, 1 to 1073741824"),
    one(
        "chars-per-token-start",
        "X",
        "4",
        "Bytes of JSON text per prompt token before any usage was seen, 1 to 16",
    ),
    one("decode-gain", "X", "0.05", "Weight of a new sample of decode time, 0 to 1; 0: the first stays"),
    one(
        "prefill-rate-gain",
        "X",
        "0.1",
        "Weight of a new sample of the prefill rate, 0 to 1; 0: the first stays",
    ),
    one(
        "chars-per-token-gain",
        "X",
        "0.05",
        "Weight of a new sample of characters per token, 0 to 1; 0: the first stays",
    ),
    one(
        "prefill-rate-min-tokens",
        "N",
        "512",
        "Uncached tokens above which a prefill says something of the rate, up to 1048576; 0: every one does",
    ),
    one(
        "patience-factor",
        "X",
        "4",
        "Times its predicted prefill that a stream may be unanswered before it counts as waiting for a seat, 0 to 1000",
    ),
    one("patience-seconds", "X", "0.5", "Added to that, seconds, 0 to 3600"),
    one(
        "report-fade-intervals",
        "X",
        "3",
        "Scrape intervals over which an engine's report fades and then is stale, 0.001 to 1000",
    ),
    one("log-level", "LEVEL", "info", "error, warn, info, debug, trace, or off"),
    one("log-format", "FORMAT", "text", "text or json, on stderr"),
];
