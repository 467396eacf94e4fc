//! Where in a stream of server-sent events a comment may be put. Pure.
//!
//! Invariant: a client that is given [`COMMENT`] at such places gets the same events as without.

/// Whether a stream of events is between two of them: where a comment may be put.
#[derive(Debug)]
pub(super) struct Boundary([u8; 4]);

/// A comment of server-sent events.
pub(super) const COMMENT: &[u8] = b": keep-alive\n\n";

impl Boundary {
    /// Nothing was sent.
    pub(super) const START: Self = Self(*b"\n\n\n\n");

    /// These bytes passed.
    pub(super) fn saw(&mut self, data: &[u8]) {
        let at = data.len().saturating_sub(4);
        let last = &data[at..];
        self.0.rotate_left(last.len());
        self.0[4 - last.len()..].copy_from_slice(last);
    }

    /// It is between two events.
    pub(super) const fn is_here(&self) -> bool {
        matches!(self.0, [_, _, b'\n', b'\n'] | [_, _, b'\r', b'\r'] | [b'\r', b'\n', b'\r', b'\n'])
    }
}

#[cfg(test)]
mod tests {
    use super::Boundary;

    #[test]
    fn comments_are_put_between_events_only() {
        for (frames, here) in [
            (&[][..], true),
            (&["data: x\n\n"], true),
            (&["data: x\n", "\n"], true),
            (&["data: x\r\n\r", "\n"], true),
            (&["data: x\n\n", "d"], false),
            (&["data: x\n"], false),
            (&["data: x\r\n"], false),
            (&["data: x", "\r\n"], false),
            (&["event: e\ndata: x\n"], false),
        ] {
            let mut boundary = Boundary::START;
            frames.iter().for_each(|frame: &&str| boundary.saw(frame.as_bytes()));
            assert_eq!(boundary.is_here(), here, "{frames:?}");
        }
    }
}
