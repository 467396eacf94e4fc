//! Whether a request whose answer did not come may be sent again. Pure.
//!
//! Invariant: a request that an engine may have begun is never sent twice, with the one exception that HTTP
//! itself makes (RFC 9112, 9.3.1): a *reused* connection that ended without a single byte of an answer was being
//! closed by the engine while the request was on its way. A fresh connection is not reused, so this ends.

/// What is known when no answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The connection had carried a request before.
    pub reused: bool,
    /// Not all of the request was written: the engine cannot have begun it.
    pub unsent: bool,
    /// At least one byte of an answer arrived.
    pub heard: bool,
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
        Facts { reused: true, .. } => Verdict::FreshConnection,
        Facts { unsent: true, .. } => Verdict::AnotherBackend,
        Facts { .. } => Verdict::GiveUp,
    }
}

#[cfg(test)]
mod tests {
    use super::{Facts, Verdict, verdict};

    #[test]
    fn only_what_no_engine_can_have_begun_is_sent_again() {
        for (reused, unsent, heard, want) in [
            (true, true, false, Verdict::FreshConnection),
            (true, false, false, Verdict::FreshConnection),
            (false, true, false, Verdict::AnotherBackend),
            (false, false, false, Verdict::GiveUp),
            (true, false, true, Verdict::GiveUp),
            (false, false, true, Verdict::GiveUp),
            (true, true, true, Verdict::GiveUp),
            (false, true, true, Verdict::GiveUp),
        ] {
            let facts = Facts { reused, unsent, heard };
            assert_eq!(verdict(facts), want, "{facts:?}");
        }
    }
}
