//! Helpers of the test tiers.
