//! Keys of the policy, and what the router is on its host.

use super::one;
use crate::config::settings::{Arity, Key};

pub(super) const KEYS: &[Key] = &[
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
];
