//! Values that are written without quotes: numbers, `true`, `false`, `null`.

use super::marks::{self, WINDOW};
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
        while let Some(window) = rest.first_chunk() {
            let read = short_numbers(window, &mut each);
            if read == 0 {
                break;
            }
            rest = &rest[read..];
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

/// Hands out the numbers at the beginning of a window that are whole, of one to seven digits, and before a comma (and
/// a blank, as some clients write it); returns how many bytes it took. A prompt of token ids is nothing but these, so
/// their ends are all found before the first is read: none waits for the one before it.
fn short_numbers(window: &[u8; WINDOW], each: &mut impl FnMut(u32)) -> usize {
    let mut ends = marks::of_no_digits(window);
    let mut start = 0;
    while ends != 0 {
        let end = ends.trailing_zeros() as usize;
        ends &= ends - 1;
        let length = end - start;
        let Some(word) = window[start..].first_chunk() else { break };
        let has_needless_zero = length > 1 && word[0] == b'0';
        if !(1..=7).contains(&length) || window[end] != b',' || has_needless_zero {
            break;
        }
        each(short_number(*word, length));
        start = end + 1;
        if window.get(start) == Some(&b' ') {
            ends &= ends - 1;
            start += 1;
        }
    }
    start
}

/// The value of the first one to seven bytes, which are digits: pairs, fours and all eight are added up.
const fn short_number(word: [u8; 8], length: usize) -> u32 {
    // The digits move to the high end, zeros before them.
    let digits = (u64::from_le_bytes(word) & 0x0f0f_0f0f_0f0f_0f0f) << (64 - length * 8);
    let pairs = (digits * 10 + (digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    (fours * 10_000 + (fours >> 32)) as u32
}

#[cfg(test)]
mod tests {
    use super::{Scanner, WINDOW, short_number, short_numbers};

    #[test]
    fn short_numbers_are_read_as_the_standard_library_does() {
        let numbers = (0..2_000).chain([9_999, 10_000, 99_999, 128_255, 999_999, 1_000_000, 9_999_999]);
        for n in numbers {
            let text = format!("{n},1234567");
            assert_eq!(short_number(*text.as_bytes().first_chunk().unwrap(), n.to_string().len()), n);
        }
    }

    #[test]
    fn a_window_ends_before_the_first_thing_that_is_odd() {
        for odd in
            ["12345678,", "01,", "-1,", "x", "1.5,", "1e5,", ",", "\"1\",", "[1],", "2 ,", " 3,", "4\n,", "é"]
        {
            let mut text = format!("5, 66,777,{odd}").into_bytes();
            text.resize(WINDOW, b'9');
            let mut ids = Vec::new();
            let read = short_numbers(text.first_chunk().unwrap(), &mut |id| ids.push(id));
            // A blank behind a comma belongs to the comma.
            let blank = usize::from(odd.starts_with(' '));
            let more = if odd == " 3," { &[5, 66, 777, 3][..] } else { &[5, 66, 777] };
            assert_eq!((&*ids, read), (more, if blank == 1 { 13 } else { 10 }), "{odd}");
        }
    }

    #[test]
    fn ids_are_read_however_they_are_spaced_and_odd_ones_are_the_greatest() {
        let ids = |text: &str| {
            let mut ids = Vec::new();
            let mut s = Scanner::new(text.as_bytes());
            s.array(|s| s.token_ids(|id| ids.push(id))).and_then(|()| s.end()).map(|()| ids)
        };
        for text in
            ["[1,22,333,4444444,55555555,4294967294]", " [ 1 , 22\n,\t333,  4444444, 55555555 ,4294967294 ] "]
        {
            assert_eq!(ids(text).unwrap(), [1, 22, 333, 4_444_444, 55_555_555, 4_294_967_294], "{text}");
        }
        let many: Vec<u32> = (0..500).map(|n| n * n * 37 % 150_000).collect();
        for comma in [",", ", ", " ,", ",  ", ",\n"] {
            let list: Vec<String> = many.iter().map(u32::to_string).collect();
            assert_eq!(ids(&format!("[{}]", list.join(comma))).unwrap(), many, "{comma:?}");
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
