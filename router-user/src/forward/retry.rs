//! Whether a request whose answer did not come may be sent again. Pure.
//!
//! Invariant: a request that an engine may have begun is never sent twice. Sent again is what was not written whole;
//! and what met a *reused* connection that ended without a byte of an answer while the engine's kernel acknowledged
//! nothing of it: the engine was closing it (RFC 9112, 9.3.1). A fresh connection is not reused, so this ends.

/// What is known when no answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The connection had carried a request before.
    pub reused: bool,
    /// Not all of the request was written: the engine cannot have begun it.
    pub unsent: bool,
    /// At least one byte of an answer arrived.
    pub heard: bool,
    /// The kernel says that the engine had closed the connection and none of the request was acknowledged.
    pub unacked: bool,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Once again, to the same backend, on a new connection.
    FreshConnection,
    /// As if the connection had not come about.
    AnotherBackend,
    /// An error to the client.
    GiveUp,
}

/// The rule.
#[must_use]
pub const fn verdict(facts: Facts) -> Verdict {
    match facts {
        Facts { heard: true, .. } => Verdict::GiveUp,
        Facts { reused: true, unsent, unacked, .. } if unsent || unacked => Verdict::FreshConnection,
        Facts { reused: false, unsent: true, .. } => Verdict::AnotherBackend,
        Facts { .. } => Verdict::GiveUp,
    }
}

#[cfg(test)]
mod tests {
    use super::{Facts, Verdict, verdict};

    #[test]
    fn only_what_no_engine_can_have_begun_is_sent_again() {
        use Verdict::{AnotherBackend, FreshConnection, GiveUp};
        for bits in 0..16 {
            let [reused, unsent, heard, unacked] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
            let want = match (heard, reused, unsent, unacked) {
                (true, ..) => GiveUp,
                (_, true, true, _) | (_, true, _, true) => FreshConnection,
                (_, false, true, _) => AnotherBackend,
                _ => GiveUp,
            };
            let facts = Facts { reused, unsent, heard, unacked };
            assert_eq!(verdict(facts), want, "{facts:?}");
        }
    }
}
