//! `/events`: a snapshot a second to each subscriber, as server-sent events.
//!
//! A snapshot is made once for all, and only while somebody subscribes. Bounded: subscribers, and one snapshot that
//! waits for each; who takes none for a while loses its place.

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Notify;
use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError};
use tokio::time::Instant;

/// Subscribers at once.
pub(super) const SUBSCRIBERS_MAX: usize = 16;
/// Time between two snapshots.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);
/// Snapshots in a row that a subscriber may leave untaken.
const MISSED_MAX: u32 = 30;
/// What a stream begins with: how soon a client that lost it asks again.
const GREETING: &str = "retry: 2000\n\n";

/// Those who subscribed.
#[derive(Debug)]
pub(super) struct Events {
    subscribers: Mutex<Vec<Subscriber>>,
    came: Notify,
    /// Subscriptions that were refused because there were too many, or ended because the subscriber took nothing.
    refused: Counter,
}

#[derive(Debug)]
struct Subscriber {
    to: Sender<Bytes>,
    missed: u32,
}

/// The subscriber's end. Dropping it ends the subscription.
#[derive(Debug)]
pub(in crate::observe) struct Subscription {
    greeting: Option<Bytes>,
    from: Receiver<Bytes>,
}

impl Subscription {
    /// The next piece of the stream; `None` at its end.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match self.greeting.take() {
            Some(greeting) => Poll::Ready(Some(greeting)),
            None => self.from.poll_recv(cx),
        }
    }
}

impl Events {
    /// Nobody has subscribed.
    pub(super) fn new(refused: Counter) -> Self {
        Self { subscribers: Mutex::default(), came: Notify::new(), refused }
    }

    /// Subscribes; `None` if there are too many.
    pub(super) fn subscribe(&self) -> Option<Subscription> {
        let mut subscribers = self.subscribers.lock();
        subscribers.retain(|s| !s.to.is_closed());
        if subscribers.len() >= SUBSCRIBERS_MAX {
            self.refused.inc();
            return None;
        }
        let (to, from) = channel(1);
        subscribers.push(Subscriber { to, missed: 0 });
        self.came.notify_one();
        Some(Subscription { greeting: Some(Bytes::from_static(GREETING.as_bytes())), from })
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.subscribers.lock().iter().filter(|s| !s.to.is_closed()).count()
    }

    /// Sends what `snapshot` makes, for ever. Dropping the future ends no subscription by itself.
    pub(super) async fn run(&self, snapshot: impl Fn() -> String) {
        loop {
            if self.count() == 0 {
                self.subscribers.lock().clear();
                self.came.notified().await;
                continue;
            }
            let next = Instant::now() + INTERVAL;
            self.send(&Bytes::from(format!("data: {}\n\n", snapshot())));
            tokio::time::sleep_until(next).await;
        }
    }

    fn send(&self, event: &Bytes) {
        self.subscribers.lock().retain_mut(|s| match s.to.try_send(event.clone()) {
            Ok(()) => {
                s.missed = 0;
                true
            }
            Err(TrySendError::Closed(_)) => false,
            Err(TrySendError::Full(_)) => {
                s.missed += 1;
                let stays = s.missed < MISSED_MAX;
                if !stays {
                    self.refused.inc();
                }
                stays
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::{Counter, Events, INTERVAL, MISSED_MAX, SUBSCRIBERS_MAX, Subscription};

    fn start() -> (Arc<Events>, Arc<AtomicU32>, tokio::task::JoinHandle<()>) {
        let (events, made) = (Arc::new(Events::new(Counter::default())), Arc::new(AtomicU32::new(0)));
        let (running, counted) = (Arc::clone(&events), Arc::clone(&made));
        let task = tokio::spawn(async move {
            running.run(|| (counted.fetch_add(1, Ordering::Relaxed) + 1).to_string()).await;
        });
        (events, made, task)
    }

    async fn next(s: &mut Subscription) -> Option<String> {
        poll_fn(|cx| s.poll_next(cx)).await.map(|b| String::from_utf8(b.to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_snapshot_is_made_once_for_all_and_only_while_somebody_listens() {
        let (events, made, _task) = start();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(made.load(Ordering::Relaxed), 0, "nobody listens");
        let (mut a, mut b) = (events.subscribe().unwrap(), events.subscribe().unwrap());
        for subscriber in [&mut a, &mut b] {
            assert_eq!(next(subscriber).await.as_deref(), Some("retry: 2000\n\n"));
            assert_eq!(next(subscriber).await.as_deref(), Some("data: 1\n\n"));
        }
        let since = tokio::time::Instant::now();
        assert_eq!(next(&mut a).await.as_deref(), Some("data: 2\n\n"));
        assert_eq!(since.elapsed(), INTERVAL);
        drop((a, b));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(made.load(Ordering::Relaxed), 2, "nobody listens any more");
        let mut c = events.subscribe().unwrap();
        next(&mut c).await;
        assert_eq!(next(&mut c).await.as_deref(), Some("data: 3\n\n"), "none of a minute ago");
    }

    #[tokio::test(start_paused = true)]
    async fn subscribers_are_bounded_and_who_takes_nothing_loses_its_place() {
        let (events, _made, _task) = start();
        let mut all: Vec<_> = (0..SUBSCRIBERS_MAX).map(|_| events.subscribe().unwrap()).collect();
        assert!(events.subscribe().is_none());
        assert_eq!(events.refused.get(), 1);
        drop(all.pop());
        let mut last = events.subscribe().expect("a place came free");
        // One takes what comes, the others nothing: one snapshot waits for each.
        next(&mut last).await;
        for _ in 0..=MISSED_MAX {
            assert!(next(&mut last).await.is_some());
        }
        assert_eq!(events.count(), 1);
        assert_eq!(events.refused.get(), 1 + (SUBSCRIBERS_MAX as u64 - 1));
        let stalled = &mut all[0];
        next(stalled).await;
        assert!(next(stalled).await.is_some(), "the one that waited");
        assert_eq!(next(stalled).await, None, "and then the end");
    }
}
