//! Keys of where the router listens, and who belongs to the fleet.

use super::one;
use crate::config::settings::{Arity, Key};

pub(super) const KEYS: &[Key] = &[
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
        name: "model-alias",
        value: "ALIAS:MODEL",
        default: "",
        arity: Arity::Many,
        help: "A name that stands for a model: the engine is sent the model's name in its place; at most 1024",
    },
];
