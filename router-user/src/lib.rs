//! Unlatch's router, in the order a request meets it: [`accept`] → [`parse`] → pick (crate `router-policy`) →
//! [`forward`] → [`account`] → [`observe`]; [`proxy`] is the whole request on one screen, [`backends`] knows the
//! engines, [`discovery`] who belongs to the fleet, [`config`] what was asked for, [`edge`] guards the listener's port,
//! [`gossip`] tells the host's other routers what was placed where, [`state`] keeps over restarts what engines hold and
//! taught, [`app`] wires all of it.

pub mod accept;
pub mod account;
pub mod app;
pub mod backends;
pub mod cli;
pub mod clock;
pub mod commands;
pub mod config;
pub mod decisions;
pub mod discovery;
pub mod edge;
pub mod error;
pub mod forward;
pub mod gossip;
pub mod observe;
pub mod parse;
mod private_dir;
pub mod proxy;
pub mod shutdown;
pub mod state;
