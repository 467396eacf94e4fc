//! Numbers and tables for people.

/// A number of tokens with at most one decimal, and commas.
pub(super) fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    let (sign, text) = text.strip_prefix('-').map_or(("", text.as_str()), |text| ("-", text));
    let (whole, decimal) = text.split_once('.').unwrap_or((text, "0"));
    let mut grouped = String::from(sign);
    for (at, digit) in whole.char_indices() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if decimal == "0" { grouped } else { format!("{grouped}.{decimal}") }
}

/// Requests; foreign ones fade, so there are parts of them.
pub(super) fn count(requests: f64) -> String {
    let text = format!("{requests:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// What nobody knows is said to be unknown.
pub(super) fn or_unknown<T>(value: Option<T>, say: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "unknown".to_owned(), say)
}

/// Lines of cells below their heads: the first column to the left, the others to the right.
pub(super) fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain(heads.get(column).map(|head| head.chars().count())).max().unwrap_or(0)
    };
    let heads: Vec<String> = heads.iter().map(|head| (*head).to_owned()).collect();
    let mut text = String::new();
    for row in [&heads].into_iter().chain(rows) {
        let cells = row.iter().enumerate().map(|(column, cell)| match column {
            0 => format!("{cell:<0$}", width(0)),
            _ => format!("  {cell:>0$}", width(column)),
        });
        text += cells.collect::<String>().trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas_and_one_decimal_where_it_says_something() {
        for (value, want) in
            [(0.0, "0"), (999.96, "1,000"), (1234.5, "1,234.5"), (-4000.0, "-4,000"), (1e6, "1,000,000")]
        {
            assert_eq!(number(value), want);
        }
        assert_eq!(number(f64::NAN), "NaN");
        assert_eq!([count(2.0), count(2.5), count(10.0), count(0.333)], ["2", "2.5", "10", "0.33"]);
    }

    #[test]
    fn columns_are_as_wide_as_their_widest() {
        let rows = [vec!["a".to_owned(), "1".to_owned()], vec!["bcd".to_owned(), "12345".to_owned()]];
        assert_eq!(table(&["x", "n"], &rows), "x        n\na        1\nbcd  12345\n");
    }
}
