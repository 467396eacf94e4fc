//! What changing calls ask for: the seam to the fleet.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Request, Response};
use router_policy::BackendId;

use crate::config::BackendConfig;

/// What comes of an operation. Dropping it before its end may leave the operation done or not.
pub type Operation<T> = Pin<Box<dyn Future<Output = Result<T, OperateError>> + Send>>;

/// Changes what runs. Each answers as soon as the change holds for new requests; what is in flight ends later.
pub trait Operate: Send + Sync {
    /// Takes a backend in: its rows, one for each address. One that an operator added before is changed.
    fn add(&self, backend: BackendConfig) -> Operation<Vec<BackendId>>;

    /// Drains a backend and takes it out once nothing is in flight there, or at the deadline (`None` = the configured
    /// one), which cuts the rest.
    fn remove(&self, id: BackendId, deadline: Option<Duration>) -> Operation<()>;

    /// Sends nothing new there. At the deadline what is still in flight is cut; `None` = nothing is.
    fn drain(&self, id: BackendId, deadline: Option<Duration>) -> Operation<()>;

    /// Takes back a drain.
    fn undrain(&self, id: BackendId) -> Operation<()>;

    /// Reads the configuration and the token again and applies them whole or not at all; says what changed.
    fn reload(&self) -> Operation<Reloaded>;

    /// Asks an engine for a path of its own (below its base path), with its own key. The answer is bounded in size
    /// and time.
    fn ask(&self, id: BackendId, request: Request<Bytes>) -> Operation<Response<Bytes>>;
}

/// What a reload changed: URLs of backends, and keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Backends that joined.
    pub added: Vec<String>,
    /// Backends configured anew.
    pub changed: Vec<String>,
    /// Backends that drain now, to leave.
    pub leaving: Vec<String>,
    /// Backends that could not join, and why.
    pub refused: Vec<(String, String)>,
    /// Keys that apply from now on.
    pub applied: Vec<&'static str>,
    /// Keys that apply after a restart.
    pub needs_restart: Vec<&'static str>,
}

/// Why an operation was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperateError {
    /// There is no such backend.
    #[error("no such backend")]
    NoSuchBackend,
    /// What was asked for is wrong: why.
    #[error("{0}")]
    Invalid(String),
    /// It does not fit what is there: why.
    #[error("{0}")]
    Conflict(String),
    /// This router cannot do it: why.
    #[error("{0}")]
    Unsupported(String),
    /// The engine gave no usable answer: why.
    #[error("the engine gave no usable answer: {0}")]
    Engine(String),
    /// The engine gave no answer in time.
    #[error("the engine gave no answer in time")]
    EngineTimeout,
    /// Too many such calls run already.
    #[error("too many calls to engines at once")]
    Busy,
}
