//! The files of `fixtures/`, as they are.

/// A request of `fixtures/http`, byte for byte.
///
/// # Panics
/// There is no such file, or it is no text.
#[must_use]
#[track_caller]
pub fn http(name: &str) -> String {
    let path = format!("{}/fixtures/http/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

/// A text of `fixtures/metrics`.
///
/// # Panics
/// There is no such file, or it is no text.
#[must_use]
#[track_caller]
pub fn metrics(name: &str) -> String {
    let path = format!("{}/fixtures/metrics/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

/// The bytes that hex digits stand for.
///
/// # Panics
/// They are none.
#[must_use]
#[track_caller]
pub fn unhex(digits: &str) -> Vec<u8> {
    let pairs = (0..digits.len()).step_by(2);
    pairs.map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}
