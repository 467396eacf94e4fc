//! Operators' calls that put an engine to sleep or wake it, as placement must know of them: at once, not when the next
//! scrape tells, and also of an engine whose metrics do not tell.
//!
//! An engine that is told to sleep gets nothing from before the call on. It gets requests again when it is told to wake
//! up, when a scrape that began later says that it is awake, or when it was restarted. A call that breaks off counts as
//! carried out: nobody knows.

use std::future::Future;

use bytes::Bytes;
use hyper::{Method, Response};

use super::watch::ReportSink;
use super::{RelayError, Target};
use crate::clock;

/// What an engine is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepOrder {
    /// To sleep: its memory is freed, its cache lost.
    Sleep,
    /// To wake up.
    WakeUp,
}

impl SleepOrder {
    /// The order that a call to an engine's path is, if it is one.
    #[must_use]
    pub fn of(method: &Method, path: &str) -> Option<Self> {
        match path {
            "/sleep" if method == Method::POST => Some(Self::Sleep),
            "/wake_up" if method == Method::POST => Some(Self::WakeUp),
            _ => None,
        }
    }
}

/// Makes the call and tells what follows from it. Dropping the future breaks the call off.
///
/// # Errors
/// Those of the call.
pub async fn carry_out(
    order: SleepOrder,
    target: &Target,
    sink: &dyn ReportSink,
    call: impl Future<Output = Result<Response<Bytes>, RelayError>> + Send,
) -> Result<Response<Bytes>, RelayError> {
    if order == SleepOrder::Sleep {
        target.falls_asleep();
        sink.ready(target.id, false);
    }
    let answer = call.await;
    let is_done = answer.as_ref().is_ok_and(|answer| answer.status().is_success());
    match order {
        SleepOrder::Sleep if is_done => {
            target.sleeps(clock::now());
            sink.cache_lost(target.id);
            tracing::info!(backend = target.url, "an operator put the engine to sleep; it gets no requests");
        }
        // It is ready again when its watch says so.
        SleepOrder::Sleep => target.wakes(),
        SleepOrder::WakeUp if is_done => {
            target.wakes();
            sink.ready(target.id, true);
            tracing::info!(backend = target.url, "an operator woke the engine");
        }
        SleepOrder::WakeUp => {}
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::{Bytes, Method, RelayError, Response, SleepOrder, Target, carry_out};
    use crate::backends::ReportSink;
    use parking_lot::Mutex;
    use router_policy::{BackendId, Models, Nanos, Report};

    /// Writes down what it is told.
    #[derive(Default)]
    struct Told(Mutex<Vec<&'static str>>);

    impl ReportSink for Told {
        fn report_begins(&self, _: BackendId) {}

        fn report(&self, _: BackendId, report: Report) -> Report {
            report
        }

        fn models(&self, _: BackendId, _: Models) {}

        fn ready(&self, _: BackendId, ready: bool) {
            self.0.lock().push(if ready { "ready" } else { "not ready" });
        }

        fn trust(&self, _: BackendId, _: router_policy::Trust) {}

        fn cache_lost(&self, _: BackendId) {
            self.0.lock().push("cache lost");
        }
    }

    fn target() -> Target {
        let host = hyper::header::HeaderValue::from_static("h");
        let addr = "127.0.0.1:1".parse().unwrap();
        Target::new(BackendId::new(0).unwrap(), "http://h".into(), addr, host, String::new(), None, true)
    }

    fn answer(status: u16) -> Result<Response<Bytes>, RelayError> {
        Ok(Response::builder().status(status).body(Bytes::new()).unwrap())
    }

    #[tokio::test]
    async fn an_engine_told_to_sleep_gets_nothing_from_before_the_call_until_it_is_woken() {
        let (target, told) = (target(), Told::default());
        let call = async {
            assert!(target.is_put_to_sleep() && *told.0.lock() == ["not ready"], "before the call");
            target.seen_awake(Nanos(u64::MAX - 1));
            assert!(target.is_put_to_sleep(), "a scrape meanwhile says nothing");
            answer(200)
        };
        carry_out(SleepOrder::Sleep, &target, &told, call).await.unwrap();
        assert_eq!(told.0.lock().split_off(1), ["cache lost"]);
        target.seen_awake(Nanos(1));
        assert!(target.is_put_to_sleep(), "a scrape from before says nothing");
        carry_out(SleepOrder::WakeUp, &target, &told, async { answer(500) }).await.unwrap();
        assert!(target.is_put_to_sleep(), "it did not wake");
        carry_out(SleepOrder::WakeUp, &target, &told, async { answer(200) }).await.unwrap();
        assert!(!target.is_put_to_sleep());
        assert_eq!(told.0.lock().split_off(1), ["ready"]);
    }

    #[tokio::test]
    async fn one_that_did_not_fall_asleep_or_is_seen_awake_later_is_awake() {
        let (target, told) = (target(), Told::default());
        for failed in [answer(503), Err(RelayError::Timeout)] {
            let _failed = carry_out(SleepOrder::Sleep, &target, &told, async { failed }).await;
            assert!(!target.is_put_to_sleep());
        }
        carry_out(SleepOrder::Sleep, &target, &told, async { answer(200) }).await.unwrap();
        target.seen_awake(Nanos(u64::MAX - 1));
        assert!(!target.is_put_to_sleep(), "somebody else woke it");
        assert_eq!(SleepOrder::of(&Method::GET, "/sleep"), None);
        assert_eq!(SleepOrder::of(&Method::POST, "/is_sleeping"), None);
    }
}
