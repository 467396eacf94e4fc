//! How a request at a backend ended.

/// The end of a dispatched request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The answer's body ended as it should.
    Completed,
    /// The client left first.
    ClientGone,
    /// The backend broke off, or gave no answer.
    UpstreamFailed,
    /// No connection could be made, or the backend refused the request before it ran.
    NeverSent,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 4] = [Self::Completed, Self::ClientGone, Self::UpstreamFailed, Self::NeverSent];

    /// The outcome as one word, for labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::ClientGone => "client_gone",
            Self::UpstreamFailed => "upstream_failed",
            Self::NeverSent => "never_sent",
        }
    }
}
