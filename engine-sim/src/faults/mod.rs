//! Faults an engine is told to have: what they are, and which request gets which.
//!
//! Reading order: [`spec`] (the JSON of `POST /admin/faults`), [`metrics`] (what is wrong with `/metrics`), `check`
//! (bounds), `rule_text` (the same rules as a flag), [`injector`] (the decisions and their counts).
//!
//! Pure: the server carries out what is decided here. Times are real milliseconds, whatever the time scale.
//! Invariant: the same set, seed and order of requests give the same faults.

mod check;
pub mod injector;
pub mod metrics;
mod rule_text;
pub mod spec;

pub use check::FaultsError;
pub use injector::{Asked, Fate, Given, Injector};
pub use metrics::{Dialect, MetricsFaults, Page, UnknownDialect};
pub use rule_text::RuleError;
pub use spec::{CutEnd, Delay, Fault, Faults, On, Rule, SlowStart};
