//! Azure's form: a CSV line a request, with arrival and lengths; nothing is known of common prefixes, so none is
//! assumed.

use super::{Call, Session};

/// The header by which the form is known.
pub(super) const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

/// One id for a prompt of any length.
const UNIT_TOKENS: u32 = 1 << 30;

/// Rows are told apart from the small ids of other forms.
const ID_BASE: u64 = 1 << 39;

/// Days before 2000 begins, by [`days`]: near enough for seconds to keep their fractions.
const DAYS_2000: i64 = 730_426;

const DAY_SECONDS: f64 = 86_400.0;

/// The request of a line, and its time in seconds of some era. `row` names its prompt.
pub(super) fn parse(line: &str, row: u64) -> Option<Session> {
    let mut fields = line.trim_end().split(',');
    let start_seconds = Some(seconds(fields.next()?)?);
    let (prompt, output) = (fields.next()?.parse::<u32>().ok()?, fields.next()?.parse::<u32>().ok()?);
    let call = Call {
        ids: [ID_BASE | row].into(),
        unit_tokens: UNIT_TOKENS,
        prompt_tokens: prompt.max(1),
        output_tokens: output.max(1),
        gap_seconds: 0.0,
    };
    fields.next().is_none().then(|| Session { start_seconds, calls: vec![call], is_one_client: false })
}

/// Seconds of `2023-11-16 18:17:03.9799600`, an optional zone ignored.
fn seconds(text: &str) -> Option<f64> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let mut date = date.splitn(3, '-').map(str::parse::<i64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    let time = time.split(['+', 'Z']).next()?;
    let mut time = time.splitn(3, ':').map(str::parse::<f64>);
    let (hour, minute, second) = (time.next()?.ok()?, time.next()?.ok()?, time.next()?.ok()?);
    Some((days(year, month, day) - DAYS_2000) as f64 * DAY_SECONDS + hour * 3600.0 + minute * 60.0 + second)
}

/// Days since an origin, in the Gregorian calendar: years begin in March, so that a leap day ends one.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month < 3 { (year - 1, month + 9) } else { (year, month - 3) };
    365 * year + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + (153 * month + 2) / 5
        + day
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_time_and_lengths_and_a_prompt_of_its_own() {
        let a = parse("2023-11-16 18:17:03.9799600,4808,10", 7).unwrap();
        let b = parse("2023-11-16 18:17:04.0319600,3180,8\r", 8).unwrap();
        assert!((b.start_seconds.unwrap() - a.start_seconds.unwrap() - 0.052).abs() < 1e-6);
        assert_eq!((a.calls[0].prompt_tokens, a.calls[0].output_tokens), (4808, 10));
        assert_ne!(a.calls[0].ids, b.calls[0].ids);
        for bad in ["", "2023-11-16 18:17:03,1", "yesterday,1,1", "2023-11-16 18:17:03,1,1,1"] {
            assert_eq!(parse(bad, 0), None, "{bad}");
        }
    }

    #[test]
    fn days_count_through_leap_years() {
        assert_eq!(days(2024, 3, 1) - days(2024, 2, 28), 2);
        assert_eq!(days(2023, 3, 1) - days(2023, 2, 28), 1);
        assert_eq!(days(2024, 1, 1) - days(2023, 1, 1), 365);
    }
}
