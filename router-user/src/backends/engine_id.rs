//! An engine's name for machines: what `?id=` of the vLLM production stack asks for.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

/// A hash of the engine's URL as 16 hex digits: the same in every router and after every restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EngineId(u64);

impl EngineId {
    /// Of an engine's URL, as metrics and `/status` have it.
    #[must_use]
    pub fn of(url: &str) -> Self {
        Self(xxh3_64(url.as_bytes()))
    }

    /// Reads what [`fmt::Display`] writes; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_one = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
        u64::from_str_radix(text, 16).ok().filter(|_| is_one).map(Self)
    }
}

impl fmt::Display for EngineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::EngineId;

    #[test]
    fn an_id_is_16_digits_that_never_change() {
        let id = EngineId::of("http://10.0.0.1:8000");
        assert_eq!(id.to_string(), "f6bcaf4e2b6877e3", "people keep it in scripts");
        assert_eq!(EngineId::parse(&id.to_string()), Some(id));
        for text in ["", "0", "+000000000000001", "00000000000000001", "000000000000000g"] {
            assert_eq!(EngineId::parse(text), None, "{text}");
        }
    }
}
