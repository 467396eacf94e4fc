//! The engines: who they are ([`registry`]), what they say ([`scrape`]), whether they answer ([`probe`]).

pub mod registry;

pub use registry::{Registry, Target};
