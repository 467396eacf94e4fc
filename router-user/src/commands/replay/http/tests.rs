use engine_sim::{Config, EngineConfig, Profile, Server};

use super::super::trace::{Call, Session};
use super::*;

const SCALE: f64 = 40.0;

/// Three clients whose prompts grow by 1,024 tokens a turn, and have 2,048 in common.
fn trace() -> Trace {
    let session = |client: u64| {
        let call = |turn: u64| Call {
            ids: (0..6 + 2 * turn).map(|id| if id < 4 { id } else { 100 * (client + 1) + id }).collect(),
            unit_tokens: 512,
            prompt_tokens: 512 * (6 + 2 * turn as u32) + 5,
            output_tokens: 10,
            gap_seconds: 0.5,
        };
        Session { start_seconds: Some(client as f64), is_one_client: true, calls: (0..3).map(call).collect() }
    };
    Trace::new((0..3).map(session).collect())
}

fn arrivals() -> Vec<Arrival> {
    (0..3).map(|n| Arrival { at: Nanos(u64::from(n) * 1_000_000_000), session: n, copy: 0 }).collect()
}

/// Sends the trace to one engine, with `kv_tokens` of memory.
fn sent_to_an_engine(kv_tokens: u32) -> Sent {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let engine = EngineConfig { num_gpu_blocks: kv_tokens / 16, ..EngineConfig::of(Profile::H100_8B) };
    let config = Config { time_scale: SCALE, engine, ..Config::default() };
    let server = runtime.block_on(Server::start(config)).unwrap();
    let sent = run(&[server.addr()], SCALE, &trace(), &arrivals(), &|_| {}).unwrap();
    runtime.block_on(server.stop());
    sent
}

#[test]
fn every_call_is_answered_with_the_prompt_and_the_prefixes_of_the_trace() {
    let sent = sent_to_an_engine(1 << 20);
    assert_eq!((sent.run.refused, sent.complaint), (0, None));
    let mut seen: Vec<_> = sent.run.records.iter().map(|r| (r.prompt_tokens, r.cached_tokens)).collect();
    seen.sort_unstable();
    // The first prompt of all finds nothing, those of other clients what all share, later ones all before.
    let first = 6 * 512 + 5;
    let grown = |turn: u32| (first + 1024 * turn, first - 5 + 1024 * (turn - 1));
    let want = [
        (first, 0),
        (first, 2048),
        (first, 2048),
        grown(1),
        grown(1),
        grown(1),
        grown(2),
        grown(2),
        grown(2),
    ];
    assert_eq!(seen, want);
    assert_eq!(sent.late_seconds.len(), 9);
}

#[test]
fn times_are_the_traces_and_nothing_is_sent_before_it_is_due() {
    let sent = sent_to_an_engine(1 << 20);
    let starts = arrivals().into_iter().map(|a| a.at.0 + 500_000_000);
    for start in starts {
        assert!(sent.run.records.iter().any(|r| r.sent.0 == start), "a first call is due at {start}");
    }
    let prefill = 0.02;
    for record in &sent.run.records {
        let (ttft, e2e) = (record.ttft_seconds(), record.e2e_seconds());
        assert!(prefill < ttft && ttft < e2e, "{ttft} {e2e}: no less than the model takes");
    }
    assert!(sent.run.samples.rows().count() >= 2, "requests in flight are told over time");
}

#[test]
fn a_refused_call_ends_its_session_and_is_counted() {
    let sent = sent_to_an_engine(4096);
    assert_eq!(sent.run.records.len(), 3, "second turns are too long for this engine");
    assert_eq!(sent.run.refused, 3);
    assert!(sent.complaint.unwrap().contains("400"));
}

#[test]
fn urls_have_a_host_and_maybe_a_port() {
    for (url, want) in [
        ("http://127.0.0.1:8001", Some("127.0.0.1:8001")),
        ("http://127.0.0.1:8001/", Some("127.0.0.1:8001")),
        ("http://127.0.0.1", Some("127.0.0.1:80")),
        ("http://[::1]:9", Some("[::1]:9")),
        ("http://[::1]", Some("[::1]:80")),
        ("https://127.0.0.1", None),
        ("http://", None),
        ("127.0.0.1:8001", None),
        ("http://127.0.0.1:8001/v1", None),
    ] {
        assert_eq!(address(url).ok(), want.map(|addr| addr.parse().unwrap()), "{url}");
    }
}
