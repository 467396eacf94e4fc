//! Decision records: one compact JSON line a decision, written by a thread of its own.
//!
//! A record holds every candidate's terms, what was known and how old it was; a request is its id, a prompt its size
//! and a keyed hash, never text. Invariant: a slow disk never slows a request. What does not fit into the queue is
//! dropped and counted, and a disk that cannot be written is said once.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use router_policy::{BackendId, CandidateRecord, Cost, Record};
use serde::{Deserialize, Serialize};

/// Records that may wait for the disk.
const QUEUE: usize = 4096;

/// One line of the file. Tokens unless a unit is named.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Number of the decision in its process.
    pub id: u64,
    /// `X-Request-Id` of the request, as the client sent it or the router made it; one that had to be placed again
    /// has a line each time.
    pub request: Option<String>,
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub at_ns: u64,
    /// Keyed hash of the prompt's last complete block, hexadecimal.
    pub prompt: String,
    /// Prompt tokens, estimated.
    pub tokens: u64,
    /// Whether a stream was asked for.
    pub stream: bool,
    /// Where it went.
    pub chosen: String,
    /// Why.
    pub reason: String,
    /// Pool means: decode seconds, prefill tokens per second, characters per token.
    pub means: [f64; 3],
    /// Of the pool's mean request: uncached and prompt tokens. A foreign request counts as one.
    pub mean_request: [f64; 2],
    /// Everybody who was compared.
    pub candidates: Vec<CandidateLine>,
}

/// One candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CandidateLine {
    /// Which.
    pub backend: String,
    /// Requests in flight; `null` = unknown.
    pub in_flight: Option<f64>,
    /// Of those, this process's; `null` = it does not use its own counts. Exact, so without an age.
    pub own: Option<u32>,
    /// Of those, the other processes' of the host, by the shared table. Exact too.
    pub others: u32,
    /// Of those, foreign ones; `null` = nobody told: the mean of the others' is assumed.
    pub foreign: Option<f64>,
    /// Age in seconds of what the foreign ones are from, the report or what was told in band; `null` = nobody told.
    pub foreign_age_s: Option<f64>,
    /// All requests there as its host told in band, and the age in seconds; `null` = it never did.
    #[serde(default)]
    pub in_band: Option<(u32, f64)>,
    /// Age of the report in seconds; `null` = never heard.
    pub report_age_s: Option<f64>,
    /// Whether the count was only as fresh as the report.
    pub stale: bool,
    /// Cached there, as believed.
    pub matched: u64,
    /// Unanswered prefill, prompt tokens in flight, KV pool.
    pub q_c_k: [f64; 3],
    /// How the KV pool is known, and the age in seconds of a report that told it.
    pub kv: (String, Option<f64>),
    /// Seats, how they are known, and the age in seconds of a report that told them.
    pub seats: (u32, String, Option<f64>),
    /// Prefill tokens per second, and the samples it was learned from; 0 = assumed.
    pub prefill: (f64, u64),
    /// As the kernel saw it at the decision: requests awaiting their answer, answers streaming, seconds since the last
    /// byte from there; `null` = it does not look. Beside the counts, in no term.
    pub kernel: Option<(u64, u64, Option<f64>)>,
    /// Uncached, disturbance, queued, context, overflow, seat.
    pub cost: [f64; 6],
    /// What was compared.
    pub compared: f64,
    /// By how much it could be above the least and still count as equal; 0 = exact.
    pub band: f64,
}

impl Line {
    /// A record with URLs in the place of rows, and the request it is of.
    #[must_use]
    pub fn new(record: &Record, request: Option<&str>, url: impl Fn(BackendId) -> String) -> Self {
        let means = &record.means;
        Self {
            id: record.id,
            request: request.map(str::to_owned),
            at_ns: record.at.0,
            prompt: format!("{:032x}", record.prompt_hash),
            tokens: record.prompt_tokens,
            stream: record.stream,
            chosen: url(record.chosen),
            reason: record.reason.as_str().to_owned(),
            means: [means.decode_seconds, means.prefill_rate, means.chars_per_token],
            mean_request: [means.uncached, means.prompt],
            candidates: record.candidates.iter().map(|c| CandidateLine::new(c, url(c.backend))).collect(),
        }
    }
}

