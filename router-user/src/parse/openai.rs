//! The shape of an inference request: what it asks for, and its prompt as a chain of block hashes.
//!
//! It reads best effort what the OpenAI, Anthropic and engine dialects share and never judges a schema: unknown
//! fields, roles and part types are the engine's business. Of a repeated key the last counts, as engines have it.
//! The chain's order is fixed, whatever the order of keys in the body: model (not its alias), adapter, cache salt (these
//! three are the chain's domain: prompts that differ in one share nothing), tools, system text, then per message role and
//! content. Prompt text goes into the chain as the bytes of the JSON text.
//!
//! An adapter is a model's name for vLLM, which needs nothing more; the engines that take it beside the model each
//! have a key of their own, all of which are read. Values in the domain count as they are written, `null` as absent.

use router_policy::prefix::{Chain, ChainBuilder, HashKey};
use router_policy::{RequestShape, Task};

use super::json::{Scanner, name, unescape};
use super::prompt::Section;
use super::{BodyError, Names};

/// Bytes of a model's name kept; a longer one is cut and ends in `…`, so that it matches no configured name.
const MODEL_BYTES_MAX: usize = 1024;

/// Before the tools.
const TOOLS: u8 = 0x01;

/// Keys of an adapter: SGLang's, TensorRT-LLM's, TGI's and LoRAX's, llama.cpp's, and the plain word.
const ADAPTER: [&[u8]; 5] = [b"lora_path", b"lora_request", b"adapter_id", b"lora", b"adapter"];

/// Keys of the most tokens to answer with; of several the first counts, as engines have it.
const MAX_TOKENS: [&[u8]; 3] = [b"max_completion_tokens", b"max_tokens", b"max_output_tokens"];

/// What a body says. Raw values are known to be legal JSON.
#[derive(Default)]
struct Fields<'a> {
    model: Option<&'a [u8]>,
    adapter: [Option<&'a [u8]>; ADAPTER.len()],
    cache_salt: Option<&'a [u8]>,
    tools: Option<&'a [u8]>,
    stream: Option<&'a [u8]>,
    n: Option<&'a [u8]>,
    max_tokens: [Option<&'a [u8]>; MAX_TOKENS.len()],
    system: Option<Section<'a>>,
    instructions: Option<Section<'a>>,
    messages: Option<Section<'a>>,
    prompt: Option<Section<'a>>,
    input: Option<Section<'a>>,
}

/// Reads the shape of a body; see [`super::shape_with`].
pub(super) fn shape(body: &[u8], key: &HashKey, names: &Names) -> Result<RequestShape, BodyError> {
    let mut fields = Fields::default();
    let mut scanner = Scanner::new(body);
    scanner.object(|s, key| fields.read(s, &name(key)))?;
    scanner.end()?;

    let model = fields.model.and_then(model_name);
    let domain = fields.domain(names.model(model.as_deref().unwrap_or_default()));
    // Half a surrogate pair is no text: the engine will refuse it, and nothing of it will be cached.
    let chain =
        if scanner.has_lone_surrogate() { None } else { fields.chain(ChainBuilder::new(key, &domain), key) };
    Ok(RequestShape {
        model,
        task: Task::Any,
        shaped: chain.is_some(),
        chain: chain.unwrap_or_default(),
        stream: fields.stream == Some(b"true"),
        n: fields.n.and_then(whole_number).unwrap_or(1).max(1),
        max_tokens: fields.max_tokens.into_iter().flatten().find_map(whole_number),
        session: None,
    })
}

impl<'a> Fields<'a> {
    /// Reads the value of one key.
    fn read(&mut self, s: &mut Scanner<'a>, key: &[u8]) -> Result<(), BodyError> {
        match key {
            b"model" => self.model = Some(s.skip()?),
            b"cache_salt" => self.cache_salt = Some(s.skip()?),
            b"tools" => self.tools = Some(s.skip()?),
            b"stream" => self.stream = Some(s.skip()?),
            b"n" => self.n = Some(s.skip()?),
            b"system" => self.system = Section::system(s)?,
            b"instructions" => self.instructions = Section::system(s)?,
            b"messages" => self.messages = Section::prompt(s)?,
            b"prompt" => self.prompt = Section::prompt(s)?,
            b"input" => self.input = Section::prompt(s)?,
            _ => {
                let value = Some(s.skip()?);
                let place = |names: &[&[u8]]| names.iter().position(|&name| name == key);
                if let Some(i) = place(&ADAPTER) {
                    self.adapter[i] = value;
                } else if let Some(i) = place(&MAX_TOKENS) {
                    self.max_tokens[i] = value;
                }
            }
        }
        Ok(())
    }

    /// Model, adapter and salt as bytes: each with its place and length, so that none can pass for another.
    fn domain(&self, model: &str) -> Vec<u8> {
        let parts = [Some(model.as_bytes())].into_iter().chain(self.adapter).chain([self.cache_salt]);
        let mut domain = Vec::with_capacity(16 + model.len());
        for (place, part) in parts.enumerate() {
            if let Some(part) = part.filter(|&part| part != b"null") {
                domain.push(place as u8);
                domain.extend((part.len() as u64).to_le_bytes());
                domain.extend_from_slice(part);
            }
        }
        domain
    }

    /// The prompt; `None` if there is none that can be read.
    fn chain(&self, mut chain: ChainBuilder<'_>, key: &HashKey) -> Option<Chain> {
        let prompt = self.messages.as_ref().or(self.prompt.as_ref()).or(self.input.as_ref())?;
        if let Some(tools) = self.tools.filter(|&tools| tools != b"null") {
            chain.update(&[TOOLS]);
            chain.update(tools);
        }
        let sections = [self.system.as_ref(), self.instructions.as_ref(), Some(prompt)];
        let beyond: u64 = sections.into_iter().flatten().map(|section| section.add_to(&mut chain, key)).sum();
        let mut chain = chain.finish();
        chain.bytes += beyond;
        Some(chain)
    }
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

/// A number without sign, fraction or exponent that fits.
fn whole_number(value: &[u8]) -> Option<u32> {
    std::str::from_utf8(value).ok().filter(|text| !text.starts_with('+'))?.parse().ok()
}

#[cfg(test)]
#[path = "openai_tests.rs"]
mod tests;
