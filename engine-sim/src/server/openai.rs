//! Request bodies of `/v1/chat/completions`, `/v1/completions` and `/tokenize`: what the engine needs of them.
//!
//! The prompt of a chat is, for each message in order, its role, its content (a text, or the text parts of an
//! array) and its tool calls as written; `tools` come before all of it. There is no template around them, so chats
//! with an equal beginning have an equal prompt beginning. Every other field is accepted and ignored, `ignore_eos`
//! too, since no answer ends before its `max_tokens`.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::error::ApiError;
use crate::model::{Prompt, PromptBuilder, TOKEN_BYTES};

/// Tokens of an answer when the request does not say.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// Which of the two endpoints is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Chat,
    Completion,
}

/// A checked request.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) prompt: Prompt,
    pub(super) max_tokens: u32,
    pub(super) is_stream: bool,
    pub(super) includes_usage: bool,
}

#[derive(Deserialize)]
struct Body<'a> {
    model: Option<String>,
    messages: Option<Vec<Message<'a>>>,
    prompt: Option<Text>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    n: Option<u32>,
}

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Deserialize)]
struct Message<'a> {
    role: String,
    content: Option<Content>,
    #[serde(borrow)]
    tool_calls: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
struct Part {
    text: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    One(String),
    Many(Vec<String>),
    Tokens(Vec<u32>),
}

/// Reads a body for the engine that serves `served_model`; a body without a model means that one.
pub(super) fn parse(endpoint: Endpoint, body: &[u8], served_model: &str) -> Result<Call, ApiError> {
    let body = read(body, served_model)?;
    if body.n.is_some_and(|n| n != 1) {
        return Err(ApiError::bad_request("Only n = 1 is simulated", Some("n")));
    }
    let max_tokens = body.max_completion_tokens.or(body.max_tokens).unwrap_or(DEFAULT_MAX_TOKENS);
    if max_tokens == 0 {
        return Err(ApiError::bad_request("max_tokens must be at least 1", Some("max_tokens")));
    }
    let mut prompt = PromptBuilder::default();
    match endpoint {
        Endpoint::Chat => each_of_chat(&body, |piece| prompt.push(piece))?,
        Endpoint::Completion => each_of_completion(&body, |piece| prompt.push(piece))?,
    }
    Ok(Call {
        prompt: prompt.build(),
        max_tokens,
        is_stream: body.stream.unwrap_or(false),
        includes_usage: body.stream_options.and_then(|o| o.include_usage).unwrap_or(false),
    })
}

/// The tokens of a prompt, or of messages: each is four bytes of text, and that text again where a prompt may be
/// tokens.
pub(super) fn tokenize(body: &[u8], served_model: &str) -> Result<Vec<u32>, ApiError> {
    let body = read(body, served_model)?;
    let mut text = Vec::new();
    match body.prompt {
        Some(_) => each_of_completion(&body, |piece| text.extend_from_slice(piece))?,
        None => each_of_chat(&body, |piece| text.extend_from_slice(piece))?,
    }
    let token = |bytes: &[u8]| {
        let mut padded = [0; TOKEN_BYTES];
        padded[..bytes.len()].copy_from_slice(bytes);
        u32::from_le_bytes(padded)
    };
    Ok(text.chunks(TOKEN_BYTES).map(token).collect())
}

fn read<'a>(body: &'a [u8], served_model: &str) -> Result<Body<'a>, ApiError> {
    let body: Body<'_> = serde_json::from_slice(body)
        .map_err(|e| ApiError::bad_request(format!("Invalid body: {e}"), None))?;
    match body.model.as_deref().filter(|model| *model != served_model) {
        Some(model) => Err(ApiError::unknown_model(model)),
        None => Ok(body),
    }
}

fn each_of_chat(body: &Body<'_>, mut push: impl FnMut(&[u8])) -> Result<(), ApiError> {
    let messages = body.messages.as_deref().unwrap_or_default();
    if messages.is_empty() {
        return Err(ApiError::bad_request(
            "messages must be a list of at least one message",
            Some("messages"),
        ));
    }
    if let Some(tools) = body.tools {
        push(tools.get().as_bytes());
    }
    for message in messages {
        push(message.role.as_bytes());
        match &message.content {
            Some(Content::Text(text)) => push(text.as_bytes()),
            Some(Content::Parts(parts)) => {
                parts.iter().filter_map(|part| part.text.as_ref()).for_each(|text| push(text.as_bytes()));
            }
            None => {}
        }
        if let Some(calls) = message.tool_calls {
            push(calls.get().as_bytes());
        }
    }
    Ok(())
}

