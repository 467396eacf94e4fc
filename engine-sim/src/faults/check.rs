//! Bounds of a set of faults.

use super::spec::{Fault, Faults};

/// Rules, and names in each list, at most.
const ITEMS_MAX: usize = 64;
/// Longest time of any kind: a day.
const TIME_MS_MAX: u64 = 86_400_000;

/// A set that cannot be carried out.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FaultsError {
    /// Too many rules, or names in a list.
    #[error("{what} has {count} items, at most 64 are taken")]
    TooMany {
        /// The list.
        what: &'static str,
        /// Its length.
        count: usize,
    },
    /// Not a share.
    #[error("rate must be from 0 to 1, not {0}")]
    Rate(f64),
    /// Not an error status.
    #[error("code must be from 400 to 599, not {0}")]
    Code(u16),
    /// Not slower, or too slow to tell from a hang.
    #[error("factor must be from 1 to 1000, not {0}")]
    Factor(f64),
    /// More than a day.
    #[error("{what} must be at most 86400000, not {ms}")]
    Time {
        /// The field.
        what: &'static str,
        /// Its value.
        ms: u64,
    },
}

impl Faults {
    /// Refuses what is out of bounds.
    ///
    /// # Errors
    /// Says which field it is.
    pub fn check(&self) -> Result<(), FaultsError> {
        let metrics = &self.metrics;
        for (what, count) in [
            ("rules", self.rules.len()),
            ("metrics.missing", metrics.missing.len()),
            ("metrics.renamed", metrics.renamed.len()),
            ("metrics.frozen", metrics.frozen.len()),
            ("metrics.nan", metrics.nan.len()),
        ] {
            if count > ITEMS_MAX {
                return Err(FaultsError::TooMany { what, count });
            }
        }
        for rule in &self.rules {
            if !(0.0..=1.0).contains(&rule.rate) {
                return Err(FaultsError::Rate(rule.rate));
            }
            match rule.fault {
                Fault::Status { code, .. } if !(400..=599).contains(&code) => {
                    return Err(FaultsError::Code(code));
                }
                Fault::Delay(delay) => {
                    check_time("first_byte_ms", delay.first_byte_ms)?;
                    check_time("between_chunks_ms", delay.between_chunks_ms)?;
                }
                _ => {}
            }
        }
        if let Some(slow) = self.slow_start {
            if !(1.0..=1000.0).contains(&slow.factor) {
                return Err(FaultsError::Factor(slow.factor));
            }
            check_time("slow_start.for_ms", slow.for_ms)?;
        }
        check_time("connect_delay_ms", self.connect_delay_ms)?;
        check_time("metrics.delay_ms", metrics.delay_ms)
    }
}

fn check_time(what: &'static str, ms: u64) -> Result<(), FaultsError> {
    if ms > TIME_MS_MAX { Err(FaultsError::Time { what, ms }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::{Delay, MetricsFaults, Rule, SlowStart};

    #[test]
    fn each_bound_is_checked() {
        let with = |rule| Faults { rules: vec![rule], ..Faults::default() };
        let slow =
            |factor, for_ms| Faults { slow_start: Some(SlowStart { factor, for_ms }), ..Faults::default() };
        let day = TIME_MS_MAX;
        let late = |first_byte_ms| Fault::Delay(Delay { first_byte_ms, between_chunks_ms: 0 });
        let status = |code| Fault::Status { code, retry_after_s: None };
        let many = MetricsFaults { nan: vec![String::new(); 65], ..MetricsFaults::default() };
        for (faults, is_fine) in [
            (Faults::default(), true),
            (with(Rule::rate(Fault::Hang, 1.0)), true),
            (with(Rule::rate(Fault::Hang, 1.01)), false),
            (with(Rule::rate(Fault::Hang, -0.1)), false),
            (with(Rule::rate(Fault::Hang, f64::NAN)), false),
            (with(Rule::always(status(599))), true),
            (with(Rule::always(status(200))), false),
            (with(Rule::always(late(day))), true),
            (with(Rule::always(late(day + 1))), false),
            (slow(1.0, day), true),
            (slow(0.5, 1), false),
            (slow(2.0, day + 1), false),
            (Faults { connect_delay_ms: day + 1, ..Faults::default() }, false),
            (Faults { rules: vec![Rule::always(Fault::Hang); 65], ..Faults::default() }, false),
            (Faults { metrics: many, ..Faults::default() }, false),
        ] {
            assert_eq!(faults.check().is_ok(), is_fine, "{faults:?}");
        }
    }
}
