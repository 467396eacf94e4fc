//! One sample line behind its name: labels and a value. Any character may stand in a label's value.

/// What follows a name: labels without their braces, and the value.
pub(super) struct Sample<'a> {
    pub(super) labels: &'a [u8],
    pub(super) value: &'a str,
}

/// Reads what follows a name; `None` if it is no sample.
pub(super) fn sample(rest: &[u8]) -> Option<Sample<'_>> {
    let rest = rest.trim_ascii_start();
    let (labels, rest) = match rest.strip_prefix(b"{") {
        Some(inner) => {
            let end = labels_end(inner)?;
            (&inner[..end], &inner[end + 1..])
        }
        None => (&[][..], rest),
    };
    // A timestamp or an exemplar may follow the value.
    let value = rest.trim_ascii_start().split(|b| b.is_ascii_whitespace()).next()?;
    Some(Sample { labels, value: std::str::from_utf8(value).ok()? })
}

impl Sample<'_> {
    /// The value as a count.
    pub(super) fn count(&self) -> Option<u64> {
        let value = self.value.parse::<f64>().ok()?;
        // NaN fails each comparison. The cast is exact: a whole number within u32.
        (value >= 0.0 && value <= f64::from(u32::MAX) && value.fract() == 0.0).then_some(value as u64)
    }

    /// The value as a share; what lies outside 0 to 1 is none.
    pub(super) fn share(&self) -> Option<f64> {
        self.value.parse::<f64>().ok().filter(|v| (0.0..=1.0).contains(v))
    }

    /// The value of a label as a whole number.
    pub(super) fn number(&self, label_name: &str) -> Option<u64> {
        std::str::from_utf8(label(self.labels, label_name)?).ok()?.parse().ok()
    }

    /// Whether a label has this value.
    pub(super) fn is(&self, label_name: &str, value: &str) -> bool {
        label(self.labels, label_name) == Some(value.as_bytes())
    }
}

/// Where the closing brace stands that is not inside quotes.
fn labels_end(labels: &[u8]) -> Option<usize> {
    let mut quoted = false;
    let mut escaped = false;
    labels.iter().position(|&b| {
        let closes = b == b'}' && !quoted;
        quoted ^= b == b'"' && !escaped;
        escaped = b == b'\\' && !escaped;
        closes
    })
}

/// The value of a label, as it is written between its quotes.
pub(super) fn label<'a>(labels: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut rest = labels;
    loop {
        rest = rest.trim_ascii_start();
        let equals = rest.iter().position(|&b| b == b'=')?;
        let key = rest[..equals].trim_ascii_end();
        let value = rest[equals + 1..].trim_ascii_start().strip_prefix(b"\"")?;
        let mut escaped = false;
        let end = value.iter().position(|&b| {
            let closes = b == b'"' && !escaped;
            escaped = b == b'\\' && !escaped;
            closes
        })?;
        if key == name.as_bytes() {
            return Some(&value[..end]);
        }
        rest = value[end + 1..].trim_ascii_start();
        rest = rest.strip_prefix(b",").unwrap_or(rest);
    }
}