fn each_of_completion(body: &Body<'_>, mut push: impl FnMut(&[u8])) -> Result<(), ApiError> {
    match &body.prompt {
        Some(Text::One(text)) => push(text.as_bytes()),
        Some(Text::Many(texts)) if texts.len() == 1 => push(texts[0].as_bytes()),
        // A token is as long as four bytes of text.
        Some(Text::Tokens(tokens)) if !tokens.is_empty() => {
            tokens.iter().for_each(|token| push(&token.to_le_bytes()));
        }
        Some(_) => return Err(ApiError::bad_request("Exactly one prompt is simulated", Some("prompt"))),
        None => return Err(ApiError::bad_request("prompt is required", Some("prompt"))),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;

    use super::*;

    fn chat(body: &str) -> Call {
        parse(Endpoint::Chat, body.as_bytes(), "m").unwrap()
    }

    #[test]
    fn a_chat_prompt_is_role_and_content_of_each_message() {
        let call = chat(
            r#"{"model":"m","messages":[{"role":"system","content":"be brief"},
                {"role":"user","content":[{"type":"text","text":"hello "},{"type":"image_url"},{"text":"there"}]},
                {"role":"assistant","content":null}]}"#,
        );
        assert_eq!(call.prompt, Prompt::of_text("systembe briefuserhello thereassistant"));
        assert_eq!((call.max_tokens, call.is_stream, call.includes_usage), (16, false, false));
    }

    #[test]
    fn tools_come_first_and_tool_calls_after_their_message() {
        let call = chat(r#"{"tools":[1],"messages":[{"role":"assistant","tool_calls":[{"id":"a"}]}]}"#);
        assert_eq!(call.prompt, Prompt::of_text(r#"[1]assistant[{"id":"a"}]"#));
    }

    #[test]
    fn a_later_turn_begins_with_the_blocks_of_the_earlier_one() {
        let long = "x".repeat(300);
        let message = |role: &str| format!(r#"{{"role":"{role}","content":"{long}"}}"#);
        let first = chat(&format!(r#"{{"messages":[{}]}}"#, message("user")));
        let second = chat(&format!(r#"{{"messages":[{},{}]}}"#, message("user"), message("assistant")));
        let shared = first.prompt.hashes();
        assert_eq!(shared, &second.prompt.hashes()[..shared.len()]);
    }

    #[test]
    fn the_newer_name_of_max_tokens_wins() {
        let messages = r#""messages":[{"role":"user","content":"x"}]"#;
        for (fields, want) in [
            (r#""max_tokens":5"#, 5),
            (r#""max_completion_tokens":6"#, 6),
            (r#""max_tokens":5,"max_completion_tokens":6"#, 6),
            (r#""max_tokens":null"#, 16),
        ] {
            assert_eq!(chat(&format!("{{{messages},{fields}}}")).max_tokens, want, "{fields}");
        }
    }

    #[test]
    fn a_completion_takes_one_text_or_one_list_of_tokens() {
        let tokens = |prompt: &str| {
            parse(Endpoint::Completion, format!(r#"{{"prompt":{prompt}}}"#).as_bytes(), "m")
                .map(|c| c.prompt.tokens())
        };
        assert_eq!(tokens(r#""12345678""#).unwrap(), 2);
        assert_eq!(tokens(r#"["12345678"]"#).unwrap(), 2);
        assert_eq!(tokens("[7,8,9]").unwrap(), 3);
        for bad in [r#"["a","b"]"#, "[]", "7", "null"] {
            assert_eq!(tokens(bad).unwrap_err().status, StatusCode::BAD_REQUEST, "{bad}");
        }
    }

    #[test]
    fn what_is_wrong_is_refused_with_its_status() {
        for (body, status) in [
            ("", 400),
            ("{", 400),
            ("[]", 400),
            ("{}", 400),
            (r#"{"messages":[]}"#, 400),
            (r#"{"messages":"x"}"#, 400),
            (r#"{"messages":[{"content":"x"}]}"#, 400),
            (r#"{"messages":[{"role":"user","content":"x"}],"max_tokens":0}"#, 400),
            (r#"{"messages":[{"role":"user","content":"x"}],"max_tokens":-1}"#, 400),
            (r#"{"messages":[{"role":"user","content":"x"}],"n":2}"#, 400),
            (r#"{"model":"other","messages":[{"role":"user","content":"x"}]}"#, 404),
        ] {
            let error = parse(Endpoint::Chat, body.as_bytes(), "m").unwrap_err();
            assert_eq!(error.status.as_u16(), status, "{body}");
            let parsed: serde_json::Value = serde_json::from_slice(&error.body()).unwrap();
            assert!(parsed["error"]["message"].is_string(), "{parsed}");
        }
    }
}
