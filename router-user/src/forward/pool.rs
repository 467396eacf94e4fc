//! Idle connections of one worker, to be used again.
//!
//! Last in, first out: the youngest connection is the least likely to be closing, and the others grow old and
//! go. Bounds: a number per backend, an age (engines close idle connections after 5 s, some without announcing
//! it). Some engines close right after a streamed answer, also unannounced (llama.cpp), and a request that meets the
//! closing may have been read or not: so until an engine is seen to keep connections open after streams, they
//! rest for [`REST`] before they are used again. Invariant: a connection in here carries no request. One pool a worker, so its lock is never waited for; it
//! is there because connections are handed out inside tasks.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use router_policy::Nanos;

use super::Peer;
use super::conn::Conn;

/// An engine that closes after an answer has done so by then; measured under a millisecond for llama.cpp.
const REST: Duration = Duration::from_millis(20);

/// How the answer before was framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// By its length.
    Sized,
    /// As a stream.
    Streamed,
}

/// Idle connections by row.
#[derive(Debug)]
pub struct Pool {
    rows: Mutex<Vec<Row>>,
    idle_conns_max: usize,
    age_max: Duration,
    refused: AtomicU64,
}

/// The idle connections of one backend, the youngest last.
#[derive(Debug)]
struct Row {
    idle: VecDeque<Idle>,
    /// Whether the engine keeps a connection open after an answer of each kind, as far as is known.
    keeps: [bool; 2],
}

/// No engine is known that closes after a sized answer; some do after a stream.
const KEEPS_AT_FIRST: [bool; 2] = [true, false];

#[derive(Debug)]
struct Idle {
    conn: Conn,
    since: Nanos,
    after: After,
}

impl Row {
    fn is_rested(&self, idle: &Idle, now: Nanos) -> bool {
        self.keeps[idle.after as usize] || now >= idle.since + REST
    }

    /// The youngest that can carry a request to `peer`. What cannot is dropped on the way.
    fn take(&mut self, peer: Peer, now: Nanos, age_max: Duration) -> Option<Conn> {
        for at in (0..self.idle.len()).rev() {
            let idle = &self.idle[at];
            if now >= idle.since + age_max {
                // The others are older still.
                self.idle.drain(..=at);
                return None;
            }
            let (after, rested) = (idle.after, self.is_rested(idle, now));
            if idle.conn.peer() != peer {
                self.keeps = KEEPS_AT_FIRST;
                self.idle.remove(at);
            } else if idle.conn.is_closed() {
                self.keeps[after as usize] = false;
                self.idle.remove(at);
            } else if rested {
                self.keeps[after as usize] = true;
                return self.idle.remove(at).map(|idle| idle.conn);
            }
        }
        None
    }
}

impl Pool {
    /// An empty pool of at most `idle_conns_max` connections a backend (0 = nothing is reused), none older
    /// than `age_max`.
    #[must_use]
    pub const fn new(idle_conns_max: usize, age_max: Duration) -> Self {
        Self { rows: Mutex::new(Vec::new()), idle_conns_max, age_max, refused: AtomicU64::new(0) }
    }

    /// The youngest idle connection to a peer that can carry a request.
    #[must_use]
    pub fn take(&self, peer: Peer, now: Nanos) -> Option<Conn> {
        let mut rows = self.rows.lock();
        rows.get_mut(peer.id.index())?.take(peer, now, self.age_max)
    }

