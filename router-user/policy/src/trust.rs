//! How far a backend is trusted with requests. Who judges that is outside: the policy obeys.

/// What a backend may get.
///
/// | trust | it is chosen |
/// |---|---|
/// | `Full` | like any other |
/// | `Rising` | like any other, while it has little in flight beside the others |
/// | `Trial` | like any other, for so many requests at a time |
/// | `Suspect` | if nobody of the above is left |
/// | `Ejected` | if the model's pool has nobody of the above at all |
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Trust {
    /// Nothing is known against it.
    #[default]
    Full,
    /// It came back lately: in flight there is at most one more than this share, 0 to 1, of what those of full trust
    /// have in the mean. In flight and not per second: that holds for every policy, needs no clock, and a slow engine
    /// with a cold cache gets less by itself.
    Rising(f32),
    /// It may have recovered: so many requests, at least 1, may be unanswered there that were sent since.
    Trial(u32),
    /// There are bad signs.
    Suspect,
    /// It failed.
    Ejected,
}

impl Trust {
    /// Every state as one word, for labels.
    pub const WORDS: [&'static str; 5] = ["ready", "slow_start", "half_open", "suspect", "ejected"];

    /// The state as one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => Self::WORDS[0],
            Self::Rising(_) => Self::WORDS[1],
            Self::Trial(_) => Self::WORDS[2],
            Self::Suspect => Self::WORDS[3],
            Self::Ejected => Self::WORDS[4],
        }
    }

    /// What share of the others' mean it may have in flight.
    pub(crate) const fn share(self) -> f32 {
        match self {
            // `f32::clamp` would let what is no number through.
            Self::Rising(share) if share >= 0.0 && share < 1.0 => share,
            Self::Rising(share) if share < 0.0 => 0.0,
            _ => 1.0,
        }
    }
}
