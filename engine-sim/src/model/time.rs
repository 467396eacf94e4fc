//! Virtual time as the caller gives it: the model never reads a clock.

/// Nanoseconds of virtual time since an origin of the caller's choice, never going back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// `milliseconds` rounded to whole nanoseconds; negative counts as 0.
    #[must_use]
    pub fn from_ms_f64(milliseconds: f64) -> Self {
        Self((milliseconds.max(0.0) * 1e6).round() as u64)
    }

    /// Milliseconds since the origin, as a fraction.
    #[must_use]
    pub fn as_ms_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The sum, staying at the largest value instead of wrapping.
    #[must_use]
    pub fn plus(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// The span from `earlier` to here; 0 if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}
