//! The router.

pub mod account;
pub mod commands;
