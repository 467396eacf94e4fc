//! Counts that router processes tell each other, some time late.
//!
//! Each router publishes its own counts; the others see them `delay` later. Invariant: what is seen of a router is
//! what it published at one moment, never a mixture.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use router_policy::{BackendId, InFlight, LoadTable, Nanos};

/// A published count under way.
struct Message {
    due: Nanos,
    router: usize,
    engine: usize,
    own: InFlight,
}

/// What all routers have published.
pub(super) struct Board {
    now: Nanos,
    delay: Duration,
    /// In order of time; as many as are published within one delay.
    under_way: VecDeque<Message>,
    /// By router, then engine.
    seen: Vec<Vec<InFlight>>,
}

impl Board {
    pub(super) fn new(routers: usize, engines: usize, delay: Duration) -> Self {
        let seen = vec![vec![InFlight::default(); engines]; routers];
        Self { now: Nanos(0), delay, under_way: VecDeque::new(), seen }
    }

    /// Time has passed: what is due by now is seen.
    pub(super) fn settle(&mut self, now: Nanos) {
        self.now = now;
        while let Some(message) = self.under_way.pop_front_if(|message| message.due <= now) {
            self.seen[message.router][message.engine] = message.own;
        }
    }
}

/// One router's side of the board.
pub(super) struct Member {
    board: Arc<Mutex<Board>>,
    router: usize,
}

impl Member {
    pub(super) fn new(board: Arc<Mutex<Board>>, router: usize) -> Self {
        Self { board, router }
    }
}

impl LoadTable for Member {
    fn others(&self, id: BackendId) -> InFlight {
        let board = self.board.lock();
        let others = board.seen.iter().enumerate().filter(|(router, _)| *router != self.router);
        others.fold(InFlight::default(), |sum, (_, seen)| InFlight {
            requests: sum.requests + seen[id.index()].requests,
            q_tokens: sum.q_tokens + seen[id.index()].q_tokens,
            c_tokens: sum.c_tokens + seen[id.index()].c_tokens,
        })
    }

    fn publish(&self, id: BackendId, own: InFlight) {
        let mut board = self.board.lock();
        let due = board.now + board.delay;
        let (router, engine) = (self.router, id.index());
        board.under_way.push_back(Message { due, router, engine, own });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_see_a_count_when_the_delay_is_over_and_never_their_own() {
        let board = Arc::new(Mutex::new(Board::new(2, 1, Duration::from_millis(20))));
        let members = [0, 1].map(|router| Member::new(Arc::clone(&board), router));
        let id = BackendId::new(0).unwrap();
        let own = InFlight { requests: 3, q_tokens: 5, c_tokens: 7 };
        members[0].publish(id, own);
        for (ms, seen) in [(0, InFlight::default()), (19, InFlight::default()), (20, own)] {
            board.lock().settle(Nanos(ms * 1_000_000));
            assert_eq!(members[1].others(id), seen, "after {ms} ms");
            assert_eq!(members[0].others(id), InFlight::default());
        }
    }
}
