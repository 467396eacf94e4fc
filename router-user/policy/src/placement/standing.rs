//! What a pick needs of a backend, in two cache lines: copied from its entry whenever that changes, so that comparing
//! hundreds of backends reads hundreds of small records in a row and none of the entries.

use super::entry::Entry;
use crate::filter::Tier;
use crate::load::{Foreign, InFlight, Learned, Seats};
use crate::time::Nanos;
use crate::tuning::Tuning;

/// One backend as a pick reads it. Invariant: equal to what its entry says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// This process's requests (A), their unanswered prefill (Q) and their prompt tokens (C). The latter as the cost
    /// wants them: turning whole numbers into these for every candidate costs more than pricing it.
    pub(super) requests: u32,
    pub(super) q_tokens: f64,
    pub(super) c_tokens: f64,
    /// Most requests that may be in flight there.
    pub(super) max_in_flight: u32,
    pub(super) tier: Tier,
    /// Of what others have in flight, see [`crate::Trust::Rising`].
    pub(super) share: f32,
    /// As known of the engine alone: what its pool has proven is not in it.
    pub(super) seats: Seats,
    pub(super) kv_tokens: f64,
    /// R of this engine: learned, else assumed.
    pub(super) prefill_rate: f64,
    /// When time alone will change something of it: a prediction ends, a wait becomes long.
    pub(super) due: Nanos,
    pub(super) foreign: Foreign,
    pub(super) learned: Learned,
}

impl Standing {
    /// Nobody's: never ready.
    pub(super) const VACANT: Self = Self {
        requests: 0,
        q_tokens: 0.0,
        c_tokens: 0.0,
        max_in_flight: 0,
        tier: Tier::Out,
        share: 1.0,
        seats: Seats::ProvenByUse(1),
        kv_tokens: 1.0,
        prefill_rate: 1.0,
        due: Nanos(u64::MAX),
        foreign: Foreign::NONE,
        learned: Learned::NOTHING,
    };

    pub(super) fn of(entry: &Entry, tuning: &Tuning) -> Self {
        let seats = &entry.load.seats;
        let InFlight { requests, q_tokens, c_tokens } = entry.load.in_flight();
        Self {
            requests,
            q_tokens: q_tokens as f64,
            c_tokens: c_tokens as f64,
            max_in_flight: entry.spec.max_in_flight.unwrap_or(u32::MAX),
            tier: entry.tier(),
            share: entry.trust.share(),
            seats: seats.seats(entry.spec.max_num_seqs, entry.report.seats, seats.proven()),
            kv_tokens: entry.kv_tokens(tuning) as f64,
            prefill_rate: entry.prefill_rate(tuning),
            due: entry.load.due(),
            foreign: entry.foreign,
            learned: entry.load.learned(tuning),
        }
    }

    /// Seats, where those that only use has proven are the pool's.
    pub(super) fn seats_in_pool(&self, proven: u32) -> Seats {
        match self.seats {
            Seats::ProvenByUse(_) => Seats::ProvenByUse(proven.max(1)),
            told_or_learned => told_or_learned,
        }
    }
}

const _: () = assert!(size_of::<Standing>() <= 128);
