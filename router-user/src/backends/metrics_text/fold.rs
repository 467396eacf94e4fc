//! What the lines of one name come to. One bad line spoils the whole: half a sum is no sum.

use router_policy::{Nanos, Signal, Why};

/// Ranks of one engine at most; more are nonsense.
const RANKS_MAX: usize = 1024;

/// A sum over lines, or over ranks.
#[derive(Debug, Default)]
pub(super) struct Sum {
    state: State,
    /// What each rank said most; several processes of one rank say the same of the same requests.
    ranks: Vec<(u64, u64)>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Missing,
    Of(u64),
    Malformed,
}

impl Sum {
    /// One more line.
    pub(super) fn add(&mut self, value: Option<u64>) {
        let sum = match (&self.state, value) {
            (State::Missing, Some(v)) => Some(v),
            (State::Of(sum), Some(v)) => sum.checked_add(v),
            (State::Malformed, _) | (_, None) => None,
        };
        self.state = sum.map_or(State::Malformed, State::Of);
    }

    /// One more line of a rank: of each rank the most counts.
    pub(super) fn add_at(&mut self, rank: u64, value: Option<u64>) {
        let has_room = self.ranks.len() < RANKS_MAX;
        let known = self.ranks.iter_mut().find(|(r, _)| *r == rank);
        let more = match (known, value) {
            (Some((_, most)), Some(value)) => {
                let more = value.saturating_sub(*most);
                *most += more;
                Some(more)
            }
            (None, Some(value)) if has_room => {
                self.ranks.push((rank, value));
                Some(value)
            }
            (_, None) | (None, Some(_)) => None,
        };
        self.add(more);
    }

    pub(super) const fn is_there(&self) -> bool {
        !matches!(self.state, State::Missing)
    }

    /// The sum.
    pub(super) const fn signal(&self, at: Nanos) -> Signal<u64> {
        match self.state {
            State::Missing => Signal::Unknown(Why::Missing),
            State::Of(sum) => Signal::known(sum, at),
            State::Malformed => Signal::Unknown(Why::Malformed),
        }
    }

    /// The sum as a number of requests, with `more` if there are such lines.
    pub(super) fn count(&self, more: &Self, at: Nanos) -> Signal<u32> {
        let more = if more.is_there() { more.signal(at) } else { Signal::known(0, at) };
        match (self.signal(at), more) {
            (Signal::Unknown(why), _) | (_, Signal::Unknown(why)) => Signal::Unknown(why),
            (Signal::Known { value, .. }, Signal::Known { value: more, .. }) => {
                match value.checked_add(more).and_then(|sum| u32::try_from(sum).ok()) {
                    Some(sum) => Signal::known(sum, at),
                    None => Signal::Unknown(Why::Malformed),
                }
            }
        }
    }
}

/// A mean over lines.
#[derive(Debug, Default)]
pub(super) struct Mean {
    sum: f64,
    lines: u32,
    is_malformed: bool,
}

impl Mean {
    /// One more line.
    pub(super) fn add(&mut self, value: Option<f64>) {
        self.lines = self.lines.saturating_add(1);
        self.sum += value.unwrap_or_default();
        self.is_malformed |= value.is_none();
    }

    pub(super) const fn is_there(&self) -> bool {
        self.lines > 0
    }

    /// The mean.
    pub(super) fn signal(&self, at: Nanos) -> Signal<f64> {
        match (self.is_there(), self.is_malformed) {
            (false, _) => Signal::Unknown(Why::Missing),
            (true, true) => Signal::Unknown(Why::Malformed),
            (true, false) => Signal::known(self.sum / f64::from(self.lines), at),
        }
    }
}

/// What all lines say alike.
#[derive(Debug, Default)]
pub(super) enum Same {
    #[default]
    Missing,
    Of(u64),
    Differ,
}

impl Same {
    /// One more line.
    pub(super) fn add(&mut self, value: Option<u64>) {
        *self = match (&self, value) {
            (Self::Missing, Some(v)) => Self::Of(v),
            (Self::Of(before), Some(v)) if *before == v => Self::Of(v),
            _ => Self::Differ,
        };
    }

    pub(super) const fn value(&self) -> Option<u64> {
        match self {
            Self::Of(v) => Some(*v),
            Self::Missing | Self::Differ => None,
        }
    }
}
