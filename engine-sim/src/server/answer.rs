//! Tokens to response bodies: the JSON of a whole answer, and the event stream of one in the making.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::SystemTime;

use bytes::Bytes;
use http_body::{Body, Frame};
use serde_json::{Value, json};

use super::app::App;
use super::openai::Endpoint;
use super::runner::Generation;
use super::words::word;

/// The last event of a whole stream.
pub(super) const DONE_EVENT: &[u8] = b"data: [DONE]\n\n";

/// How the answer to one request is worded.
#[derive(Debug)]
pub(super) struct Answer {
    endpoint: Endpoint,
    id: String,
    created: u64,
    model: String,
    seed: u64,
    generation: Generation,
}

impl Answer {
    pub(super) fn new(endpoint: Endpoint, app: &App, generation: Generation) -> Self {
        let prefix = match endpoint {
            Endpoint::Chat => "chatcmpl",
            Endpoint::Completion => "cmpl",
        };
        let created = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let id = format!("{prefix}-{}-{}", app.name, generation.id.0);
        Self { endpoint, id, created, model: app.model.clone(), seed: app.seed, generation }
    }

    /// Waits until the answer has `tokens` tokens; dropping the future leaves the generation to its owner.
    pub(super) async fn reached(&self, tokens: u32) {
        self.generation.progress.reached(tokens).await;
    }

    /// Tokens of the whole answer.
    pub(super) fn max_tokens(&self) -> u32 {
        self.generation.max_tokens
    }

    /// The body of a plain answer, once all tokens came.
    pub(super) fn whole(&self) -> Vec<u8> {
        let text: String = (0..self.max_tokens()).map(|index| self.word(index)).collect();
        let (object, choice) = match self.endpoint {
            Endpoint::Chat => {
                let message = json!({"role": "assistant", "content": text});
                ("chat.completion", json!({"index": 0, "message": message, "finish_reason": "length"}))
            }
            Endpoint::Completion => {
                ("text_completion", json!({"index": 0, "text": text, "finish_reason": "length"}))
            }
        };
        let mut body = self.envelope(object, json!([choice]));
        body["usage"] = self.usage();
        body.to_string().into_bytes()
    }

    /// The event of token `index`; the last one carries the reason of the end.
    fn token_event(&self, index: u32) -> Bytes {
        let finish_reason = (index + 1 == self.max_tokens()).then_some("length");
        let text = self.word(index);
        let choice = match self.endpoint {
            Endpoint::Chat => {
                let delta = match index {
                    0 => json!({"role": "assistant", "content": text}),
                    _ => json!({ "content": text }),
                };
                json!({"index": 0, "delta": delta, "finish_reason": finish_reason})
            }
            Endpoint::Completion => json!({"index": 0, "text": text, "finish_reason": finish_reason}),
        };
        event(&self.envelope(self.chunk_object(), json!([choice])))
    }

    fn usage_event(&self) -> Bytes {
        let mut chunk = self.envelope(self.chunk_object(), json!([]));
        chunk["usage"] = self.usage();
        event(&chunk)
    }

    fn envelope(&self, object: &str, choices: Value) -> Value {
        json!({"id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices})
    }

    fn chunk_object(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completion => "text_completion",
        }
    }

    fn usage(&self) -> Value {
        let (prompt, completion) = (self.generation.prompt_tokens, self.max_tokens());
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": u64::from(prompt) + u64::from(completion),
            "prompt_tokens_details": {"cached_tokens": self.generation.progress.cached_tokens()},
        })
    }

    fn word(&self, index: u32) -> String {
        String::from_utf8_lossy(&word(self.seed, self.generation.id.0, index)).into_owned()
    }
}

fn event(data: &Value) -> Bytes {
    Bytes::from(format!("data: {data}\n\n"))
}

/// An answer as server-sent events, one frame (and so one HTTP chunk) a token.
///
/// Dropping it, at its end or when the client leaves, drops the generation.
#[derive(Debug)]
pub(super) struct TokenStream {
    answer: Answer,
    next: Next,
    includes_usage: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Token(u32),
    Usage,
    Done,
    End,
}

impl TokenStream {
    pub(super) fn new(answer: Answer, includes_usage: bool) -> Self {
        Self { answer, next: Next::Token(0), includes_usage }
    }
}

impl Body for TokenStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = match self.next {
            Next::Token(index) => {
                ready!(self.answer.generation.progress.poll_reached(index + 1, cx.waker()));
                let is_last = index + 1 == self.answer.max_tokens();
                self.next = match (is_last, self.includes_usage) {
                    (false, _) => Next::Token(index + 1),
                    (true, true) => Next::Usage,
                    (true, false) => Next::Done,
                };
                self.answer.token_event(index)
            }
            Next::Usage => {
                self.next = Next::Done;
                self.answer.usage_event()
            }
            Next::Done => {
                self.next = Next::End;
                Bytes::from_static(DONE_EVENT)
            }
            Next::End => return Poll::Ready(None),
        };
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.next == Next::End
    }
}
