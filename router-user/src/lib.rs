//! The router.
