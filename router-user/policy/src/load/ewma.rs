//! Exponentially weighted averages with their number of observations.

/// An average in which each new sample weighs `gain`; the first sample replaces the (absent) start value.
#[derive(Clone, Copy, Debug)]
pub struct Ewma {
    gain: f64,
    value: f64,
    observations: u64,
}

impl Ewma {
    /// An average without samples. `gain` from 0 (keep the first) to 1 (keep the last).
    #[must_use]
    pub const fn new(gain: f64) -> Self {
        Self { gain, value: 0.0, observations: 0 }
    }

    /// Goes on from an average of another, unless it has samples of its own.
    pub fn resume(&mut self, value: f64, observations: u64) {
        if self.observations == 0 && value.is_finite() {
            (self.value, self.observations) = (value, observations);
        }
    }

    /// Takes a sample. One that is no finite number is left out.
    pub fn observe(&mut self, sample: f64) {
        if !sample.is_finite() {
            return;
        }
        self.value =
            if self.observations == 0 { sample } else { self.value + self.gain * (sample - self.value) };
        self.observations += 1;
    }

    /// The average, or `None` before the first sample.
    #[must_use]
    pub fn value(&self) -> Option<f64> {
        (self.observations > 0).then_some(self.value)
    }

    /// The average and its number of samples, or `None` before the first.
    #[must_use]
    pub fn with_count(&self) -> Option<(f64, u64)> {
        self.value().map(|v| (v, self.observations))
    }
}

#[cfg(test)]
mod tests {
    use super::Ewma;

    #[test]
    fn first_sample_replaces_and_nonsense_is_left_out() {
        let mut e = Ewma::new(0.1);
        assert_eq!(e.value(), None, "unknown is not zero");
        e.observe(f64::NAN);
        e.observe(f64::INFINITY);
        assert_eq!(e.with_count(), None);
        e.observe(10.0);
        assert_eq!(e.with_count(), Some((10.0, 1)));
        e.observe(20.0);
        assert_eq!(e.with_count(), Some((11.0, 2)));
    }
}
