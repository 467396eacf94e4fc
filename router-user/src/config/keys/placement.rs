//! Keys of the index and the constants of the policy; logs.

use super::one;
use crate::config::settings::{Arity, Key};

pub(super) const KEYS: &[Key] = &[
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
