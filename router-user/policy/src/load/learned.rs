//! What one engine has taught, in one record, and the means over a pool of them.

/// What one engine has taught; NaN = nothing yet, so that a pass over hundreds of them has no branches.
#[derive(Clone, Copy, Debug)]
pub struct Learned {
    /// First byte to end, seconds (D).
    pub decode_seconds: f64,
    /// Prefill, tokens per second (R).
    pub prefill_rate: f64,
    /// Mean uncached tokens of a request.
    pub uncached: f64,
    /// Mean prompt tokens of a request.
    pub prompt: f64,
    /// Bytes of JSON text per prompt token (c).
    pub chars_per_token: f64,
    /// Most requests ever seen running at once.
    pub proven_seats: u32,
}

impl Learned {
    /// Nothing yet.
    pub const NOTHING: Self = Self {
        decode_seconds: f64::NAN,
        prefill_rate: f64::NAN,
        uncached: f64::NAN,
        prompt: f64::NAN,
        chars_per_token: f64::NAN,
        proven_seats: 0,
    };
}

/// A mean over the engines that know.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mean {
    sum: f64,
    n: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        let (value, n) = if value.is_nan() { (0.0, 0.0) } else { (value, 1.0) };
        self.sum += value;
        self.n += n;
    }

    /// The mean, or `None` if no engine knows.
    #[must_use]
    pub fn value(self) -> Option<f64> {
        (self.n > 0.0).then(|| self.sum / self.n)
    }
}

/// What the engines of a pool have taught together.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolLearned {
    /// D.
    pub decode_seconds: Mean,
    /// R.
    pub prefill_rate: Mean,
    /// Uncached tokens of a request.
    pub uncached: Mean,
    /// Prompt tokens of a request.
    pub prompt: Mean,
    /// c.
    pub chars_per_token: Mean,
    /// Most requests ever seen running at once on one of them.
    pub proven_seats: u32,
}

impl PoolLearned {
    /// One engine more.
    pub fn add(&mut self, engine: &Learned) {
        self.decode_seconds.add(engine.decode_seconds);
        self.prefill_rate.add(engine.prefill_rate);
        self.uncached.add(engine.uncached);
        self.prompt.add(engine.prompt);
        self.chars_per_token.add(engine.chars_per_token);
        self.proven_seats = self.proven_seats.max(engine.proven_seats);
    }
}

#[cfg(test)]
mod tests {
    use super::{Learned, PoolLearned};

    #[test]
    fn an_engine_that_has_taught_nothing_does_not_weigh() {
        let mut pool = PoolLearned::default();
        pool.add(&Learned::NOTHING);
        assert_eq!((pool.prompt.value(), pool.proven_seats), (None, 0));
        pool.add(&Learned { prompt: 100.0, proven_seats: 3, ..Learned::NOTHING });
        pool.add(&Learned { prompt: 300.0, proven_seats: 2, ..Learned::NOTHING });
        assert_eq!((pool.prompt.value(), pool.uncached.value(), pool.proven_seats), (Some(200.0), None, 3));
    }
}
