//! Tier 1: the policy over simulated engines in virtual time, many seeds, no socket and no clock.

mod burst;
mod cluster;
mod seats;
