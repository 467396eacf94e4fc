//! A prompt's part of a body, read once: which bytes make the chain, in the order an engine renders them.
//!
//! It owns what counts as prompt in the OpenAI, Anthropic and engine dialects; not the order among a body's fields
//! (`openai`). It collects slices of the body and hashes nothing, because what comes first in the chain (model,
//! salt, tools) may come last in the body. Borders between the slices are bytes below 0x20, which a JSON string
//! cannot hold, so that no two different prompts give the same bytes.
//!
//! Invariant: memory is bounded by the body: at most one [`Piece`] for two bytes of it, four bytes for a token id.

use router_policy::prefix::block::BLOCK_BYTES;
use router_policy::prefix::{ChainBuilder, HashKey};

use super::BodyError;
use super::json::{Kind, Scanner, name};

/// Before a message's role.
const ROLE: u8 = 0x02;
/// Before each text: a content, a text part, a prompt.
const TEXT: u8 = 0x03;
/// Before the 16 bytes that stand for a part that is no text.
const PART: u8 = 0x04;
/// Before what counts as it is written: tool calls, their arguments and results.
const WRITTEN: u8 = 0x05;
/// Before token ids, four bytes each; they are the last of a chain.
const IDS: u8 = 0x06;
/// Bytes a token id counts.
const ID_BYTES: u64 = 4;

/// Fields of a message that count as they are written, behind its content; of function items too (`/v1/responses`).
const OF_MESSAGE: [&[u8]; 4] = [b"tool_calls", b"function_call", b"arguments", b"output"];
/// Fields of a part that count as they are written.
const OF_PART: [&[u8]; 3] = [b"input", b"thinking", b"refusal"];
/// Fields of a part that hold a picture, sound, video or file, or say where it is. Of several the first counts.
const MEDIA: [&[u8]; 13] = [
    b"image_url",
    b"input_audio",
    b"audio_url",
    b"video_url",
    b"source",
    b"file",
    b"file_data",
    b"file_url",
    b"file_id",
    b"image",
    b"audio",
    b"video",
    b"image_embeds",
];
/// Where in such a field the URL or the bytes are, if it is an object. Of several the first counts.
const LOCATOR: [&[u8]; 6] = [b"url", b"data", b"file_data", b"file_url", b"file_id", b"uuid"];

/// Bytes of the body that go into the chain, behind a border.
#[derive(Debug)]
struct Piece<'a> {
    border: u8,
    bytes: &'a [u8],
}

/// What one field of a body adds to the prompt.
#[derive(Debug, Default)]
pub(super) struct Section<'a> {
    pieces: Vec<Piece<'a>>,
    /// Token ids of the first prompt, little-endian: four bytes each, as many as a token has characters by estimate.
    ids: Vec<u8>,
    /// Bytes of the further prompts of a batch: each is a chain of its own in the engine, here they only count.
    beyond: u64,
    has_prompt: bool,
}

impl<'a> Section<'a> {
    /// Reads `messages`, `prompt` or `input`: a text; or an array of messages, of texts, of token ids, or of arrays
    /// of these. `None` if it is neither, for the engine to judge.
    pub(super) fn prompt(s: &mut Scanner<'a>) -> Result<Option<Self>, BodyError> {
        let mut section = Self::default();
        match s.kind()? {
            Kind::String => section.one_prompt(s.string()?),
            Kind::Array => s.array(|s| section.element(s))?,
            Kind::Object | Kind::Plain => {
                s.skip()?;
                return Ok(None);
            }
        }
        Ok(Some(section))
    }

    /// Reads a text or an array of parts: `system`, `instructions`. `None` if it is neither.
    pub(super) fn system(s: &mut Scanner<'a>) -> Result<Option<Self>, BodyError> {
        let mut section = Self::default();
        section.content(s)?;
        Ok((!section.pieces.is_empty()).then_some(section))
    }

    /// Appends all of it to a chain; returns the bytes that count beyond the chain.
    pub(super) fn add_to(&self, chain: &mut ChainBuilder<'_>, key: &HashKey) -> u64 {
        for Piece { border, bytes } in &self.pieces {
            chain.update(&[*border]);
            if *border == PART {
                chain.update(&digest(key, bytes));
            } else {
                chain.update(bytes);
            }
        }
        if !self.ids.is_empty() {
            chain.update(&[IDS]);
            chain.update(&self.ids);
        }
        self.beyond
    }

    fn push(&mut self, border: u8, bytes: &'a [u8]) {
        self.pieces.push(Piece { border, bytes });
    }

    /// A prompt by itself or in a batch, of which the first decides the chain.
    fn one_prompt(&mut self, text: &'a [u8]) {
        if self.has_prompt {
            self.beyond += 1 + text.len() as u64;
        } else {
            self.push(TEXT, text);
        }
        self.has_prompt = true;
    }

    fn element(&mut self, s: &mut Scanner<'a>) -> Result<(), BodyError> {
        match s.kind()? {
            Kind::Object => self.message(s),
            Kind::String => {
                self.one_prompt(s.string()?);
                Ok(())
            }
            // A number here is a token of the one prompt that the whole array is.
            Kind::Plain => s.token_ids(|id| self.ids.extend_from_slice(&id.to_le_bytes())),
            Kind::Array if self.has_prompt => s.array(|s| s.token_ids(|_| self.beyond += ID_BYTES)),
            Kind::Array => {
                self.has_prompt = true;
                s.array(|s| s.token_ids(|id| self.ids.extend_from_slice(&id.to_le_bytes())))
            }
        }
    }

