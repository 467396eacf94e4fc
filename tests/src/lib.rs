//! Helpers of the test tiers: a scripted engine ([`backend`]), a client that sees every byte ([`client`]), a name server ([`dns`]), the router
//! between them ([`router`], or as a program [`process`]), files to send ([`fixture`]), and waiting with a deadline ([`wait`]).
//!
//! Plain threads and blocking sockets, so that nothing here shares a runtime with what is tested.
#![expect(clippy::unwrap_used, reason = "helpers of tests: a failure is a failed test")]

pub mod backend;
pub mod client;
pub mod dns;
pub mod exchange;
pub mod fixture;
pub mod process;
pub mod router;
pub mod wait;
