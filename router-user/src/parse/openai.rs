//! The shape of an inference request: model, stream, and the prompt as a chain of block hashes.
//!
//! It reads best effort what the OpenAI, Anthropic and engine dialects share and never judges a schema: unknown
//! fields, roles and part types are the engine's business. Of a repeated key the last counts, as engines have it.
//! Prompt text goes into the chain as the bytes of the JSON text; borders are bytes below 0x20, which a JSON string
//! cannot hold, so that no two different prompts give the same bytes.

use router_policy::RequestShape;
use router_policy::prefix::{ChainBuilder, HashKey};

use super::BodyError;
use super::json::{Kind, Scanner, is_text, unescape};

/// Bytes of a model's name kept; a longer one is cut and ends in `…`, so that it matches no configured name.
const MODEL_BYTES_MAX: usize = 1024;

/// Before the tools.
const TOOLS: &[u8] = &[0x01];
/// Before a message's role.
const ROLE: &[u8] = &[0x02];
/// Before each text: a content, a text part, one prompt of a batch.
const TEXT: &[u8] = &[0x03];
/// Before the 16 bytes that stand for a part that is no text.
const PART: &[u8] = &[0x04];
/// Before the tool calls of a message.
const CALLS: &[u8] = &[0x05];

/// Values of the outermost object that matter, as they are written; each is known to be legal JSON.
#[derive(Default)]
struct Fields<'a> {
    model: Option<&'a [u8]>,
    stream: Option<&'a [u8]>,
    tools: Option<&'a [u8]>,
    system: Option<&'a [u8]>,
    messages: Option<&'a [u8]>,
    prompt: Option<&'a [u8]>,
    input: Option<&'a [u8]>,
}

/// Reads the shape of a body; see [`super::shape`].
pub(super) fn shape(body: &[u8], key: &HashKey) -> Result<RequestShape, BodyError> {
    let mut fields = Fields::default();
    let mut scanner = Scanner::new(body);
    scanner.object(|s, name| {
        let value = Some(s.skip()?);
        match () {
            () if is_text(name, "model") => fields.model = value,
            () if is_text(name, "stream") => fields.stream = value,
            () if is_text(name, "tools") => fields.tools = value,
            () if is_text(name, "system") || is_text(name, "instructions") => fields.system = value,
            () if is_text(name, "messages") => fields.messages = value,
            () if is_text(name, "prompt") => fields.prompt = value,
            () if is_text(name, "input") => fields.input = value,
            () => {}
        }
        Ok(())
    })?;
    scanner.end()?;

    let model = fields.model.and_then(model_name);
    let mut prompt = Prompt { chain: ChainBuilder::new(key, model.as_deref().unwrap_or("").as_bytes()), key };
    let shaped = prompt.read(&fields)?;
    let chain = prompt.chain.finish();
    Ok(RequestShape {
        model,
        chain,
        shaped,
        stream: fields.stream == Some(b"true"),
        ..RequestShape::default()
    })
}

/// The model's name; `None` if it is no string or empty: any backend may serve the request.
fn model_name(value: &[u8]) -> Option<Box<str>> {
    let raw = Scanner::new(value).string().ok().filter(|raw| !raw.is_empty())?;
    let kept = &raw[..raw.len().min(MODEL_BYTES_MAX)];
    let mut name = unescape(kept);
    if kept.len() < raw.len() {
        name.push('…');
    }
    Some(name.into())
}

/// A prompt on its way into a chain. Errors cannot occur: what it reads was scanned before; they are passed up all
/// the same, so that no second opinion is needed here.
struct Prompt<'k> {
    chain: ChainBuilder<'k>,
    key: &'k HashKey,
}

