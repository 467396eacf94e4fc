//! Live load: what this process has in flight, what others have, what engines report.
//!
//! A request is in flight from the pick (it is counted before it is sent) until its answer's body ended or can
//! no longer end.

pub mod arrivals;
pub mod credible;
pub mod engine;
pub mod ewma;
pub mod foreign;
pub mod learned;
pub mod seats;
pub mod table;
mod taught;
pub mod watched;

pub use engine::EngineLoad;
pub use foreign::Foreign;
pub use learned::{Learned, PoolLearned};
pub use seats::Seats;
pub use table::{Alone, InFlight, LoadTable, Seen, Told};
pub use taught::Taught;
