//! Keys of when engines are asked, suspected, ejected and taken back.

use super::one;
use crate::config::settings::Key;

pub(super) const KEYS: &[Key] = &[
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
];
