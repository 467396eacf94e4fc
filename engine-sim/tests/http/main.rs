//! The HTTP server on loopback, with a client that speaks plain HTTP/1.1.

mod admin;
mod answers;
mod dialects;
mod faults;
mod leaving;
mod refusals;
mod support;
mod telemetry;
mod tokens;
mod wire;
