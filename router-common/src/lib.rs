//! The contract between the BPF programs and the router: ids, keys, row layout, capacities.
//!
//! Reading order: [`limits`] (capacities and what they cost), [`id`] (which row is meant), [`key`] (how a
//! socket's address finds its row), [`value`] (what a row holds and who writes it), [`tcp`] (when a connection
//! counts), [`phase`] (where the request on it is), [`http`] (what segments say of that), [`order`] (which were seen), [`inband`] (what an engine's
//! host tells of it on the wire), [`seed`] (what a look at all sockets tells), [`edge`] (the edge guard, apart from all
//! that). No dependency and no `std`, so that both sides compile the same file; invariant: every shared struct is
//! `repr(C)` without implicit padding, asserted at compile time.
#![no_std]
#![warn(missing_docs)]

pub mod edge;
pub mod http;
pub mod id;
pub mod inband;
pub mod key;
pub mod limits;
pub mod order;
pub mod phase;
pub mod seed;
pub mod tcp;
pub mod value;

pub use id::BackendId;
pub use key::BackendAddr;
pub use value::{Answer, BackendLoad, BackendName, SockState, Telling, WorkerSlot};
