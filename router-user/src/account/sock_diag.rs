//! The TCP connections of this network namespace, as the kernel lists them (`sock_diag`), each with its cookie, its
//! peer and its cgroup.
//!
//! Invariant: whatever the answer holds is read within its bounds; what cannot be read is left out.
#![expect(unsafe_code, reason = "a netlink socket")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use router_common::BackendAddr;
use router_common::tcp::state;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Of `INET_DIAG_*`.
const CGROUP_ID: u16 = 21;

/// All states of a connection that has been established and not ended.
const OPEN: u32 = 1 << state::ESTABLISHED
    | 1 << state::FIN_WAIT1
    | 1 << state::FIN_WAIT2
    | 1 << state::CLOSE_WAIT
    | 1 << state::LAST_ACK;

/// `struct inet_diag_msg`, and where in it what is.
const MESSAGE: usize = 72;
const PEER_PORT: usize = 6;
const PEER: usize = 24;
const COOKIE: usize = 44;

const HEADER: usize = 16;

/// An answer of the kernel is at most this long.
const ANSWER: usize = 32 << 10;

/// One side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Connection {
    pub(super) cookie: u64,
    pub(super) peer: BackendAddr,
    /// The kernel's number of the cgroup that the socket was made in.
    pub(super) cgroup: u64,
}

/// Shows every connection.
///
/// # Errors
/// The kernel refuses, or lacks `CONFIG_INET_DIAG`.
pub(super) fn each(mut show: impl FnMut(Connection)) -> io::Result<()> {
    for family in [libc::AF_INET, libc::AF_INET6] {
        let socket = ask(family as u8)?;
        let mut answer = vec![0; ANSWER];
        loop {
            // SAFETY: the buffer is as long as said.
            let len = unsafe { libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), ANSWER, 0) };
            let len = usize::try_from(len).map_err(|_negative| io::Error::last_os_error())?;
            if len == 0 || read(&answer[..len.min(ANSWER)], &mut show)? {
                break;
            }
        }
    }
    Ok(())
}

