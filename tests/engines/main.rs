//! Tier 4: real llama.cpp engines behind the router, and the OpenAI SDKs in front of it.
//!
//! Needs a llama-server and a model: `UNLATCH_LLAMA_SERVER` and `UNLATCH_LLAMA_MODEL`, else `../shared/engines`
//! beside the checkout. Without them each test says so and is counted as skipped.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests may unwrap; skips are printed")]

mod ends;
mod llama;
mod node_sdk;
mod protocol;
mod reports;
mod sdk;
