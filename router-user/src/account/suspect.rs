//! Whether a backend seems to stall or to be dying, by what the kernel saw of its connections. For people and for the
//! health of backends to come; nothing is ejected by it, and it is in no cost.
//!
//! Each sign holds only while no byte came since, so a backend that answers is suspected no more; and no longer than
//! [`after`](Suspicion::of) but for silence, which is that long at least. Invariant: pure, no clock.

use std::fmt;
use std::time::Duration;

use router_common::BackendLoad;
use router_policy::Nanos;

use super::KernelRow;

/// The default of `suspect-after`.
pub const SUSPECT_AFTER: Duration = Duration::from_secs(30);

/// Why a backend is suspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Its host does not acknowledge what is sent again and again: it, or the path to it, is gone.
    Unreachable,
    /// It broke a connection.
    Reset,
    /// It takes nothing more of what is sent.
    NotReading,
    /// Requests are there without a byte while another backend answers.
    Silent,
}

impl Sign {
    /// All, the most telling first.
    pub const ALL: [Self; 4] = [Self::Unreachable, Self::Reset, Self::NotReading, Self::Silent];

    /// The word of labels and status.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Reset => "reset",
            Self::NotReading => "not_reading",
            Self::Silent => "silent",
        }
    }
}

/// A suspected backend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Suspicion {
    /// Why.
    pub sign: Sign,
    /// How long ago the sign was seen; of silence, how long it lasts.
    pub seconds: f64,
    /// Requests there, as the kernel sees.
    pub requests: u64,
}

impl fmt::Display for Suspicion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sign, seconds, requests } = self;
        match sign {
            Sign::Unreachable => {
                write!(f, "does not acknowledge what is sent again, last {seconds:.1} s ago")
            }
            Sign::Reset => write!(f, "broke a connection {seconds:.1} s ago, and sent no byte since"),
            Sign::NotReading => write!(f, "takes nothing more of what is sent, last {seconds:.1} s ago"),
            Sign::Silent => {
                write!(f, "{requests} requests without a byte for {seconds:.1} s while others answer")
            }
        }
    }
}

impl Suspicion {
    /// What a row says. `others_rx` is when the latest byte of another backend came that could have had the requests;
    /// `after` is how long a silence may be (zero: nothing is suspected).
    #[must_use]
    pub fn of(row: &KernelRow, others_rx: Nanos, now: Nanos, after: Duration) -> Option<Self> {
        let load = &row.load;
        let requests = load.awaiting.saturating_add(load.streaming);
        let told = |sign, at: u64| Self { sign, seconds: now.seconds_since(Nanos(at)), requests };
        let lately =
            |sign, at: u64| (at > load.last_rx_ns && now < Nanos(at) + after).then(|| told(sign, at));
        lately(Sign::Unreachable, load.last_timeout_ns)
            .or_else(|| lately(Sign::Reset, load.last_reset_ns))
            .or_else(|| lately(Sign::NotReading, load.last_zero_window_ns))
            .or_else(|| {
                let since = silent_since(row).filter(|&at| Nanos(at) < others_rx)?;
                (!after.is_zero() && Nanos(since) + after <= now).then(|| told(Sign::Silent, since))
            })
    }
}

/// Since when a backend owes a byte; `None` if it owes none, or requests are not followed.
fn silent_since(row: &KernelRow) -> Option<u64> {
    let BackendLoad { awaiting, streaming, last_rx_ns, asked_ns, .. } = row.load;
    (row.has_phases && (awaiting > 0 || streaming > 0)).then(|| last_rx_ns.max(asked_ns))
}

/// When the latest byte came of all rows but one.
#[must_use]
pub fn others_rx<'r>(rows: impl Iterator<Item = &'r BackendLoad>) -> Nanos {
    Nanos(rows.map(|load| load.last_rx_ns).max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use router_common::BackendLoad;
    use router_policy::Nanos;

    use super::{Sign, Suspicion};
    use crate::account::KernelRow;

    const SECOND: u64 = 1_000_000_000;
    const NOW: u64 = 1000 * SECOND;
    const AFTER: Duration = Duration::from_secs(30);
    const ROW: BackendLoad = BackendLoad { last_rx_ns: NOW - 100 * SECOND, ..BackendLoad::ZERO };

    fn sign(load: BackendLoad, others_rx: u64) -> Option<Sign> {
        let row = KernelRow { load, has_phases: true };
        Suspicion::of(&row, Nanos(others_rx), Nanos(NOW), AFTER).map(|suspicion| suspicion.sign)
    }

    #[test]
    fn silence_counts_from_the_first_request_without_a_byte_and_only_while_others_answer() {
        let asked = |seconds: u64| BackendLoad { awaiting: 2, asked_ns: NOW - seconds * SECOND, ..ROW };
        let others = NOW - SECOND;
        assert_eq!(sign(asked(30), others), Some(Sign::Silent));
        assert_eq!(sign(asked(29), others), None, "the pause before the request is none of it");
        assert_eq!(sign(asked(50), NOW - 51 * SECOND), None, "nobody answered since");
        assert_eq!(sign(BackendLoad { last_rx_ns: NOW, ..asked(30) }, others), None, "it answers");
        assert_eq!(sign(BackendLoad { awaiting: 0, ..asked(30) }, others), None, "it owes nothing");
        let streams = BackendLoad { streaming: 1, ..ROW };
        assert_eq!(sign(streams, others), Some(Sign::Silent), "a stream that stopped");
        let row = KernelRow { load: asked(30), has_phases: false };
        assert_eq!(Suspicion::of(&row, Nanos(others), Nanos(NOW), AFTER), None);
    }

    #[test]
    fn each_sign_holds_until_a_byte_comes_or_it_is_old() {
        for wanted in [Sign::Unreachable, Sign::Reset, Sign::NotReading] {
            let at = |at: u64| match wanted {
                Sign::Unreachable => BackendLoad { last_timeout_ns: at, ..ROW },
                Sign::Reset => BackendLoad { last_reset_ns: at, ..ROW },
                _ => BackendLoad { last_zero_window_ns: at, ..ROW },
            };
            assert_eq!(sign(at(NOW - SECOND), 0), Some(wanted));
            assert_eq!(
                sign(BackendLoad { last_rx_ns: NOW, ..at(NOW - SECOND) }, 0),
                None,
                "{wanted:?}: it answered"
            );
            assert_eq!(sign(at(NOW - 31 * SECOND), 0), None, "{wanted:?}: long ago");
            let row = KernelRow { load: at(NOW - 1), has_phases: true };
            assert_eq!(Suspicion::of(&row, Nanos(0), Nanos(NOW), Duration::ZERO), None, "{wanted:?}: off");
        }
        assert_eq!(sign(BackendLoad::ZERO, NOW), None);
    }

    #[test]
    fn the_reason_is_a_sentence() {
        let silent = Suspicion { sign: Sign::Silent, seconds: 31.26, requests: 2 };
        assert_eq!(silent.to_string(), "2 requests without a byte for 31.3 s while others answer");
    }
}
