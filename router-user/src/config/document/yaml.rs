//! YAML as a tree: one document, no aliases (a few of them write a text of any length), no tags.

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span};

use super::{DEPTH_MAX, Node, SyntaxError, Value};

pub(super) fn parse(text: &str) -> Result<Node, SyntaxError> {
    let mut events = Events(Parser::new_from_str(text));
    let mut root = Node { line: None, value: Value::Null };
    let mut has_document = false;
    loop {
        let (event, line) = events.next()?;
        match event {
            Event::StreamStart | Event::DocumentEnd => {}
            Event::StreamEnd => return Ok(root),
            Event::DocumentStart(..) if !has_document => has_document = true,
            Event::DocumentStart(..) => {
                return Err(SyntaxError::at(line, "a second document begins here; one is read"));
            }
            event => root = events.node(event, line, 0)?,
        }
    }
}

struct Events<'t>(Parser<'t, granit_parser::StrInput<'t>>);

impl<'t> Events<'t> {
    fn next(&mut self) -> Result<(Event<'t>, usize), SyntaxError> {
        let next: Option<Result<(Event<'t>, Span), ScanError>> = self.0.next_event();
        match next {
            Some(Ok((event, span))) => Ok((event, span.start.line())),
            Some(Err(e)) => Err(SyntaxError::at(e.marker().line(), e.info())),
            None => Ok((Event::StreamEnd, 1)),
        }
    }

    /// The node that an event begins, to its end.
    fn node(&mut self, event: Event<'t>, line: usize, depth: usize) -> Result<Node, SyntaxError> {
        let value = match event {
            Event::SequenceStart(..) | Event::MappingStart(..) if depth == DEPTH_MAX => {
                return Err(SyntaxError::too_deep(Some(line)));
            }
            Event::Scalar(.., Some(_))
            | Event::SequenceStart(.., Some(_))
            | Event::MappingStart(.., Some(_)) => {
                return Err(SyntaxError::at(line, "tags are not read"));
            }
            Event::Scalar(text, ScalarStyle::Plain, ..) if ["", "~", "null"].contains(&&*text) => Value::Null,
            Event::Scalar(text, ..) => Value::Text(text.into_owned()),
            Event::SequenceStart(..) => Value::List(self.list(depth + 1)?),
            Event::MappingStart(..) => Value::Table(self.table(depth + 1)?),
            Event::Alias(_) => {
                return Err(SyntaxError::at(line, "aliases are not read; write the value out"));
            }
            other => return Err(SyntaxError::at(line, format!("unexpected {other:?}"))),
        };
        Ok(Node { line: Some(line), value })
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>, SyntaxError> {
        let mut all = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(all),
                (event, line) => all.push(self.node(event, line, depth)?),
            }
        }
    }

    fn table(&mut self, depth: usize) -> Result<Vec<(String, Node)>, SyntaxError> {
        let mut all = Vec::new();
        loop {
            let key = match self.next()? {
                (Event::MappingEnd, _) => return Ok(all),
                (Event::Scalar(key, ..), _) => key.into_owned(),
                (_, line) => return Err(SyntaxError::at(line, "a key must be a text")),
            };
            let (event, line) = self.next()?;
            all.push((key, self.node(event, line, depth)?));
        }
    }
}
