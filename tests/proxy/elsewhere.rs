//! Refusals of an engine that say that the request did not run: another is asked, within a budget.

use router_policy::PolicyName;
use router_tests::backend::Backend;
use router_tests::client::{ask, chat};
use router_tests::router::{config, metric, start, wait_idle};

fn refusing(status: &'static str, headers: &'static str) -> Backend {
    Backend::start(move |_, exchange| {
        exchange.send(format!("HTTP/1.1 {status}\r\n{headers}content-length: 4\r\n\r\nbusy"));
        router_tests::backend::Then::KeepAlive
    })
}

#[test]
fn a_refused_request_goes_to_another_engine_and_counts_once() {
    for status in ["503 Busy", "429 Too Many"] {
        let (busy, free) = (refusing(status, ""), Backend::ok());
        let mut config = config(&[busy.addr(), free.addr()]);
        config.policy.policy = PolicyName::RoundRobin;
        let router = start(config);
        for i in 0..10 {
            assert_eq!(ask(router.addr(), chat()).status, 200, "{status}, request {i}");
        }
        assert_eq!(free.received().len(), 10, "{status}");
        let refused = busy.received().len();
        assert!((1..=10).contains(&refused), "{status}: {refused}");
        let retried = metric(&router, "unlatch_retries_total", "reason=\"status\"");
        assert_eq!(retried, refused as f64, "{status}");
        let connections = busy.received().iter().map(|r| r.connection).max();
        assert!(connections <= Some(1), "{status}: a refusal's connection is used again: {connections:?}");
        wait_idle(&router);
    }
}

#[test]
fn when_all_refuse_the_client_gets_the_engines_own_words() {
    let engines = [refusing("503 Busy", "retry-after: 7\r\n"), refusing("503 Busy", "retry-after: 7\r\n")];
    let router = start(config(&[engines[0].addr(), engines[1].addr()]));
    let answer = ask(router.addr(), chat());
    assert_eq!((answer.status, answer.header("retry-after"), &*answer.text()), (503, Some("7"), "busy"));
    assert_eq!(engines.iter().map(|e| e.received().len()).sum::<usize>(), 2, "each was asked once");
    wait_idle(&router);
}

#[test]
fn an_engine_that_asks_for_rest_gets_it_while_there_are_others() {
    let (busy, free) = (refusing("429 Slow", "retry-after: 30\r\n"), Backend::ok());
    let mut config = config(&[busy.addr(), free.addr()]);
    config.policy.policy = PolicyName::RoundRobin;
    let router = start(config);
    for _ in 0..10 {
        assert_eq!(ask(router.addr(), chat()).status, 200);
    }
    assert_eq!(busy.received().len(), 1, "once, and then it rests");
    drop(free.die());
    let answer = ask(router.addr(), chat());
    assert_eq!(answer.status, 429, "better one that asked for rest than none");
    wait_idle(&router);
}

#[test]
fn other_failures_and_requests_that_may_have_run_stay_where_they_are() {
    for (status, asked) in
        [("400 Bad", 1), ("401 No", 1), ("404 None", 1), ("500 Oops", 1), ("502 Bad", 1), ("504 Late", 1)]
    {
        let engines = [refusing(status, ""), refusing(status, "")];
        let mut config = config(&[engines[0].addr(), engines[1].addr()]);
        config.limits.retry_statuses = vec![429, 500, 502, 503, 504];
        let router = start(config);
        assert_eq!(ask(router.addr(), chat()).status.to_string(), status[..3]);
        let count = |engines: &[Backend; 2]| engines.iter().map(|e| e.received().len()).sum::<usize>();
        assert_eq!(count(&engines), asked, "{status}: a POST");
        let get = ask(router.addr(), "GET /v1/files HTTP/1.1\r\nhost: h\r\n\r\n");
        assert_eq!(get.status.to_string(), status[..3]);
        let asked = asked + if status.starts_with('5') { 2 } else { 1 };
        assert_eq!(count(&engines), asked, "{status}: a GET has no effects");
        wait_idle(&router);
    }
}

#[test]
fn retries_end_with_their_budget() {
    let engines = [refusing("503 Busy", ""), refusing("503 Busy", "")];
    let mut config = config(&[engines[0].addr(), engines[1].addr()]);
    config.limits.retry_budget = 0.1;
    let router = start(config);
    for _ in 0..100 {
        assert_eq!(ask(router.addr(), chat()).status, 503);
    }
    let asked: usize = engines.iter().map(|e| e.received().len()).sum();
    // Ten saved up, and a tenth of a hundred; what comes while the budget is full is lost.
    assert!((115..=120).contains(&asked), "{asked}");
    let refused = metric(&router, "unlatch_retries_refused_total", "");
    assert_eq!(refused, (200 - asked) as f64);
    wait_idle(&router);
}
