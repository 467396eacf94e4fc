//! A name server that says what a test tells it, over UDP and, where an answer has no room in 512 bytes, over TCP.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;

/// What a name is answered with.
#[derive(Clone, Debug)]
pub enum Said {
    /// Its addresses; questions for others than A find nothing.
    Addresses {
        /// For so many seconds.
        ttl: u32,
        /// Which.
        all: Vec<Ipv4Addr>,
    },
    /// Its services: weight, port, host.
    Services {
        /// For so many seconds.
        ttl: u32,
        /// Which.
        all: Vec<(u16, u16, &'static str)>,
    },
    /// An error by its code.
    Error(u8),
    /// No answer at all.
    Nothing,
}

/// There is no such name.
pub const NXDOMAIN: Said = Said::Error(3);
/// The server failed.
pub const SERVFAIL: Said = Said::Error(2);

#[derive(Default)]
struct State {
    names: BTreeMap<String, (Said, usize)>,
    over_tcp: usize,
    is_over: bool,
}

/// The server; ends with its value. A name nobody spoke of does not exist.
pub struct Dns {
    addr: SocketAddr,
    state: Arc<Mutex<State>>,
    threads: Vec<JoinHandle<()>>,
}

impl Dns {
    /// A server on a free port.
    ///
    /// # Panics
    /// There is none.
    #[must_use]
    pub fn start() -> Self {
        let (udp, tcp) = sockets();
        let addr = udp.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let (for_udp, for_tcp) = (Arc::clone(&state), Arc::clone(&state));
        let threads = vec![
            std::thread::spawn(move || serve_udp(&udp, &for_udp)),
            std::thread::spawn(move || serve_tcp(&tcp, &for_tcp)),
        ];
        Self { addr, state, threads }
    }

    /// Where it is.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What a name is answered with from now on.
    pub fn say(&self, name: &str, said: Said) {
        self.state.lock().names.entry(name.to_owned()).or_insert((NXDOMAIN, 0)).0 = said;
    }

    /// The same, with addresses that hold a second.
    pub fn say_addresses(&self, name: &str, all: &[Ipv4Addr]) {
        self.say(name, Said::Addresses { ttl: 1, all: all.to_vec() });
    }

    /// How often a name was asked for.
    #[must_use]
    pub fn asked(&self, name: &str) -> usize {
        self.state.lock().names.get(name).map_or(0, |(_, asked)| *asked)
    }

    /// How often it was asked over TCP.
    #[must_use]
    pub fn over_tcp(&self) -> usize {
        self.state.lock().over_tcp
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.state.lock().is_over = true;
        // Wakes both threads.
        let _gone = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|s| s.send_to(&[], self.addr));
        let _refused = TcpStream::connect(self.addr);
        for thread in self.threads.drain(..) {
            let _panicked = thread.join();
        }
    }
}

/// One port for both.
fn sockets() -> (UdpSocket, TcpListener) {
    for _ in 0..100 {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()) {
            return (udp, tcp);
        }
    }
    panic!("no port is free over both UDP and TCP");
}

fn serve_udp(socket: &UdpSocket, state: &Mutex<State>) {
    let mut bytes = [0; 512];
    loop {
        let Ok((length, client)) = socket.recv_from(&mut bytes) else { continue };
        if state.lock().is_over {
            return;
        }
        if let Some(mut answer) = answer(&bytes[..length], state) {
            if answer.len() > 512 {
                // Head and question, with the mark that the rest is missing.
                answer.truncate(length);
                answer[2] |= 2;
                answer[6..8].fill(0);
            }
            let _gone = socket.send_to(&answer, client);
        }
    }
}

fn serve_tcp(listener: &TcpListener, state: &Mutex<State>) {
    loop {
        let Ok((mut stream, _)) = listener.accept() else { continue };
        if state.lock().is_over {
            return;
        }
        state.lock().over_tcp += 1;
        let mut length = [0; 2];
        if stream.read_exact(&mut length).is_err() {
            continue;
        }
        let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
        if stream.read_exact(&mut question).is_ok()
            && let Some(answer) = answer(&question, state)
        {
            let _gone = stream.write_all(&[&(answer.len() as u16).to_be_bytes()[..], &answer].concat());
        }
    }
}

/// The answer to a question, or none.
fn answer(question: &[u8], state: &Mutex<State>) -> Option<Vec<u8>> {
    let (name, kind) = read(question)?;
    let said = {
        let mut state = state.lock();
        let (said, asked) = state.names.entry(name).or_insert((NXDOMAIN, 0));
        *asked += 1;
        said.clone()
    };
    let mut answer = question.to_vec();
    answer[2] |= 0x80;
    let records: Vec<Vec<u8>> = match said {
        Said::Nothing => return None,
        Said::Error(code) => {
            answer[3] = code;
            Vec::new()
        }
        Said::Addresses { ttl, all } if kind == 1 => {
            all.iter().map(|ip| record(1, ttl, &ip.octets())).collect()
        }
        Said::Services { ttl, all } if kind == 33 => all
            .iter()
            .map(|(weight, port, host)| {
                let head = [0_u16.to_be_bytes(), weight.to_be_bytes(), port.to_be_bytes()].concat();
                record(33, ttl, &[head, written(host)].concat())
            })
            .collect(),
        Said::Addresses { .. } | Said::Services { .. } => Vec::new(),
    };
    answer[6..8].copy_from_slice(&(records.len() as u16).to_be_bytes());
    answer.extend(records.concat());
    Some(answer)
}

/// The name and the kind of a question.
fn read(question: &[u8]) -> Option<(String, u16)> {
    let (mut labels, mut at) = (Vec::new(), 12);
    loop {
        let length = usize::from(*question.get(at)?);
        let label = question.get(at + 1..at + 1 + length)?;
        at += 1 + length;
        if length == 0 {
            break;
        }
        labels.push(String::from_utf8(label.to_vec()).ok()?);
    }
    let kind = question.get(at..at + 2)?;
    Some((labels.join("."), u16::from_be_bytes([kind[0], kind[1]])))
}

/// A record of the question's name.
fn record(kind: u8, ttl: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xc0, 12, 0, kind, 0, 1];
    bytes.extend(ttl.to_be_bytes());
    bytes.extend((data.len() as u16).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn written(name: &str) -> Vec<u8> {
    let labels = name.split('.').flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat());
    labels.chain([0]).collect()
}
