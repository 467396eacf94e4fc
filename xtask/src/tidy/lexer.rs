//! Reads the paths that a Rust source names, well enough for rules about who may use what.
//!
//! Not a parser: it drops comments and literals, unfolds `use` trees, and takes every other `a::b` as it stands.
//! Paths that a macro builds or that go through `super` are not seen. Invariant: a path that is written out is
//! found, whether imported or used in place.

/// A path as written, `::` between its parts, and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) path: String,
    pub(super) line: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Token {
    text: String,
    line: usize,
}

/// The paths of a source's program text: what is before its `#[cfg(test)]` module.
pub(super) fn paths(source: &str) -> Vec<Named> {
    let tokens = tokens(program_text(source));
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at].text == "use" {
            at = use_tree(&tokens, at + 1, "", &mut found);
        } else if is_ident(&tokens[at].text) {
            let (path, next) = plain_path(&tokens, at);
            if path.contains("::") {
                found.push(Named { path, line: tokens[at].line });
            }
            at = next;
        } else {
            at += 1;
        }
    }
    found
}

/// The source up to its test module; the whole where there is none.
pub(super) fn program_text(source: &str) -> &str {
    source.find("\n#[cfg(test)]\nmod ").map_or(source, |end| &source[..end])
}

/// `a::b::c` from `at`; returns it and the index after it.
fn plain_path(tokens: &[Token], mut at: usize) -> (String, usize) {
    let mut path = tokens[at].text.clone();
    while at + 2 < tokens.len() && tokens[at + 1].text == "::" && is_ident(&tokens[at + 2].text) {
        at += 2;
        path = format!("{path}::{}", tokens[at].text);
    }
    (path, at + 1)
}

/// One tree of a `use` after its prefix; pushes each leaf and returns the index after the tree.
fn use_tree(tokens: &[Token], mut at: usize, prefix: &str, found: &mut Vec<Named>) -> usize {
    let mut path = prefix.to_owned();
    let line = tokens.get(at).map_or(0, |token| token.line);
    while let Some(token) = tokens.get(at) {
        match token.text.as_str() {
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|token| token.text != "}") {
                    at = use_tree(tokens, at, &path, found);
                    if tokens.get(at).is_some_and(|token| token.text == ",") {
                        at += 1;
                    }
                }
                return at + 1;
            }
            "::" => at += 1,
            // The name it gets here does not matter.
            "as" => at += 2,
            text if is_ident(text) || text == "*" => {
                path = if path.is_empty() { text.to_owned() } else { format!("{path}::{text}") };
                at += 1;
            }
            _ => break,
        }
    }
    found.push(Named { path, line });
    // Always forward, whatever the text: `}` and `,` belong to the caller.
    if tokens.get(at).is_some_and(|token| !matches!(token.text.as_str(), "}" | ",")) { at + 1 } else { at }
}

fn is_ident(text: &str) -> bool {
    text.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Words, `::` and single signs; comments and literals are left out.
fn tokens(source: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = source;
    let mut line = 1;
    while let Some(first) = rest.chars().next() {
        let length = skipped(rest).unwrap_or_else(|| {
            let length = token_length(rest, first);
            if !first.is_whitespace() {
                tokens.push(Token { text: rest[..length].to_owned(), line });
            }
            length
        });
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    tokens
}

fn token_length(rest: &str, first: char) -> usize {
    if is_ident(rest) {
        return rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    }
    if rest.starts_with("::") { 2 } else { first.len_utf8() }
}

/// The length of a comment or literal at the start of `rest`.
fn skipped(rest: &str) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return Some(rest.find("*/").map_or(rest.len(), |end| end + 2));
    }
    if let Some(length) = raw_string(rest) {
        return Some(length);
    }
    if rest.starts_with('"') {
        return Some(quoted(rest, '"'));
    }
    // A character, but not a lifetime: 'a' closes after one character or an escape.
    let mut chars = rest.strip_prefix('\'')?.chars();
    let is_char = matches!((chars.next(), chars.next()), (Some('\\'), _) | (Some(_), Some('\'')));
    is_char.then(|| quoted(rest, '\''))
}

fn quoted(rest: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        if is_escaped {
            is_escaped = false;
        } else if c == '\\' {
            is_escaped = true;
        } else if c == quote {
            return at + 1;
        }
    }
    rest.len()
}

fn raw_string(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix('r').or_else(|| rest.strip_prefix("br"))?;
    let hashes = body.len() - body.trim_start_matches('#').len();
    let opened = rest.len() - body.len() + hashes;
    rest[opened..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    Some(rest[opened + 1..].find(&close).map_or(rest.len(), |end| opened + 1 + end + close.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(source: &str) -> Vec<String> {
        paths(source).into_iter().map(|named| named.path).collect()
    }

    #[test]
    fn a_use_tree_is_unfolded() {
        assert_eq!(
            list("use crate::{a, b::{c as d, e::*}, f};\npub(crate) use std::io;\nfn f() {}"),
            ["crate::a", "crate::b::c", "crate::b::e::*", "crate::f", "std::io"]
        );
    }

    #[test]
    fn a_path_in_place_is_found_with_its_line() {
        let found = paths("fn f() {\n    tokio::spawn(crate::proxy::run());\n}");
        assert_eq!(found[0], Named { path: "tokio::spawn".into(), line: 2 });
        assert_eq!(found[1].path, "crate::proxy::run");
    }

    #[test]
    fn comments_and_literals_name_nothing() {
        let source = "// a::b\n/* c::d */ let x = (\"e::f\", r#\"g::\"h\"#, 'i', b\"j::k\");\nfn f<'a>(x: &'a l::m) {}";
        assert_eq!(list(source), ["l::m"]);
    }

    #[test]
    fn tests_may_use_what_they_like() {
        assert!(list("fn f() {}\n\n#[cfg(test)]\nmod tests {\n    use tokio::net;\n}").is_empty());
    }

    #[test]
    fn broken_text_ends() {
        for source in ["use", "use a::{", "use ;;", "use {{}", "\"open", "r#\"open", "/* open", "'"] {
            paths(source);
        }
    }
}
