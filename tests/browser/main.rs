//! Tier 5: the status page in a real browser, headless, against a real router with scripted engines.
//!
//! Needs Chromium: `UNLATCH_CHROMIUM`, else `chromium` on the path. Without it each test says so and is counted as
//! skipped; `cargo xtask setup` installs it.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests may unwrap; skips and figures are printed"
)]

mod chromium;
mod page;
