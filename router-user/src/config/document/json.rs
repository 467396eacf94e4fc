//! JSON as a tree. serde_json keeps its nodes' places to itself; it tells those of its errors.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::{DEPTH_MAX, Node, SyntaxError, Value};

pub(super) fn parse(text: &str) -> Result<Node, SyntaxError> {
    let read: Result<Value, _> = serde_json::from_str(text);
    let value = read.map_err(|e| SyntaxError::at(e.line().max(1), e.to_string()))?;
    if depth(&value) > DEPTH_MAX {
        return Err(SyntaxError::too_deep(None));
    }
    Ok(node(value))
}

const fn node(value: Value) -> Node {
    Node { line: None, value }
}

/// serde_json itself goes no deeper than 128.
fn depth(value: &Value) -> usize {
    let below = match value {
        Value::List(all) => all.iter().map(|one| depth(&one.value)).max(),
        Value::Table(all) => all.iter().map(|(_, one)| depth(&one.value)).max(),
        _ => return 0,
    };
    1 + below.unwrap_or(0)
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Tree)
    }
}

struct Tree;

impl<'de> Visitor<'de> for Tree {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, b: bool) -> Result<Value, E> {
        Ok(Value::Bool(b))
    }

    fn visit_u64<E: Error>(self, n: u64) -> Result<Value, E> {
        Ok(Value::Number(n.to_string()))
    }

    fn visit_i64<E: Error>(self, n: i64) -> Result<Value, E> {
        Ok(Value::Number(n.to_string()))
    }

    fn visit_f64<E: Error>(self, n: f64) -> Result<Value, E> {
        Ok(Value::Number(n.to_string()))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(value) = access.next_element()? {
            all.push(node(value));
        }
        Ok(Value::List(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some((key, value)) = access.next_entry()? {
            all.push((key, node(value)));
        }
        Ok(Value::Table(all))
    }
}