fn ask(family: u8) -> io::Result<OwnedFd> {
    const NETLINK_SOCK_DIAG: libc::c_int = 4;
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: no pointer is passed.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, NETLINK_SOCK_DIAG) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just made, and that nobody else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let request = request(family);
    // SAFETY: the request is as long as said.
    let sent = unsafe { libc::send(fd, request.as_ptr().cast(), request.len(), 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2`: all open connections of a family.
fn request(family: u8) -> Vec<u8> {
    let len = (HEADER + 56) as u32;
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    let mut request = len.to_ne_bytes().to_vec();
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    request.extend([0; 8]);
    request.extend([family, libc::IPPROTO_TCP as u8, 0, 0]);
    request.extend(OPEN.to_ne_bytes());
    request.resize(len as usize, 0);
    request
}

/// Reads one answer; says whether it was the last.
fn read(mut answer: &[u8], show: &mut impl FnMut(Connection)) -> io::Result<bool> {
    while answer.len() >= HEADER {
        let (len, kind) = (u32_at(answer, 0) as usize, u16_at(answer, 4));
        if len < HEADER || len > answer.len() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let body = &answer[HEADER..len];
        match libc::c_int::from(kind) {
            libc::NLMSG_DONE => return Ok(true),
            libc::NLMSG_ERROR if body.len() >= 4 => {
                return Err(io::Error::from_raw_os_error((u32_at(body, 0) as i32).wrapping_neg()));
            }
            _ if kind == SOCK_DIAG_BY_FAMILY => connection(body).into_iter().for_each(&mut *show),
            _ => {}
        }
        answer = &answer[len.next_multiple_of(4).min(answer.len())..];
    }
    Ok(false)
}

fn connection(body: &[u8]) -> Option<Connection> {
    let (message, attributes) = body.split_at_checked(MESSAGE)?;
    let words: [u32; 4] =
        std::array::from_fn(|n| u32::from_ne_bytes(std::array::from_fn(|byte| message[PEER + 4 * n + byte])));
    let port = u16::from_be_bytes([message[PEER_PORT], message[PEER_PORT + 1]]);
    let peer = match libc::c_int::from(message[0]) {
        libc::AF_INET => BackendAddr::v4(words[0], port),
        libc::AF_INET6 => BackendAddr::v6(words, port),
        _ => return None,
    };
    let cookie = u64::from(u32_at(message, COOKIE)) | u64::from(u32_at(message, COOKIE + 4)) << 32;
    Some(Connection { cookie, peer, cgroup: cgroup(attributes)? })
}

fn cgroup(mut attributes: &[u8]) -> Option<u64> {
    while attributes.len() >= 4 {
        let (len, kind) = (usize::from(u16_at(attributes, 0)), u16_at(attributes, 2));
        let value = attributes.get(4..len)?;
        if kind == CGROUP_ID {
            return Some(u64::from_ne_bytes(value.try_into().ok()?));
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
    None
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::{COOKIE, Connection, MESSAGE, PEER, PEER_PORT, SOCK_DIAG_BY_FAMILY, each, read};
    use router_common::BackendAddr;
    use std::net::{SocketAddr, TcpListener, TcpStream};

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut message = (16 + body.len() as u32).to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.resize(16, 0);
        message.extend(body);
        message
    }

    fn told() -> (Vec<u8>, Connection) {
        let mut body = vec![0; MESSAGE];
        body[0] = libc::AF_INET as u8;
        body[PEER_PORT..PEER_PORT + 2].copy_from_slice(&8000_u16.to_be_bytes());
        body[PEER..PEER + 4].copy_from_slice(&[10, 0, 0, 1]);
        body[COOKIE..COOKIE + 8].copy_from_slice(&[1, 0, 0, 0, 2, 0, 0, 0]);
        // Another attribute of one byte and its padding, then the cgroup.
        body.extend([5, 0, 8, 0, 7, 0, 0, 0, 12, 0, 21, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        let peer: SocketAddr = "10.0.0.1:8000".parse().unwrap();
        let connection =
            Connection { cookie: 2 << 32 | 1, peer: BackendAddr::from_socket_addr(peer), cgroup: 9 };
        (message(SOCK_DIAG_BY_FAMILY, &body), connection)
    }

    fn shown(answer: &[u8]) -> (std::io::Result<bool>, Vec<Connection>) {
        let mut all = Vec::new();
        (read(answer, &mut |connection| all.push(connection)), all)
    }

    #[test]
    fn reads_what_the_kernel_tells_of_a_connection() {
        let (bytes, connection) = told();
        let (last, all) = shown(&[bytes.clone(), bytes.clone()].concat());
        assert!(!last.unwrap() && all == [connection; 2], "more is to come");
        let (last, all) = shown(&[bytes, message(libc::NLMSG_DONE as u16, &[0; 4])].concat());
        assert!(last.unwrap());
        assert_eq!(all, [connection]);
        let refused = (-libc::EPERM).to_ne_bytes();
        let (error, _) = shown(&message(libc::NLMSG_ERROR as u16, &refused));
        assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::EPERM));
    }

    #[test]
    fn whatever_the_answer_holds_is_read_within_its_bounds() {
        let (bytes, _) = told();
        for len in 0..bytes.len() {
            let mut cut = bytes[..len].to_vec();
            let _refused = shown(&cut);
            if let Some(told) = cut.first_chunk_mut() {
                *told = (len as u32).to_ne_bytes();
            }
            let _left_out = shown(&cut);
        }
        for at in 0..bytes.len() {
            for value in [0, 1, 255] {
                let mut wrong = bytes.clone();
                wrong[at] = value;
                let _read = shown(&wrong);
            }
        }
    }

    #[test]
    fn both_ends_of_a_connection_here_are_among_them() {
        for host in ["127.0.0.1", "::1"] {
            let listener = TcpListener::bind((host, 0)).unwrap();
            let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let theirs = listener.accept().unwrap().0;
            // Others may have the same port, but no other socket has its cookie.
            let ends = [&ours, &theirs].map(|end| {
                let peer = BackendAddr::from_socket_addr(end.peer_addr().unwrap());
                (rustix::net::sockopt::socket_cookie(end).unwrap(), peer)
            });
            let mut found = 0;
            each(|connection| found += usize::from(ends.contains(&(connection.cookie, connection.peer))))
                .unwrap();
            assert_eq!(found, 2);
        }
    }
}
