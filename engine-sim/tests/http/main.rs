//! The HTTP server on loopback, with a client that speaks plain HTTP/1.1.

mod answers;
mod leaving;
mod refusals;
mod support;
mod telemetry;
