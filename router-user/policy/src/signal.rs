//! A value somebody told us: known with its age, or unknown with the reason. Unknown is never zero.

use std::time::Duration;

use crate::time::Nanos;

/// A value from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal<T> {
    /// What it was at a time.
    Known {
        /// The value.
        value: T,
        /// When it was true.
        at: Nanos,
    },
    /// Nobody can say.
    Unknown(Why),
}

/// Why a value is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// Nothing was ever asked or heard.
    NeverHeard,
    /// The engine could not be reached.
    Unreachable,
    /// The engine answered with a status other than 200.
    Refused,
    /// The answer lacks the name.
    Missing,
    /// The answer has the name with something that is no usable number.
    Malformed,
    /// It says that nothing is there while requests of ours are.
    Contradicted,
    /// The text has not changed although the engine has work.
    Frozen,
    /// Too old to be used.
    Stale,
}

impl Why {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::NeverHeard,
        Self::Unreachable,
        Self::Refused,
        Self::Missing,
        Self::Malformed,
        Self::Contradicted,
        Self::Frozen,
        Self::Stale,
    ];

    /// The reason as one word, for labels and status.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NeverHeard => "never_heard",
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
            Self::Missing => "missing",
            Self::Malformed => "malformed",
            Self::Contradicted => "contradicted",
            Self::Frozen => "frozen",
            Self::Stale => "stale",
        }
    }
}

impl<T: Copy> Signal<T> {
    /// A value that is true at `at`.
    pub const fn known(value: T, at: Nanos) -> Self {
        Self::Known { value, at }
    }

    /// The value, however old.
    pub const fn value(&self) -> Option<T> {
        match self {
            Self::Known { value, .. } => Some(*value),
            Self::Unknown(_) => None,
        }
    }

    /// Why it is unknown; `None` while it is known.
    pub const fn why(&self) -> Option<Why> {
        match self {
            Self::Known { .. } => None,
            Self::Unknown(why) => Some(*why),
        }
    }

    /// The same, or unknown because it is older than `max_age`.
    #[must_use]
    pub fn no_older_than(self, now: Nanos, max_age: Duration) -> Self {
        match self {
            Self::Known { at, .. } if at + max_age < now => Self::Unknown(Why::Stale),
            other => other,
        }
    }

    /// Seconds since the value was true, or `None` while unknown.
    pub fn age_seconds(&self, now: Nanos) -> Option<f64> {
        match self {
            Self::Known { at, .. } => Some(now.seconds_since(*at)),
            Self::Unknown(_) => None,
        }
    }
}

impl<T> Default for Signal<T> {
    fn default() -> Self {
        Self::Unknown(Why::NeverHeard)
    }
}
