//! The program as a process: exit codes, signals, and what it says.
//!
//! [`support`] starts and asks it; then the cases: [`usage`], [`output`], [`replay`], [`signals`].
#![expect(clippy::unwrap_used, reason = "a failure is a failed test")]

mod output;
mod replay;
mod signals;
mod support;
mod usage;
