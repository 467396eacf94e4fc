//! TOML as a tree.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::super::file::line;
use super::{DEPTH_MAX, Node, SyntaxError, Value};

pub(super) fn parse(text: &str) -> Result<Node, SyntaxError> {
    let table = DeTable::parse(text).map_err(|e| {
        let at = e.span().map_or(0, |span| span.start);
        SyntaxError::at(line(text, at), e.message())
    })?;
    let value = table_of(text, table.get_ref(), 0)?;
    Ok(Node { line: Some(line(text, table.span().start)), value })
}

fn table_of(text: &str, table: &DeTable<'_>, depth: usize) -> Result<Value, SyntaxError> {
    let pairs =
        table.iter().map(|(key, value)| Ok((key.get_ref().to_string(), node(text, value, depth + 1)?)));
    Ok(Value::Table(pairs.collect::<Result<_, _>>()?))
}

fn node(text: &str, spanned: &Spanned<DeValue<'_>>, depth: usize) -> Result<Node, SyntaxError> {
    let line = line(text, spanned.span().start);
    let value = match spanned.get_ref() {
        DeValue::Array(_) | DeValue::Table(_) if depth == DEPTH_MAX => {
            return Err(SyntaxError::too_deep(Some(line)));
        }
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(n) if n.radix() == 10 => Value::Number(n.as_str().to_owned()),
        DeValue::Float(n) => Value::Number(n.as_str().to_owned()),
        DeValue::Boolean(b) => Value::Bool(*b),
        DeValue::Array(all) => {
            Value::List(all.iter().map(|one| node(text, one, depth + 1)).collect::<Result<_, _>>()?)
        }
        DeValue::Table(table) => table_of(text, table, depth)?,
        other => {
            return Err(SyntaxError::at(
                line,
                format!("a value of kind {} is not allowed here", other.type_str()),
            ));
        }
    };
    Ok(Node { line: Some(line), value })
}
