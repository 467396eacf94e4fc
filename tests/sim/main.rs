//! Tier 1: the policy over simulated engines in virtual time, many seeds, no socket and no clock.
#![expect(clippy::unwrap_used, reason = "tests may unwrap")]

mod burst;
mod cluster;
mod makespan;
mod seats;
