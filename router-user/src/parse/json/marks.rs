//! Which bytes matter, as bit masks (bit 0 is the first byte): to where a string ends (quotes, backslashes and control
//! bytes), and to where a number does (all but digits).
//!
//! On x86-64 by SSE2, which every such machine has: one comparison for sixteen bytes. Wider vectors would have to be
//! asked for at run time, and the hash behind takes longer than this already. Elsewhere by plain loops, of which
//! compilers make what they can.

/// Bytes of a lane: one vector.
pub(super) const LANE: usize = 16;
/// Bytes of a window: one mask.
pub(super) const WINDOW: usize = 64;

pub(super) use imp::{of_lane, of_no_digits, of_window};

#[cfg(any(test, not(target_arch = "x86_64")))]
mod portable {
    use super::{LANE, WINDOW};

    const fn is_mark(b: u8) -> bool {
        b == b'"' || b == b'\\' || b < 0x20
    }

    pub(in super::super) fn of_lane(lane: &[u8; LANE]) -> u16 {
        lane.iter().rev().fold(0, |mask, &b| mask << 1 | u16::from(is_mark(b)))
    }

    pub(in super::super) fn of_window(window: &[u8; WINDOW]) -> u64 {
        if !window.iter().fold(false, |any, &b| any | is_mark(b)) {
            return 0;
        }
        window.iter().rev().fold(0, |mask, &b| mask << 1 | u64::from(is_mark(b)))
    }

    pub(in super::super) fn of_no_digits(window: &[u8; WINDOW]) -> u64 {
        window.iter().rev().fold(0, |mask, b| mask << 1 | u64::from(!b.is_ascii_digit()))
    }
}

#[cfg(not(target_arch = "x86_64"))]
use portable as imp;

#[cfg(target_arch = "x86_64")]
mod imp {
    use std::arch::x86_64::{
        __m128i, _mm_cmpeq_epi8, _mm_min_epu8, _mm_movemask_epi8, _mm_or_si128, _mm_set_epi64x,
        _mm_set1_epi8, _mm_sub_epi8,
    };

    use super::{LANE, WINDOW};

    #[inline]
    #[expect(unsafe_code, reason = "vector instructions: twice as fast as portable code")]
    pub(in super::super) fn of_lane(lane: &[u8; LANE]) -> u16 {
        // SAFETY: SSE2 is part of every x86-64.
        unsafe { mask(marks(lane)) }
    }

    #[inline]
    #[expect(unsafe_code, reason = "vector instructions: twice as fast as portable code")]
    pub(in super::super) fn of_window(window: &[u8; WINDOW]) -> u64 {
        // SAFETY: SSE2 is part of every x86-64.
        unsafe { window_mask(window) }
    }

    #[inline]
    #[expect(unsafe_code, reason = "vector instructions: twice as fast as portable code")]
    pub(in super::super) fn of_no_digits(window: &[u8; WINDOW]) -> u64 {
        // SAFETY: SSE2 is part of every x86-64.
        unsafe { no_digits(window) }
    }

    #[target_feature(enable = "sse2")]
    fn no_digits(window: &[u8; WINDOW]) -> u64 {
        let (lanes, _) = window.as_chunks();
        !lanes.iter().rev().fold(0, |all, lane| {
            let digits = _mm_sub_epi8(load(lane), _mm_set1_epi8(b'0'.cast_signed()));
            let is_digit = _mm_cmpeq_epi8(_mm_min_epu8(digits, _mm_set1_epi8(9)), digits);
            all << LANE | u64::from(mask(is_digit))
        })
    }

    #[target_feature(enable = "sse2")]
    fn window_mask(window: &[u8; WINDOW]) -> u64 {
        let ([a, b, c, d], _) = window.as_chunks() else { return 0 };
        let lanes = [marks(a), marks(b), marks(c), marks(d)];
        let any = _mm_or_si128(_mm_or_si128(lanes[0], lanes[1]), _mm_or_si128(lanes[2], lanes[3]));
        // Most windows of prose have no mark.
        if mask(any) == 0 {
            return 0;
        }
        lanes.into_iter().rev().fold(0, |all, lane| all << LANE | u64::from(mask(lane)))
    }

    /// 0xff where a byte matters.
    #[target_feature(enable = "sse2")]
    fn marks(lane: &[u8; LANE]) -> __m128i {
        let bytes = load(lane);
        let quote = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'"'.cast_signed()));
        let backslash = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'\\'.cast_signed()));
        let control = _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x1f)), bytes);
        _mm_or_si128(_mm_or_si128(quote, backslash), control)
    }

    #[target_feature(enable = "sse2")]
    fn load(lane: &[u8; LANE]) -> __m128i {
        let lane = u128::from_le_bytes(*lane);
        _mm_set_epi64x((lane >> 64) as i64, lane as i64)
    }

    #[target_feature(enable = "sse2")]
    fn mask(marks: __m128i) -> u16 {
        _mm_movemask_epi8(marks) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::{LANE, WINDOW, imp, portable};

    #[test]
    fn every_byte_at_every_place_is_marked_as_the_plain_loop_marks_it() {
        // Bytes at the borders of the classes; a lane in which everything matters; one in which nothing does.
        let grounds: [[u8; LANE]; 3] =
            [*b" !#[]^~\x7f\x80\xff\xa2\xdc\x9f\x20\x1f\"", [b'\\'; LANE], [b'a'; LANE]];
        for ground in grounds {
            for (at, byte) in (0..WINDOW).flat_map(|at| (0..=u8::MAX).map(move |byte| (at, byte))) {
                let mut window = [0; WINDOW];
                window.as_chunks_mut().0.fill(ground);
                window[at] = byte;
                assert_eq!(imp::of_window(&window), portable::of_window(&window), "{byte:#x} at {at}");
                assert_eq!(imp::of_no_digits(&window), portable::of_no_digits(&window), "{byte:#x} at {at}");
                let (lanes, _) = window.as_chunks();
                assert_eq!(
                    imp::of_lane(&lanes[at / LANE]),
                    portable::of_lane(&lanes[at / LANE]),
                    "{byte:#x} at {at}"
                );
            }
        }
    }
}
