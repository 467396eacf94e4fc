//! Numbers that look random and depend on their arguments alone.

/// The finalizer of splitmix64 after one step.
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// `value` mixed, as a fraction of at least 0 and less than 1.
pub(crate) fn fraction(value: u64) -> f64 {
    // 53 bits are what a float holds exactly.
    (mix(value) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_fill_their_range_evenly() {
        let mut tenths = [0_u32; 10];
        for value in 0..10_000 {
            tenths[(fraction(value) * 10.0) as usize] += 1;
        }
        assert!(tenths.iter().all(|n| (850..1150).contains(n)), "{tenths:?}");
    }
}
