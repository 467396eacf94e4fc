//! Placement of inference requests: which backend, and why. Pure logic.
//!
//! Reading order: [`time`], [`signal`] (known or unknown, never a fake zero), [`request`], [`backend`],
//! [`trust`], [`prefix`] (what is cached where), [`load`] (what is in flight where), `filter`, [`cost`], `pick`,
//! [`decision`], and [`Placement`], the façade that the proxy, the simulator and the tests drive alike.
//!
//! Invariants: no IO, no clock, no global randomness, no task, no lock; picking and counting are one step;
//! nothing about a request is kept after it ended except learned averages and the prefix index.
#![warn(missing_docs)]

pub mod backend;
pub mod config;
pub mod cost;
pub mod decision;
mod filter;
pub mod load;
pub mod outcome;
mod pick;
mod placement;
pub mod prefix;
pub mod request;
pub mod signal;
pub mod task;
pub mod time;
pub mod trust;
pub mod tuning;
pub mod usage;

pub use backend::{BackendSpec, Models, Report};
pub use config::{Fallback, OwnCounts, PolicyConfig, PolicyName};
pub use decision::{Cost, Decision, PickError, Reason, Ticket};
pub use load::{Alone, InFlight, LoadTable, Seats, Seen, Taught, Told};
pub use outcome::Outcome;
pub use placement::{BackendSnapshot, CandidateRecord, KvSource, Placement, Record, Wait};
pub use request::RequestShape;
pub use router_common::BackendId;
pub use signal::{Signal, Why};
pub use task::{Task, Tasks};
pub use time::Nanos;
pub use trust::Trust;
pub use tuning::Tuning;
pub use usage::Usage;
