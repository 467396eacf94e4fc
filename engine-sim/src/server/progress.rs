//! How far one generation has come, between the driver that advances it and the response that renders it.
//!
//! There is no queue of tokens: the driver only counts them, and the response makes the text of the n-th token when
//! its client takes it. So a slow client holds up neither the engine nor any memory.

use std::task::{Poll, Waker};

use parking_lot::Mutex;

/// Tokens generated so far, and who waits for more. Shared by one driver and one response.
#[derive(Debug, Default)]
pub(super) struct Progress {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    tokens: u32,
    cached_tokens: u32,
    waiter: Option<Waker>,
}

impl Progress {
    /// The first token came; so many prompt tokens were cached.
    pub(super) fn on_first_token(&self, cached_tokens: u32) {
        self.state.lock().cached_tokens = cached_tokens;
        self.on_token();
    }

    /// One more token came.
    pub(super) fn on_token(&self) {
        let waiter = {
            let mut state = self.state.lock();
            state.tokens += 1;
            state.waiter.take()
        };
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }

    /// Prompt tokens that were cached; 0 before the first token.
    pub(super) fn cached_tokens(&self) -> u32 {
        self.state.lock().cached_tokens
    }

    /// Ready once at least `tokens` tokens came. Only the last caller is woken.
    pub(super) fn poll_reached(&self, tokens: u32, waker: &Waker) -> Poll<()> {
        let mut state = self.state.lock();
        if state.tokens >= tokens {
            return Poll::Ready(());
        }
        state.waiter = Some(waker.clone());
        Poll::Pending
    }

    /// Waits for `tokens` tokens. Dropping the future changes nothing.
    pub(super) async fn reached(&self, tokens: u32) {
        std::future::poll_fn(|cx| self.poll_reached(tokens, cx.waker())).await;
    }
}