    /// A message: role, content, then what is written, in this order however the keys stand.
    fn message(&mut self, s: &mut Scanner<'a>) -> Result<(), BodyError> {
        let role = self.pieces.len();
        self.push(ROLE, b"");
        let mut written = [None; OF_MESSAGE.len()];
        s.object(|s, key| {
            let key = name(key);
            match &*key {
                b"role" => self.pieces[role].bytes = s.skip()?,
                b"content" => {
                    // Of a repeated key the last counts.
                    self.pieces.truncate(role + 1);
                    self.content(s)?;
                }
                key => slot(s, key, &OF_MESSAGE, &mut written)?,
            }
            Ok(())
        })?;
        self.push_written(written);
        Ok(())
    }

    fn push_written(&mut self, written: impl IntoIterator<Item = Option<&'a [u8]>>) {
        for bytes in written.into_iter().flatten().filter(|&bytes| bytes != b"null") {
            self.push(WRITTEN, bytes);
        }
    }

    /// A content: a text, an array of parts, or nothing that can be read. It nests (a tool's result is a content),
    /// no deeper than the scanner lets it.
    fn content(&mut self, s: &mut Scanner<'a>) -> Result<(), BodyError> {
        match s.kind()? {
            Kind::String => {
                let text = s.string()?;
                self.push(TEXT, text);
            }
            Kind::Array => s.array(|s| match s.kind()? {
                Kind::String => {
                    let text = s.string()?;
                    self.push(TEXT, text);
                    Ok(())
                }
                Kind::Object => self.part(s),
                Kind::Array | Kind::Plain => {
                    let bytes = s.skip()?;
                    self.push(WRITTEN, bytes);
                    Ok(())
                }
            })?,
            Kind::Object | Kind::Plain => drop(s.skip()?),
        }
        Ok(())
    }

    /// A part: its texts; a hash for what is none, for a picture's bytes say nothing of its tokens.
    fn part(&mut self, s: &mut Scanner<'a>) -> Result<(), BodyError> {
        let before = self.pieces.len();
        let (mut text, mut written, mut media) = (None, [None; OF_PART.len()], None);
        let ((), whole) = s.spanned(|s| {
            s.object(|s, key| {
                let key = name(key);
                match &*key {
                    b"text" if s.kind()? == Kind::String => text = Some(s.string()?),
                    b"content" => {
                        self.pieces.truncate(before);
                        self.content(s)?;
                    }
                    key => match MEDIA.iter().position(|&name| name == key) {
                        Some(rank) => keep_first(&mut media, rank, locator(s)?),
                        None => slot(s, key, &OF_PART, &mut written)?,
                    },
                }
                Ok(())
            })
        })?;
        if let Some(text) = text {
            self.push(TEXT, text);
        }
        self.push_written(written);
        if let Some((_, media)) = media {
            self.push(PART, media);
        }
        if self.pieces.len() == before {
            // A kind of part that is not known yet: as it is written, but not at its size.
            self.push(PART, whole);
        }
        Ok(())
    }
}

/// Reads a value into the slot of its key, if it has one.
fn slot<'a, const N: usize>(
    s: &mut Scanner<'a>,
    key: &[u8],
    names: &[&[u8]; N],
    slots: &mut [Option<&'a [u8]>; N],
) -> Result<(), BodyError> {
    let value = s.skip()?;
    if let Some(i) = names.iter().position(|&name| name == key) {
        slots[i] = Some(value);
    }
    Ok(())
}

/// Keeps the value of the lowest rank; of equal ranks the last.
fn keep_first<'a>(kept: &mut Option<(usize, &'a [u8])>, rank: usize, value: &'a [u8]) {
    if kept.is_none_or(|(best, _)| rank <= best) {
        *kept = Some((rank, value));
    }
}

/// Reads a medium's field: its URL or bytes, else all of it.
fn locator<'a>(s: &mut Scanner<'a>) -> Result<&'a [u8], BodyError> {
    match s.kind()? {
        Kind::String => s.string(),
        Kind::Array | Kind::Plain => s.skip(),
        Kind::Object => {
            let mut found = None;
            let ((), whole) = s.spanned(|s| {
                s.object(|s, key| {
                    let key = name(key);
                    let rank = LOCATOR.iter().position(|&name| name == &*key);
                    match (rank, s.kind()?) {
                        (Some(rank), Kind::String) => keep_first(&mut found, rank, s.string()?),
                        _ => drop(s.skip()?),
                    }
                    Ok(())
                })
            })?;
            Ok(found.map_or(whole, |(_, value)| value))
        }
    }
}

/// A keyed hash of any bytes: the first block of a chain in a domain of their own.
fn digest(key: &HashKey, bytes: &[u8]) -> [u8; 16] {
    let mut chain = ChainBuilder::new(key, bytes);
    chain.update(&[0; BLOCK_BYTES]);
    chain.finish().blocks.first().copied().unwrap_or_default().to_ne_bytes()
}

#[cfg(test)]
#[path = "prompt_tests.rs"]
mod tests;
