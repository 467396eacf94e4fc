//! What router processes tell each other, some time late: their counts, and the blocks of what they placed.
//!
//! Each router publishes its own counts and placements; the others see them `delay` later, placements through
//! [`router_policy::Placement::observe_foreign`]. Invariant: what is seen of a router is what it published at one
//! moment, never a mixture.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use router_policy::prefix::Chain;
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

/// A placement under way to the other routers.
pub(super) struct Told {
    due: Nanos,
    /// Who placed it.
    pub(super) router: usize,
    /// Where.
    pub(super) engine: BackendId,
    /// Its blocks.
    pub(super) chain: Chain,
}

/// Placements that not everybody knows of yet.
pub(super) struct Placements {
    delay: Duration,
    /// In order of time; as many as are placed within one delay.
    under_way: VecDeque<Told>,
}

impl Placements {
    pub(super) fn new(delay: Duration) -> Self {
        Self { delay, under_way: VecDeque::new() }
    }

    /// A router placed a prompt.
    pub(super) fn tell(&mut self, now: Nanos, router: usize, engine: BackendId, chain: Chain) {
        self.under_way.push_back(Told { due: now + self.delay, router, engine, chain });
    }

    /// The next that the others hear of by now.
    pub(super) fn heard(&mut self, now: Nanos) -> Option<Told> {
        self.under_way.pop_front_if(|told| told.due <= now)
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
    fn a_placement_is_heard_of_once_when_the_delay_is_over() {
        let mut placements = Placements::new(Duration::from_millis(20));
        let id = BackendId::new(3).unwrap();
        let chain = Chain { blocks: vec![7], bytes: 256 };
        placements.tell(Nanos(0), 1, id, chain.clone());
        assert!(placements.heard(Nanos(19_999_999)).is_none());
        let told = placements.heard(Nanos(20_000_000)).unwrap();
        assert_eq!((told.router, told.engine, told.chain), (1, id, chain));
        assert!(placements.heard(Nanos(u64::MAX)).is_none());
    }

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
