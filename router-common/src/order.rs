//! What a segment brings beside the bytes that were seen of its direction: the network may bring it twice, late, or
//! before one that was sent earlier.
//!
//! Pure, as [`crate::phase`]. Sequence numbers wrap around, so of two the later is the one less than 2^31 ahead (RFC
//! 9293, 3.4).

/// Whether one sequence number comes before another.
#[must_use]
#[inline(always)]
pub const fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// Bytes from one sequence number to a later one; 0 if it is none.
#[must_use]
#[inline(always)]
pub const fn beyond(from: u32, to: u32) -> u32 {
    if is_before(from, to) { to.wrapping_sub(from) } else { 0 }
}

/// A segment that overtook the first of its answer: how far the answer has come with it. One number, as
/// [`crate::SockState::progress`] keeps it while an answer is awaited; 0 = none did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overtaken(u64);

impl Overtaken {
    const SOME: u64 = 1 << 63;
    const IS_END: u64 = 1 << 62;

    /// What was kept.
    #[must_use]
    #[inline(always)]
    pub const fn from_progress(progress: u64) -> Self {
        Self(progress)
    }

    /// What to keep.
    #[must_use]
    #[inline(always)]
    pub const fn progress(self) -> u64 {
        self.0
    }

    /// After one more, which reaches up to `end`; `is_end` = it ends an answer in chunks.
    #[must_use]
    #[inline(always)]
    pub const fn by(self, end: u32, is_end: bool) -> Self {
        if self.0 != 0 && !is_before(self.0 as u32, end) {
            return self;
        }
        Self(Self::SOME | if is_end { Self::IS_END } else { 0 } | end as u64)
    }

    /// How far the answer has come once its first segment, which reaches up to `end`, is there too.
    #[must_use]
    #[inline(always)]
    pub const fn reaches(self, end: u32) -> u32 {
        if self.0 == 0 { end } else { end.wrapping_add(beyond(end, self.0 as u32)) }
    }

    /// Whether it ends an answer in chunks.
    #[must_use]
    #[inline(always)]
    pub const fn is_end(self) -> bool {
        self.0 & Self::IS_END != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap_around() {
        assert!(is_before(1, 2) && !is_before(2, 1) && !is_before(2, 2));
        assert!(is_before(u32::MAX, 3) && !is_before(3, u32::MAX));
        assert_eq!([beyond(5, 9), beyond(9, 9), beyond(9, 5), beyond(u32::MAX, 3)], [4, 0, 0, 4]);
    }

    #[test]
    fn an_answer_has_come_as_far_as_the_furthest_that_overtook_its_beginning() {
        let none = Overtaken::from_progress(0);
        assert_eq!((none.reaches(70), none.is_end()), (70, false));
        let one = none.by(100, false);
        assert_eq!((one.reaches(70), one.reaches(120), one.is_end()), (100, 120, false));
        let two = Overtaken::from_progress(one.progress()).by(150, true);
        assert_eq!((two.reaches(70), two.is_end()), (150, true));
        assert_eq!(two.by(120, false), two, "behind it, or the same once more");
        assert_eq!(two.by(150, false), two);
        let wrapped = none.by(u32::MAX, false).by(0, true);
        assert_eq!((wrapped.reaches(u32::MAX - 9), wrapped.is_end()), (0, true), "0 is a number like others");
    }
}
