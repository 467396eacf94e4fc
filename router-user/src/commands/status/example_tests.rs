//! A status for tests.

use super::{Backend, Status};

/// With a backend for each number of requests in flight.
pub(in crate::commands) fn status(in_flight: &[u32]) -> Status {
    let backend = |(row, &in_flight): (usize, &u32)| Backend {
        row,
        url: format!("http://engine-{row}:8000"),
        address: None,
        in_flight,
        by_worker: Vec::new(),
        awaiting: Some(0),
        streaming: Some(in_flight.into()),
        unknown: Some(0),
        foreign: Some(0),
        drift: Some(0),
        ttfb_seconds: Some(0.25),
        silent_seconds: None,
        in_band: None,
        in_band_age_seconds: None,
        conns: 9,
        opened: 10,
        closed: 1,
        resets: 0,
        retransmits: 0,
        zero_windows: Some(0),
        suspect: None,
        report: None,
    };
    Status {
        pins: "/sys/fs/bpf/unlatch/v1".to_owned(),
        workers: Vec::new(),
        attached: Vec::new(),
        reports: String::new(),
        engines: Vec::new(),
        backends: in_flight.iter().enumerate().map(backend).collect(),
    }
}
