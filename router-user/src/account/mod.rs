//! 5. Counting: [`ledger`] owns the policy and its counts, [`guard`] holds one request's count.

pub mod guard;
pub mod ledger;

pub use guard::InFlightGuard;
pub use ledger::{Ledger, Placed};
