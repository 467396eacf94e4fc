//! What the iterators tell whoever reads them: which connections were taken up, and what the sockets' states say.

use crate::value::SockState;

/// Connections that one pass can be asked to take up.
pub const SEEDS: usize = 16_384;

/// One byte a connection that was asked for: it is counted from now on.
pub const TAKEN_UP: u8 = b'+';
/// The kernel would not tell of its end, so it is not counted.
pub const REFUSED: u8 = b'-';

/// Where in [`SockState`] the bytes begin that are told of each socket.
pub const TOLD_FROM: usize = 4;
/// How many.
pub const TOLD_BYTES: usize = 8;

/// What is told of one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Its row, if it is counted in one.
    pub row: Option<u32>,
    /// Whether a process that is no router made it.
    pub is_foreign: bool,
    /// The request on it.
    pub phase: u8,
}

impl Told {
    /// Reads what the iterator wrote.
    #[must_use]
    pub const fn read(bytes: &[u8; TOLD_BYTES]) -> Self {
        let row_plus1 = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let [role, phase, counted] = [bytes[4], bytes[5], bytes[6]];
        let row = if counted == 0 { None } else { row_plus1.checked_sub(1) };
        Self { row, is_foreign: role == SockState::FOREIGN, phase }
    }
}

const _: () = assert!(core::mem::offset_of!(SockState, backend_plus1) == TOLD_FROM);
const _: () = assert!(core::mem::offset_of!(SockState, role) == TOLD_FROM + 4);
const _: () = assert!(core::mem::offset_of!(SockState, phase) == TOLD_FROM + 5);
const _: () = assert!(core::mem::offset_of!(SockState, counted) == TOLD_FROM + 6);

#[cfg(test)]
mod tests {
    use super::Told;
    use crate::SockState;
    use crate::phase::CHUNKED;

    #[test]
    fn a_socket_is_of_a_row_only_while_it_is_counted() {
        let told = |row_plus1: u32, counted| {
            let [a, b, c, d] = row_plus1.to_ne_bytes();
            Told::read(&[a, b, c, d, SockState::ROUTER, CHUNKED, counted, 0])
        };
        assert_eq!(told(8, 1), Told { row: Some(7), is_foreign: false, phase: CHUNKED });
        assert_eq!(told(8, 0).row, None);
        assert_eq!(told(0, 1).row, None);
    }
}
