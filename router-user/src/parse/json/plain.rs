//! Values that are written without quotes: numbers, `true`, `false`, `null`.

use super::{BodyError, Scanner};

impl Scanner<'_> {
    /// Reads a number or a literal.
    pub(super) fn plain(&mut self) -> Result<(), BodyError> {
        match self.peek() {
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => self.literal(),
        }
    }

    /// Reads elements of an array from here on as token ids, at least one; the last of a run is the one before
    /// something odd. What is no id (negative, a fraction, a text) is `u32::MAX`, for the engine to refuse.
    ///
    /// # Errors
    /// As [`Scanner::skip`].
    pub fn token_ids(&mut self, mut each: impl FnMut(u32)) -> Result<(), BodyError> {
        self.blanks();
        let mut rest = &self.text[self.at..];
        // Clients write all their commas alike: asking at each would make the next number wait for the answer.
        let is_spaced = short_number(rest).is_some_and(|(_, length)| rest[length..].starts_with(b", "));
        let comma = 1 + usize::from(is_spaced);
        while let Some((id, length)) = short_number(rest)
            && rest[length] == b','
            && (!is_spaced || rest.get(length + 1) == Some(&b' '))
        {
            each(id);
            rest = &rest[length + comma..];
        }
        // Behind a comma an element must follow; the last one has none, and odd ones are read here too.
        self.at = self.text.len() - rest.len();
        let raw = self.skip()?;
        each(std::str::from_utf8(raw).ok().and_then(|text| text.parse().ok()).unwrap_or(u32::MAX));
        Ok(())
    }

    fn number(&mut self) -> Result<(), BodyError> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        // A zero stands alone: what follows `0` must be no digit, which the caller's next byte shows.
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), BodyError> {
        let run = self.text[self.at..].iter().take_while(|b| b.is_ascii_digit()).count();
        if run == 0 {
            return Err(self.error("a digit is due"));
        }
        self.at += run;
        Ok(())
    }

    fn literal(&mut self) -> Result<(), BodyError> {
        let rest = &self.text[self.at..];
        let known = [&b"true"[..], b"false", b"null"].into_iter().find(|word| rest.starts_with(word));
        match known {
            Some(word) => {
                self.at += word.len();
                Ok(())
            }
            None => Err(self.error("a value is due")),
        }
    }
}

/// A whole number of one to seven digits at the beginning of `text`, and its length: a byte that is no digit follows.
/// `None` if it is longer, begins with a needless zero, or the text is nearly at its end. Eight bytes at a time: a
/// prompt of token ids is nothing but these.
fn short_number(text: &[u8]) -> Option<(u32, usize)> {
    const ONES: u64 = u64::MAX / 0xff;
    const HIGH: u64 = ONES * 0xf0;
    const THREES: u64 = ONES * 0x30;
    let word = u64::from_le_bytes(*text.first_chunk()?);
    // A digit is 0x30 to 0x39: its high half is 3, and stays so when 6 is added. Only a byte from 0xfa carries into
    // the next, and is itself the end of the number.
    let wrong = ((word & HIGH) ^ THREES) | ((word.wrapping_add(ONES * 0x06) & HIGH) ^ THREES);
    let length = wrong.trailing_zeros() as usize / 8;
    if length == 0 || length == 8 || (length > 1 && text[0] == b'0') {
        return None;
    }
    // The digits move to the high end, zeros before them; then pairs, fours and all eight are added up.
    let digits = (word & (ONES * 0x0f)) << (64 - length * 8);
    let pairs = (digits * 10 + (digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    Some(((fours * 10_000 + (fours >> 32)) as u32, length))
}

#[cfg(test)]
mod tests {
    use super::{Scanner, short_number};

    #[test]
    fn short_numbers_are_read_as_the_standard_library_does() {
        let numbers = (0..2_000).chain([9_999, 10_000, 99_999, 128_255, 999_999, 1_000_000, 9_999_999]);
        for n in numbers {
            for behind in [",2345678", "]       ", " ,      ", "\n       ", ":;/9    ", "\u{fffd}      "] {
                let text = format!("{n}{behind}");
                assert_eq!(short_number(text.as_bytes()), Some((n, n.to_string().len())), "{text}");
            }
        }
    }

    #[test]
    fn every_byte_that_is_no_digit_ends_a_number() {
        for behind in (0..=u8::MAX).filter(|b| !b.is_ascii_digit()) {
            let text = [b'4', b'2', behind, b'7', 0xff, b'7', b'7', b'7'];
            assert_eq!(short_number(&text), Some((42, 2)), "{behind:#x}");
        }
    }

    #[test]
    fn what_is_no_short_number_is_left_to_the_slow_way() {
        for text in ["12345678,", "01,      ", "-1,      ", "x,       ", "1,"] {
            assert_eq!(short_number(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn ids_are_read_however_they_are_spaced_and_odd_ones_are_the_greatest() {
        let ids = |text: &'static str| {
            let mut ids = Vec::new();
            let mut s = Scanner::new(text.as_bytes());
            s.array(|s| s.token_ids(|id| ids.push(id))).and_then(|()| s.end()).map(|()| ids)
        };
        for text in
            ["[1,22,333,4444444,55555555,4294967294]", " [ 1 , 22\n,\t333,  4444444, 55555555 ,4294967294 ] "]
        {
            assert_eq!(ids(text).unwrap(), [1, 22, 333, 4_444_444, 55_555_555, 4_294_967_294], "{text}");
        }
        let odd = ids(r#"[1,-1,1.5,1e2,4294967296,"5",null,[1],{},7]"#).unwrap();
        assert!(odd[0] == 1 && odd[9] == 7 && odd[1..9] == [u32::MAX; 8], "{odd:?}");
        for illegal in
            ["[1,2,]", "[1,2", "[1,,2]", "[01,22,333]", "[1 2,3]", "[1,2,x]", "[1.,2]", "[1234567,"]
        {
            assert!(ids(illegal).is_err(), "{illegal}");
        }
    }
}
