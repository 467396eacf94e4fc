//! The scanner beside serde_json, the naive model; for unit tests and for the fuzzer, which includes this file.

use serde_json::value::RawValue;

use super::{BodyError, Scanner, unescape};

/// A raw key and a raw value.
pub(super) type Member<'a> = (&'a [u8], &'a [u8]);

/// Members of the outermost object.
pub(super) fn members(text: &[u8]) -> Result<Vec<Member<'_>>, BodyError> {
    let mut found = Vec::new();
    let mut s = Scanner::new(text);
    s.object(|s, key| {
        found.push((key, s.skip()?));
        Ok(())
    })?;
    s.end()?;
    Ok(found)
}

/// The same members as serde_json sees them: key unescaped, value raw. `None` if it refuses.
fn model(text: &[u8]) -> Option<Vec<(String, String)>> {
    struct Members;
    impl<'de> serde::de::Visitor<'de> for Members {
        type Value = Vec<(String, String)>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut all = Vec::new();
            while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
                all.push((key, value.get().to_owned()));
            }
            Ok(all)
        }
    }
    let mut de = serde_json::Deserializer::from_slice(text);
    let found = serde::Deserializer::deserialize_map(&mut de, Members).ok()?;
    de.end().ok()?;
    Some(found)
}

/// How the scanner and serde_json differ over a text, if they do where they must not.
pub(super) fn differs(text: &[u8]) -> Option<String> {
    let shown = || String::from_utf8_lossy(text).into_owned();
    let ours = members(text);
    if ours.is_err() && serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(text).is_ok() {
        return Some(format!("serde_json accepts what we refuse: {:?}", shown()));
    }
    let (Ok(ours), true) = (ours, std::str::from_utf8(text).is_ok()) else { return None };
    let ours: Vec<_> =
        ours.iter().map(|(k, v)| (unescape(k), String::from_utf8_lossy(v).into_owned())).collect();
    match model(text) {
        Some(theirs) => (ours != theirs).then(|| format!("{ours:?} is not {theirs:?}")),
        // A lone surrogate in a key is the one thing serde_json refuses here that we pass on.
        None if ours.iter().any(|(key, _)| key.contains('\u{fffd}')) => None,
        None => Some(format!("we accept what serde_json refuses: {:?}", shown())),
    }
}
