//! The pure model in virtual time.

mod cache;
mod properties;
mod scheduler;
mod support;
