//! What the texts of settings mean: numbers, durations, sizes, names. Pure; messages say what is allowed.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

/// A whole number within bounds.
///
/// # Errors
/// What is wrong with the text.
pub fn integer(text: &str, bounds: RangeInclusive<u64>) -> Result<u64, String> {
    let (low, high) = (bounds.start(), bounds.end());
    text.parse().ok().filter(|n| bounds.contains(n)).ok_or_else(|| match *high {
        u64::MAX => format!("`{text}` is no whole number from {low} on"),
        high => format!("`{text}` is no whole number from {low} to {high}"),
    })
}

/// A duration like `250ms`, `1s`, `1.5s`, `2m`, `1h`, within bounds. A bare `0` needs no unit.
///
/// # Errors
/// What is wrong with the text.
pub fn duration(text: &str, bounds: RangeInclusive<Duration>) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "" if number == "0" => 1.0,
        "" => return Err(format!("`{text}` lacks a unit (ms, s, m, h)")),
        _ => return Err(format!("`{text}` is no duration like 250ms, 1s, 2m, 1h")),
    };
    let plain = number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let value = number.parse::<f64>().ok().filter(|_| plain).map(|n| n * seconds);
    let value = value.and_then(|s| Duration::try_from_secs_f64(s).ok());
    let value = value.ok_or_else(|| format!("`{text}` is no duration like 250ms, 1s, 2m, 1h"))?;
    if bounds.contains(&value) {
        return Ok(value);
    }
    Err(format!("`{text}` is not between {:?} and {:?}", bounds.start(), bounds.end()))
}

/// Statuses after which a request may be sent to another engine: a list like `429,503`, or `none`.
///
/// # Errors
/// What is wrong with the text.
pub fn retry_statuses(text: &str) -> Result<Vec<u16>, String> {
    const ALLOWED: [u16; 5] = [429, 500, 502, 503, 504];
    if text == "none" {
        return Ok(Vec::new());
    }
    let allowed = |item: &str| item.trim().parse().ok().filter(|status| ALLOWED.contains(status));
    let all: Option<Vec<u16>> = text.split(',').map(allowed).collect();
    all.ok_or_else(|| format!("`{text}` is no list of 429, 500, 502, 503, 504, nor none"))
}

/// An address with or without a port, like `10.0.0.10`, `[::1]:5300`.
///
/// # Errors
/// What is wrong with the text.
pub fn ip_or_socket(text: &str, port: u16) -> Result<SocketAddr, String> {
    let ip = || text.trim_matches(['[', ']']).parse().ok().map(|ip: IpAddr| SocketAddr::new(ip, port));
    let addr = text.parse().ok().or_else(ip).filter(|addr: &SocketAddr| addr.port() != 0);
    addr.ok_or_else(|| format!("`{text}` is no address like 10.0.0.10 or 127.0.0.1:5300"))
}

/// Statuses of HTTP like `200`, with this between them.
///
/// # Errors
/// What is wrong with the text.
pub fn statuses(text: &str, between: char) -> Result<Vec<u16>, String> {
    let read = |item: &str| match item.trim().parse() {
        Ok(status) if (200..600).contains(&status) => Ok(status),
        _ => Err(format!("`{item}` is no status from 200 to 599")),
    };
    text.split(between).map(read).collect()
}

/// A number of bytes like `4096`, `64KiB`, `1MiB`, `1GiB`, within bounds.
///
/// # Errors
/// What is wrong with the text.
pub fn bytes(text: &str, bounds: RangeInclusive<u64>) -> Result<u64, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let shift = match unit.trim_start() {
        "" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return Err(format!("`{text}` is no size like 4096, 64KiB, 1MiB, 1GiB")),
    };
    let value = number.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    value
        .filter(|v| bounds.contains(v))
        .ok_or_else(|| format!("`{text}` is not between {} and {} bytes", bounds.start(), bounds.end()))
}

/// A number within bounds, fractions allowed.
///
/// # Errors
/// What is wrong with the text.
pub fn decimal(text: &str, bounds: RangeInclusive<f64>) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|v| bounds.contains(v));
    value.ok_or_else(|| format!("`{text}` is no number from {} to {}", bounds.start(), bounds.end()))
}

/// One of several names.
///
/// # Errors
/// Which names there are.
pub fn choice<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, String> {
    choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        format!("`{text}` is none of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::{bytes, choice, decimal, duration, integer, ip_or_socket};
    use std::time::Duration;

    #[test]
    fn durations_have_units() {
        let all = Duration::ZERO..=Duration::from_secs(7200);
        for (text, ms) in
            [("250ms", 250), ("1s", 1000), ("1.5s", 1500), ("2m", 120_000), ("1h", 3_600_000), ("0", 0)]
        {
            assert_eq!(duration(text, all.clone()), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in
            ["", "1", "s", "-1s", "1 s", "1d", "1e3s", "nans", "infs", "3h", "1s1", "1.2.3s", "99999999999h"]
        {
            assert!(duration(text, all.clone()).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_have_binary_units_or_none() {
        for (text, value) in [("1", 1), ("64KiB", 65_536), ("2 MiB", 2 << 20), ("1GiB", 1 << 30)] {
            assert_eq!(bytes(text, 1..=1 << 40), Ok(value), "{text}");
        }
        for text in ["", "0", "-1", "1MB", "1.5MiB", "KiB", "18446744073709551615TiB", "2TiB"] {
            assert!(bytes(text, 1..=1 << 40).is_err(), "{text}");
        }
    }

    #[test]
    fn a_port_may_be_left_out() {
        for (text, addr) in [
            ("10.0.0.10", "10.0.0.10:53"),
            ("127.0.0.1:5300", "127.0.0.1:5300"),
            ("::1", "[::1]:53"),
            ("[::1]", "[::1]:53"),
            ("[::1]:5300", "[::1]:5300"),
        ] {
            assert_eq!(ip_or_socket(text, 53), Ok(addr.parse().unwrap()), "{text}");
        }
        for text in ["", "dns.example", "10.0.0.10:0", "10.0.0.10:x", "1.2.3"] {
            assert!(ip_or_socket(text, 53).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_stay_within_bounds() {
        assert_eq!(integer("7", 1..=7), Ok(7));
        for text in ["0", "8", "-1", "x", "", "7.0", "1e1"] {
            assert!(integer(text, 1..=7).is_err(), "{text}");
        }
        assert_eq!(decimal("0.5", 0.01..=100.0), Ok(0.5));
        for text in ["0", "NaN", "inf", "-1", "x"] {
            assert!(decimal(text, 0.01..=100.0).is_err(), "{text}");
        }
    }

    #[test]
    fn a_wrong_name_is_answered_with_the_right_ones() {
        assert_eq!(choice("b", &[("a", 1), ("b", 2)]), Ok(2));
        assert_eq!(choice("c", &[("a", 1), ("b", 2)]), Err("`c` is none of a, b".to_owned()));
    }
}