    /// Gives back a connection whose answer has ended. Beyond the bound the oldest goes.
    pub fn put(&self, mut conn: Conn, after: After, now: Nanos) {
        conn.rest();
        if conn.is_closed() || self.idle_conns_max == 0 {
            return;
        }
        let index = conn.peer().id.index();
        let mut rows = self.rows.lock();
        if rows.len() <= index {
            rows.resize_with(index + 1, || Row { idle: VecDeque::new(), keeps: KEEPS_AT_FIRST });
        }
        let row = &mut rows[index].idle;
        if row.len() >= self.idle_conns_max {
            row.pop_front();
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        row.push_back(Idle { conn, since: now, after });
    }

    /// Closes what is too old or was closed by the engine. To be called every now and then.
    pub fn reap(&self, now: Nanos) {
        for row in &mut *self.rows.lock() {
            row.idle.retain(|idle| now < idle.since + self.age_max && !idle.conn.is_closed());
        }
    }

    /// Idle connections now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.lock().iter().map(|row| row.idle.len()).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Connections closed because the backend's bound was reached.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use router_policy::Nanos;

    use super::{After, Pool, REST};
    use crate::forward::test_engine::{Engine, until};

    const SECOND: u64 = 1_000_000_000;

    #[tokio::test]
    async fn the_youngest_is_taken_and_an_old_one_never() {
        let engine = Engine::new().await;
        let pool = Pool::new(8, Duration::from_secs(4));
        let (old, _old_end) = engine.conn().await;
        let (young, _young_end) = engine.conn().await;
        pool.put(old, After::Sized, Nanos(0));
        pool.put(young, After::Sized, Nanos(3 * SECOND));
        assert!(pool.take(engine.peer, Nanos(5 * SECOND)).is_some(), "3 s to 5 s is young enough");
        assert!(pool.take(engine.peer, Nanos(5 * SECOND)).is_none(), "0 s to 5 s is too old");
        assert!(pool.is_empty(), "the old one is closed");
    }

    #[tokio::test]
    async fn a_connection_that_the_engine_closed_is_not_taken() {
        let engine = Engine::new().await;
        let pool = Pool::new(8, Duration::from_secs(4));
        let (conn, theirs) = engine.conn().await;
        pool.put(conn, After::Sized, Nanos(0));
        drop(theirs);
        let closed = || pool.rows.lock().iter().flat_map(|row| &row.idle).all(|i| i.conn.is_closed());
        until(closed).await;
        assert!(pool.take(engine.peer, Nanos(SECOND)).is_none());
    }

    #[tokio::test]
    async fn beyond_the_bound_the_oldest_goes_and_is_counted() {
        let engine = Engine::new().await;
        let pool = Pool::new(1, Duration::from_secs(4));
        let (first, _first_end) = engine.conn().await;
        let (second, second_end) = engine.conn().await;
        pool.put(first, After::Sized, Nanos(0));
        pool.put(second, After::Sized, Nanos(1));
        assert_eq!((pool.len(), pool.refused()), (1, 1));
        let kept = pool.take(engine.peer, Nanos(SECOND)).expect("one is kept");
        drop(kept);
        let mut byte = [0];
        let read = tokio::io::AsyncReadExt::read(&mut { second_end }, &mut byte).await.unwrap();
        assert_eq!(read, 0, "the kept one was the second, and dropping it closed it");
    }

    #[tokio::test]
    async fn another_address_of_the_row_is_another_peer() {
        let (before, after) = (Engine::new().await, Engine::new().await);
        let pool = Pool::new(8, Duration::from_secs(4));
        let (conn, _theirs) = before.conn().await;
        pool.put(conn, After::Sized, Nanos(0));
        assert!(pool.take(after.peer, Nanos(SECOND)).is_none(), "the row moved to another address");
    }

    #[tokio::test]
    async fn reaping_closes_what_nobody_takes() {
        let engine = Engine::new().await;
        let pool = Pool::new(8, Duration::from_secs(4));
        let (conn, _theirs) = engine.conn().await;
        pool.put(conn, After::Sized, Nanos(0));
        pool.reap(Nanos(3 * SECOND));
        assert_eq!(pool.len(), 1);
        pool.reap(Nanos(4 * SECOND));
        assert!(pool.is_empty());
    }

    #[tokio::test]
    async fn until_an_engine_is_seen_to_keep_connections_after_streams_they_rest() {
        let engine = Engine::new().await;
        let pool = Pool::new(8, Duration::from_secs(4));
        let rest = REST.as_nanos() as u64;
        let (conn, _end) = engine.conn().await;
        pool.put(conn, After::Streamed, Nanos(0));
        assert!(pool.take(engine.peer, Nanos(rest - 1)).is_none(), "it may be closing");
        let conn = pool.take(engine.peer, Nanos(rest)).expect("it was kept open");
        pool.put(conn, After::Streamed, Nanos(rest));
        assert!(pool.take(engine.peer, Nanos(rest)).is_some(), "it is known to be kept");
    }

    #[tokio::test]
    async fn an_engine_that_closes_after_all_is_no_longer_trusted() {
        let engine = Engine::new().await;
        let pool = Pool::new(8, Duration::from_secs(4));
        let (conn, theirs) = engine.conn().await;
        pool.put(conn, After::Streamed, Nanos(0));
        let conn = pool.take(engine.peer, Nanos(SECOND)).expect("it was kept open");
        pool.put(conn, After::Streamed, Nanos(SECOND));
        drop(theirs);
        until(|| pool.rows.lock().iter().flat_map(|row| &row.idle).all(|i| i.conn.is_closed())).await;
        assert!(pool.take(engine.peer, Nanos(SECOND)).is_none());
        let (conn, _end) = engine.conn().await;
        pool.put(conn, After::Streamed, Nanos(SECOND));
        assert!(pool.take(engine.peer, Nanos(SECOND)).is_none(), "it rests again");
    }
}
