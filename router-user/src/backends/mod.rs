//! The engines: who belongs to the fleet ([`Member`]), one as it is needed ([`target`]), all by row ([`registry`]), where they are
//! ([`resolve`]), what they are asked ([`probe`]), whether they serve (`life`, `inference`), what they say of their load
//! ([`scrape`], over the pure [`metrics_text`]; [`finding`] says what is wrong with it); [`watch`] asks each of them in
//! turn; [`relay`] sends operators' calls. What requests and probes say of an engine comes together in [`vitals`]; [`health`] judges.

mod answer;
mod engine_id;
mod finding;
pub mod health;
mod inference;
mod life;
mod member;
pub mod metrics_text;
pub mod probe;
pub mod registry;
pub mod relay;
pub mod resolve;
pub mod scrape;
pub mod sleep;
pub mod target;
pub mod vitals;
pub mod watch;

pub use engine_id::EngineId;
pub use member::Member;
pub use probe::Mark;
pub use registry::Registry;
pub use relay::{Relay, RelayError};
pub use target::{HealthAt, Heard, MetricsAt, ScrapeFailure, Target};
pub use watch::{ReportSink, WatchConfig};