impl Prompt<'_> {
    /// Whether there was a prompt to read.
    fn read(&mut self, fields: &Fields<'_>) -> Result<bool, BodyError> {
        if let Some(tools) = fields.tools {
            self.add(TOOLS, tools);
        }
        if let Some(system) = fields.system {
            self.content(system)?;
        }
        match (fields.messages, fields.prompt, fields.input) {
            (Some(messages), ..) => self.messages(messages),
            (None, Some(prompt), _) => self.texts(prompt),
            (None, None, Some(input)) => self.messages(input),
            (None, None, None) => Ok(false),
        }
    }

    fn add(&mut self, border: &[u8], bytes: &[u8]) {
        self.chain.update(border);
        self.chain.update(bytes);
    }

    /// An array of messages; elements that are none (texts or numbers of an embedding) count as they are written.
    fn messages(&mut self, value: &[u8]) -> Result<bool, BodyError> {
        let mut s = Scanner::new(value);
        match s.kind()? {
            Kind::String => self.text(&mut s)?,
            Kind::Array => {
                s.array(|s| if s.kind()? == Kind::Object { self.message(s) } else { self.text(s) })?
            }
            Kind::Object | Kind::Plain => return Ok(false),
        }
        Ok(true)
    }

    /// A prompt, or several, or token ids.
    fn texts(&mut self, value: &[u8]) -> Result<bool, BodyError> {
        let mut s = Scanner::new(value);
        match s.kind()? {
            Kind::String => self.text(&mut s)?,
            Kind::Array => s.array(|s| self.text(s))?,
            Kind::Object | Kind::Plain => return Ok(false),
        }
        Ok(true)
    }

    /// A text; any other value as it is written.
    fn text(&mut self, s: &mut Scanner<'_>) -> Result<(), BodyError> {
        let bytes = if s.kind()? == Kind::String { s.string()? } else { s.skip()? };
        self.add(TEXT, bytes);
        Ok(())
    }

    fn message(&mut self, s: &mut Scanner<'_>) -> Result<(), BodyError> {
        let (mut role, mut content, mut calls) = (None, None, None);
        s.object(|s, name| {
            let value = Some(s.skip()?);
            match () {
                () if is_text(name, "role") => role = value,
                () if is_text(name, "content") => content = value,
                () if is_text(name, "tool_calls") => calls = value,
                () => {}
            }
            Ok(())
        })?;
        self.add(ROLE, role.unwrap_or_default());
        if let Some(content) = content {
            self.content(content)?;
        }
        match calls {
            None | Some(b"null") => {}
            Some(calls) => self.add(CALLS, calls),
        }
        Ok(())
    }

    /// A content: a text, an array of parts, or nothing that can be read.
    fn content(&mut self, value: &[u8]) -> Result<(), BodyError> {
        let mut s = Scanner::new(value);
        match s.kind()? {
            Kind::String => self.add(TEXT, s.string()?),
            Kind::Array => s.array(|s| self.part(s.skip()?))?,
            Kind::Object | Kind::Plain => {}
        }
        Ok(())
    }

    /// A part: its text, or else a hash, for a picture's bytes say nothing of its tokens.
    fn part(&mut self, value: &[u8]) -> Result<(), BodyError> {
        let mut s = Scanner::new(value);
        let mut text = None;
        match s.kind()? {
            Kind::String => text = Some(s.string()?),
            Kind::Object => s.object(|s, name| {
                let is_text_of_part = is_text(name, "text") && s.kind()? == Kind::String;
                if is_text_of_part {
                    text = Some(s.string()?);
                } else {
                    s.skip()?;
                }
                Ok(())
            })?,
            Kind::Array | Kind::Plain => {}
        }
        match text {
            Some(text) => self.add(TEXT, text),
            None => self.add(PART, &hash(self.key, value)),
        }
        Ok(())
    }
}

/// A keyed hash of any bytes: the first block of a chain in a domain of their own.
fn hash(key: &HashKey, bytes: &[u8]) -> [u8; 16] {
    let mut chain = ChainBuilder::new(key, bytes);
    chain.update(&[0; router_policy::prefix::block::BLOCK_BYTES]);
    chain.finish().blocks.first().copied().unwrap_or_default().to_ne_bytes()
}

#[cfg(test)]
#[path = "openai_tests.rs"]
mod tests;