impl CandidateLine {
    fn new(c: &CandidateRecord, backend: String) -> Self {
        let Cost { uncached, disturbance, queued, context, overflow, seat } = c.cost;
        Self {
            backend,
            in_flight: c.requests,
            own: c.own,
            others: c.others,
            foreign: c.foreign,
            foreign_age_s: c.foreign_age_seconds,
            in_band: c.in_band,
            report_age_s: c.report_age_seconds,
            stale: c.is_stale,
            matched: c.matched_tokens,
            q_c_k: [c.q_tokens, c.c_tokens, c.kv_tokens],
            kv: (c.kv_source.as_str().to_owned(), c.kv_age_seconds),
            seats: (c.seats.count(), c.seats.source().to_owned(), c.seats_age_seconds),
            prefill: (c.prefill_rate, c.prefill_samples),
            kernel: c.seen.map(|seen| (seen.awaiting, seen.streaming, seen.silent_seconds)),
            cost: [uncached, disturbance, queued, context, overflow, seat],
            compared: c.compared,
            band: c.band,
        }
    }
}

/// Takes records of all workers. The writing thread ends, with all written, when the last of it is dropped.
#[derive(Debug)]
pub struct Recorder {
    queue: SyncSender<Waiting>,
    dropped: Counter,
}

/// A record on its way to the disk, with the id of its request.
type Waiting = (Box<Record>, Box<str>);

impl Recorder {
    /// Opens the file (appending) and starts the thread. `url` names the rows.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread not started.
    pub fn start(
        path: &Path,
        url: impl Fn(BackendId) -> String + Send + 'static,
        series: &mut Registry,
    ) -> std::io::Result<Arc<Self>> {
        let file = File::options().create(true).append(true).open(path)?;
        let dropped = Counter::default();
        let help = "Decision records dropped because the disk was too slow";
        series.register("unlatch_records_dropped", help, dropped.clone());
        let (queue, records) = sync_channel(QUEUE);
        std::thread::Builder::new()
            .name("record".to_owned())
            .spawn(move || write_all(file, &records, url))?;
        Ok(Arc::new(Self { queue, dropped }))
    }

    /// Takes the record of a request with this id; never waits.
    pub fn take(&self, record: Box<Record>, request: &str) {
        if self.queue.try_send((record, request.into())).is_err() {
            self.dropped.inc();
        }
    }
}

/// Writes until every sender is gone; flushes whenever the queue is empty.
fn write_all(file: File, records: &Receiver<Waiting>, url: impl Fn(BackendId) -> String) {
    let mut out = BufWriter::new(file);
    let mut has_failed = false;
    while let Ok(first) = records.recv() {
        let mut next = Some(first);
        while let Some((record, request)) = next {
            let written = serde_json::to_writer(&mut out, &Line::new(&record, Some(&request), &url))
                .map_err(std::io::Error::from)
                .and_then(|()| out.write_all(b"\n"));
            next = written.is_ok().then(|| records.try_recv().ok()).flatten();
        }
        if let (Err(error), false) = (out.flush(), has_failed) {
            tracing::warn!(%error, "decision records cannot be written");
            has_failed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Line, Recorder};
    use prometheus_client::registry::Registry;
    use router_policy::{Alone, BackendId, BackendSpec, Nanos, Placement, PolicyConfig, RequestShape};
    use std::time::{Duration, Instant};

    #[test]
    fn a_record_is_one_line_that_reads_back_and_names_every_candidate() {
        let mut placement =
            Placement::new(PolicyConfig { record: true, ..PolicyConfig::default() }, Box::new(Alone), 1);
        let ids = [0, 1].map(|row| BackendId::new(row).unwrap());
        for id in ids {
            placement.set_backend(id, BackendSpec::default());
            placement.set_ready(id, true);
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions");
        let recorder =
            Recorder::start(&path, |id| format!("http://e{}", id.index()), &mut Registry::default()).unwrap();
        let decision = placement.pick(Nanos(5), &RequestShape::unshaped(), &[]).unwrap();
        let record = decision.record.unwrap();
        let expected = record.chosen.index();
        recorder.take(record, "r-1");
        drop(recorder);
        let end = Instant::now() + Duration::from_secs(10);
        let text = loop {
            let text = std::fs::read_to_string(&path).unwrap();
            if text.ends_with('\n') {
                break text;
            }
            assert!(Instant::now() < end, "the record is written when the recorder is gone");
            std::thread::yield_now();
        };
        let line: Line = serde_json::from_str(text.trim_end()).unwrap();
        assert_eq!((line.at_ns, line.chosen), (5, format!("http://e{expected}")));
        assert_eq!((line.id, line.request.as_deref()), (1, Some("r-1")));
        assert_eq!(line.candidates.len(), 2);
        assert_eq!(line.candidates[0].report_age_s, None, "never heard is null, not 0");
    }
}
