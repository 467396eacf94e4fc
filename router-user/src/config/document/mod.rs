//! A document in any of three notations as one tree, with the lines its nodes begin at where the parser tells them.
//!
//! It knows no key. Scalars stay as they were written, so that a name like `1.10` does not become a number that is
//! written otherwise. Pure; texts are bounded by who reads them, depth is bounded here. Invariant: no text panics.

mod json;
mod toml;
mod yaml;

use std::path::Path;

/// Depth of lists and tables in each other at most: what is read here needs four.
const DEPTH_MAX: usize = 16;

/// How a document is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notation {
    /// TOML 1.1.
    Toml,
    /// JSON. It tells lines of syntax errors only.
    Json,
    /// YAML 1.2, one document, without aliases.
    Yaml,
}

impl Notation {
    /// The notation of a file, by the end of its name: `.toml`, `.json`, `.yaml`, `.yml`.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "toml" => Some(Self::Toml),
            "json" => Some(Self::Json),
            "yaml" | "yml" => Some(Self::Yaml),
            _ => None,
        }
    }

    /// Reads a document.
    ///
    /// # Errors
    /// Text that is none.
    pub fn parse(self, text: &str) -> Result<Node, SyntaxError> {
        match self {
            Self::Toml => toml::parse(text),
            Self::Json => json::parse(text),
            Self::Yaml => yaml::parse(text),
        }
    }
}

/// A value and where it begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Its line, from 1, if the parser told it.
    pub line: Option<usize>,
    /// The value.
    pub value: Value,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// None: JSON's `null`, YAML's `~` or nothing.
    Null,
    /// A truth value; YAML's are texts.
    Bool(bool),
    /// A number, as it would be written; YAML's are texts.
    Number(String),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// Values by key, in the order of the document (TOML: of the keys); keys may come twice.
    Table(Vec<(String, Node)>),
}

impl Value {
    /// What it is, for messages.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "a truth value",
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
        }
    }
}

/// A text that is no document of its notation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// The line, from 1, if the parser told it.
    pub line: Option<usize>,
    /// What is wrong.
    pub message: String,
}

impl SyntaxError {
    fn at(line: usize, message: impl Into<String>) -> Self {
        Self { line: Some(line), message: message.into() }
    }

    fn too_deep(line: Option<usize>) -> Self {
        Self { line, message: format!("lists and tables lie more than {DEPTH_MAX} deep in each other") }
    }
}

#[cfg(test)]
mod tests {
    use super::{Node, Notation, Value};
    use std::path::Path;

    const ALL: [Notation; 3] = [Notation::Toml, Notation::Json, Notation::Yaml];

    /// The tree without lines, in one short form.
    fn shape(node: &Node) -> String {
        match &node.value {
            Value::Null => "~".to_owned(),
            Value::Bool(b) => b.to_string(),
            Value::Number(n) => n.clone(),
            Value::Text(t) => format!("{t:?}"),
            Value::List(all) => format!("[{}]", all.iter().map(shape).collect::<Vec<_>>().join(" ")),
            Value::Table(all) => {
                let pair = |(key, node): &(String, Node)| format!("{key}={}", shape(node));
                format!("{{{}}}", all.iter().map(pair).collect::<Vec<_>>().join(" "))
            }
        }
    }

    fn read(notation: Notation, text: &str) -> String {
        match notation.parse(text) {
            Ok(node) => shape(&node),
            Err(e) => format!("{:?}: {}", e.line, e.message),
        }
    }

    #[test]
    fn the_end_of_the_name_tells_the_notation() {
        for (name, notation) in [
            ("/a/b.toml", Some(Notation::Toml)),
            ("b.json", Some(Notation::Json)),
            ("b.yaml", Some(Notation::Yaml)),
            ("b.x.yml", Some(Notation::Yaml)),
            ("b", None),
            ("b.txt", None),
            (".toml", None),
        ] {
            assert_eq!(Notation::of(Path::new(name)), notation, "{name}");
        }
    }

    #[test]
    fn one_tree_of_three_notations() {
        for (notation, text, tree) in [
            (Notation::Toml, "a = [\"x\", {b = 1.10}]\n", r#"{a=["x" {b=1.10}]}"#),
            (Notation::Json, r#"{"a": ["x", {"b": 2.5}]}"#, r#"{a=["x" {b=2.5}]}"#),
            (Notation::Yaml, "a:\n- x\n- b: 1.10\n", r#"{a=["x" {b="1.10"}]}"#),
            (Notation::Yaml, "a: [x, {b: 1.10}] # c\n", r#"{a=["x" {b="1.10"}]}"#),
            (Notation::Yaml, "---\n- ~\n- ''\n- on\n- \"~\"\n-\n", r#"[~ "" "on" "~" ~]"#),
            (Notation::Json, "[null, true, -3, \"\\u00e9\"]", r#"[~ true -3 "é"]"#),
            (Notation::Json, r#"{"a": 1, "a": 2}"#, "{a=1 a=2}"),
            (Notation::Yaml, "", "~"),
            (Notation::Toml, "", "{}"),
        ] {
            assert_eq!(read(notation, text), tree, "{text}");
        }
    }

    #[test]
    fn nodes_know_their_lines_where_the_parser_tells() {
        let line_of_b = |notation: Notation, text: &str| match notation.parse(text).unwrap().value {
            Value::Table(all) => all.into_iter().find(|(key, _)| key == "b").unwrap().1.line,
            other => panic!("{other:?}"),
        };
        assert_eq!(line_of_b(Notation::Toml, "a = 1\n\nb = 2\n"), Some(3));
        assert_eq!(line_of_b(Notation::Yaml, "a: 1\n\nb: 2\n"), Some(3));
        assert_eq!(line_of_b(Notation::Json, "{\"a\": 1,\n\n\"b\": 2}\n"), None);
    }

    #[test]
    fn wrong_texts_are_errors_with_lines() {
        for (notation, text, start) in [
            (Notation::Toml, "\na = \n", "Some(2): "),
            (Notation::Json, "[1,\n2", "Some(2): "),
            (Notation::Json, "", "Some(1): "),
            (Notation::Json, "[1] [2]", "Some(1): "),
            (Notation::Yaml, "a:\n  - x\n b: 1\n", "Some(3): "),
            (Notation::Yaml, "a: &x 1\nb: *x\n", "Some(2): aliases"),
            (Notation::Yaml, "a: 1\n---\nb: 1\n", "Some(2): "),
            (Notation::Yaml, "? [a]\n: 1\n", "Some(1): "),
            (Notation::Yaml, "a: !!int x\n", "Some(1): tags"),
        ] {
            let got = read(notation, text);
            assert!(got.starts_with(start), "{text:?}: {got}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        for notation in [Notation::Json, Notation::Yaml] {
            for depth in [17, 100, 10_000] {
                let text = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
                assert!(notation.parse(&text).is_err(), "{notation:?}, {depth}");
            }
            assert!(notation.parse(&format!("{}{}", "[".repeat(16), "]".repeat(16))).is_ok());
        }
        assert!(Notation::Toml.parse(&format!("a = {}{}", "[".repeat(17), "]".repeat(17))).is_err());
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(500))]
        #[test]
        fn no_text_panics(text in "([\\[\\]{}:,\"'|>&*!?%@`~#= \n\t\r.\\\\x0-]|- |\\PC|---|\u{feff}|<<){0,60}") {
            for notation in ALL {
                let _any = notation.parse(&text);
            }
        }
    }
}
