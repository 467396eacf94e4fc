//! The request's body as the proxy needs it: held whole where the prompt is to be read, passed on where it is not.
//!
//! Invariant: what is held counts in the budget of all bodies until the answer's head came; what is passed on is
//! never held beyond [`BEGUN_BYTES`] and what the sockets buffer.

use std::sync::Arc;

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::body::Incoming;
use hyper::header;
use hyper::http::request::Parts;
use router_policy::RequestShape;

use super::Shared;
use super::body::{self, Begun, BodyLimits, Buffers, HeldBody};
use crate::error::ProxyError;
use crate::forward::upload::{Fault, FaultSeen, RequestBody, Upload};
use crate::parse::{self, PathKind};

/// Of a body without a shape so much is read before it is placed: a small one can be sent again like any other, and
/// a form names its model there.
const BEGUN_BYTES: u64 = 64 << 10;

/// A request's body.
#[derive(Debug)]
pub(super) enum Payload {
    /// All of it is here.
    Held(HeldBody),
    /// It goes on as it comes.
    Passed {
        /// What was read before placing.
        begun: HeldBody,
        /// `None` once it is on its way.
        upload: Option<Box<Upload>>,
        /// Why it broke off, if it did.
        fault: FaultSeen,
    },
}

impl Payload {
    /// Reads a body whole, or on a path without a shape its beginning. A client that goes on writing one that is too
    /// large still gets to read the error.
    pub(super) async fn read(
        mut body: Incoming,
        kind: PathKind,
        headers: &HeaderMap,
        shared: &Shared,
        buffers: &Arc<Buffers>,
    ) -> Result<Self, ProxyError> {
        let limits = &shared.limits;
        let hold_max = if kind == PathKind::Inference { u64::MAX } else { BEGUN_BYTES };
        let bounds =
            BodyLimits { bytes_max: limits.body_bytes_max, pause_max: limits.head_timeout, hold_max };
        let result = body::read(&mut body, bounds, &shared.budget, buffers).await;
        let is_waiting = headers.contains_key(header::EXPECT);
        if matches!(result, Err(ProxyError::BodyTooLarge { .. } | ProxyError::BodyBudget)) && !is_waiting {
            body::discard(body, limits.body_bytes_max).await;
            return result.map(|begun| Self::Held(begun.body));
        }
        let Begun { body: begun, is_whole } = result?;
        if is_whole {
            return Ok(Self::Held(begun));
        }
        let left = limits.body_bytes_max.saturating_sub(begun.bytes.len() as u64);
        let upload = Upload::new(begun.bytes.clone(), body, left, limits.head_timeout);
        let fault = upload.fault();
        Ok(Self::Passed { begun, upload: Some(Box::new(upload)), fault })
    }

    /// What is asked for, as far as the path lets one know. An alias of the router's gives way to its model.
    pub(super) fn shape(
        &mut self,
        kind: PathKind,
        parts: &Parts,
        shared: &Shared,
    ) -> Result<RequestShape, ProxyError> {
        let (Self::Held(body) | Self::Passed { begun: body, .. }) = self;
        let reading = shared.reading.load();
        let mut shape = match kind {
            PathKind::Inference => {
                let read = |bytes: &Bytes| {
                    parse::shape_with(bytes, &shared.hash_key, &reading.names)
                        .map_err(|e| ProxyError::BadBody(e.to_string()))
                };
                let shape = read(&body.bytes)?;
                let model = shape.model.as_deref().and_then(|name| reading.aliases.model(name));
                match model.and_then(|model| parse::rename(&body.bytes, model)) {
                    None => shape,
                    Some(renamed) => {
                        body.bytes = renamed.into();
                        read(&body.bytes)?
                    }
                }
            }
            _ => RequestShape {
                model: parse::form_model(&parts.headers, &body.bytes).or_else(|| asked_in_query(parts)),
                ..RequestShape::unshaped()
            },
        };
        shape.task = parse::task(parts.uri.path());
        if let Some(key) = &reading.session_key {
            shape.session = parse::session(&parts.headers, &body.bytes, key);
        }
        Ok(shape)
    }

    /// Whether it can be sent once only.
    pub(super) const fn once(&self) -> bool {
        matches!(self, Self::Passed { .. })
    }

    /// The body for one sending.
    pub(super) fn body(&mut self) -> RequestBody {
        match self {
            Self::Held(body) => RequestBody::Held(body.bytes.clone()),
            Self::Passed { upload, .. } => match upload.take() {
                Some(upload) => RequestBody::Passed(upload),
                None => unreachable!("invariant: what can be sent once is sent once"),
            },
        }
    }

    /// The client's fault, if its body broke off on the way.
    pub(super) fn fault(&self, limit_bytes: u64) -> Option<ProxyError> {
        let Self::Passed { fault, .. } = self else { return None };
        fault.get().map(|fault| match fault {
            Fault::TooLarge => ProxyError::BodyTooLarge { limit_bytes },
            Fault::Stalled => ProxyError::BodyStalled,
            Fault::ClientGone => ProxyError::ClientGone,
        })
    }
}

/// A WebSocket has no body to name its model.
fn asked_in_query(parts: &Parts) -> Option<Box<str>> {
    let query = parts.uri.query().filter(|_| parts.headers.contains_key(header::UPGRADE))?;
    parse::query_model(query)
}
