//! Builds, checks and tests.
fn main() {}
