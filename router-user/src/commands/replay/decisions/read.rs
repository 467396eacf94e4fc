//! The lines of a file of decision records, one at a time and each of bounded length, so that a file may be of any
//! size. What is no record is passed over and told, as the last line of a router that was killed may be cut.

use std::io::{self, BufRead, ErrorKind};

use crate::decisions::Line;

/// A longer line is no record: one of 256 candidates with long URLs has a tenth.
pub(super) const LINE_BYTES_MAX: usize = 1 << 20;

/// What a line is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Item {
    /// A decision.
    Decision(Box<Line>),
    /// Too long, or no decision record.
    Unreadable,
}

/// The lines of a stream; ends after the first error.
pub(super) struct Lines<R> {
    stream: R,
    /// The line at hand.
    line: Vec<u8>,
    has_failed: bool,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(stream: R) -> Self {
        Self { stream, line: Vec::new(), has_failed: false }
    }

    /// Reads a line into `line`, or passes over one that is too long. `None` at the end, else whether it fitted.
    fn read_line(&mut self) -> io::Result<Option<bool>> {
        self.line.clear();
        let (mut has_begun, mut fits) = (false, true);
        loop {
            let chunk = match self.stream.fill_buf() {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read?,
            };
            if chunk.is_empty() {
                return Ok(has_begun.then_some(fits));
            }
            has_begun = true;
            let end = memchr::memchr(b'\n', chunk);
            let part = &chunk[..end.unwrap_or(chunk.len())];
            fits &= self.line.len() + part.len() <= LINE_BYTES_MAX;
            if fits {
                self.line.extend_from_slice(part);
            }
            let used = part.len() + usize::from(end.is_some());
            self.stream.consume(used);
            if end.is_some() {
                return Ok(Some(fits));
            }
        }
    }
}

impl<R: BufRead> Iterator for Lines<R> {
    type Item = io::Result<Item>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.has_failed {
            match self.read_line() {
                Ok(None) => return None,
                Ok(Some(true)) if self.line.trim_ascii().is_empty() => {}
                Ok(Some(true)) => {
                    let line = serde_json::from_slice(&self.line);
                    return Some(Ok(line.map_or(Item::Unreadable, |line| Item::Decision(Box::new(line)))));
                }
                Ok(Some(false)) => return Some(Ok(Item::Unreadable)),
                Err(error) => {
                    self.has_failed = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::line;
    use super::*;
    use std::io::BufReader;

    fn items(bytes: &[u8]) -> Vec<Item> {
        // A buffer smaller than a line, so that lines come in pieces.
        Lines::new(BufReader::with_capacity(7, bytes)).map(Result::unwrap).collect()
    }

    #[test]
    fn a_line_is_a_decision_or_told_to_be_none() {
        let decision = line(1, Some("r"), &[("a", 10.0), ("b", 20.0)]);
        let json = serde_json::to_string(&decision).unwrap();
        let text = format!("{json}\n\n{{\"id\":1}}\nnonsense\n{json}\n{}", &json[..json.len() / 2]);
        let read = Item::Decision(Box::new(decision));
        let bad = Item::Unreadable;
        assert_eq!(items(text.as_bytes()), [read.clone(), bad.clone(), bad.clone(), read, bad]);
        assert_eq!(items(b"\xff\n"), [Item::Unreadable]);
        assert_eq!(items(b""), []);
    }

    #[test]
    fn a_line_over_the_bound_is_passed_over_and_never_held() {
        let json = serde_json::to_string(&line(2, None, &[("a", 1.0)])).unwrap();
        let long = vec![b'x'; 3 * LINE_BYTES_MAX];
        let text = [&long[..], b"\n", json.as_bytes()].concat();
        let mut lines = Lines::new(BufReader::new(&text[..]));
        assert_eq!(lines.next().unwrap().unwrap(), Item::Unreadable);
        assert!(lines.line.capacity() <= 2 * LINE_BYTES_MAX, "{}", lines.line.capacity());
        assert!(matches!(lines.next().unwrap().unwrap(), Item::Decision(line) if line.id == 2));
    }
}
