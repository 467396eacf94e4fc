//! The thread that tells the others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SendFlags, SocketAddrUnix, sendto};

use super::Shared;
use super::metrics::Lost;
use super::outbox::{Inbox, Next, Waiting};
use super::place::MEMBERS;
use super::wire::Datagram;

/// Between two rounds of telling: what is placed meanwhile goes together, and wakes nobody.
const ROUND: Duration = Duration::from_millis(3);

/// The kernel holds only a few datagrams for a process. One that is busy is given so long before they count as lost.
const PATIENCE: [Duration; 3] =
    [Duration::from_micros(200), Duration::from_millis(1), Duration::from_millis(1)];

/// How often those are greeted who are not known to listen; whoever starts greets all at once.
const GREETING: Duration = Duration::from_secs(1);

/// The sender.
pub(super) struct Sender {
    shared: Arc<Shared>,
    sockets: Vec<Option<SocketAddrUnix>>,
    datagram: Datagram,
}

impl Sender {
    /// Greets the others.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let own = shared.place.number;
        let socket = |number| SocketAddrUnix::new(shared.place.path(number)).ok().filter(|_| number != own);
        let sockets = (0..MEMBERS).map(socket).collect();
        let mut sender = Self { shared, sockets, datagram: Datagram::new() };
        sender.greet();
        sender
    }

    /// Until the end is said.
    pub(super) fn run(mut self, inbox: &Inbox) {
        let mut greeted = Instant::now();
        while !self.shared.is_ending() {
            match inbox.next(GREETING) {
                Next::Placement(first) => {
                    self.tell(first, inbox);
                    std::thread::sleep(ROUND);
                }
                Next::Nothing => {}
                Next::End => return,
            }
            if greeted.elapsed() >= GREETING {
                greeted = Instant::now();
                self.greet();
            }
        }
    }

    /// All that waits, in as few datagrams as hold it. What comes meanwhile is for the next round.
    fn tell(&mut self, first: Waiting, inbox: &Inbox) {
        let end = Instant::now() + ROUND;
        let mut next = Some(first);
        while let Some(waiting) = next {
            self.add(&waiting);
            next = match inbox.next(Duration::ZERO) {
                Next::Placement(waiting) if Instant::now() < end => Some(waiting),
                Next::Placement(waiting) => {
                    self.add(&waiting);
                    None
                }
                Next::Nothing | Next::End => None,
            };
        }
        self.send();
    }

    fn add(&mut self, waiting: &Waiting) {
        let Some(addr) = self.shared.addr_of(waiting.backend) else { return };
        if !self.datagram.add(addr, waiting.at, &waiting.blocks) {
            self.send();
            self.datagram.add(addr, waiting.at, &waiting.blocks);
        }
    }

    /// The datagram to all who listen; then it is empty.
    fn send(&mut self) {
        let placements = u64::from(self.datagram.count());
        let mut waiting_for: Vec<usize> = (0..MEMBERS).filter(|&n| self.shared.peers.is_alive(n)).collect();
        for pause in std::iter::once(Duration::ZERO).chain(PATIENCE) {
            if waiting_for.is_empty() {
                break;
            }
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
            waiting_for.retain(|&number| self.send_to(number) == Err(Errno::AGAIN));
        }
        self.shared.metrics.lost(Lost::SocketFull, placements * waiting_for.len() as u64);
        self.datagram.clear();
    }

    fn send_to(&mut self, number: usize) -> Result<(), Errno> {
        let (shared, placements) = (&self.shared, u64::from(self.datagram.count()));
        let Some(to) = &self.sockets[number] else { return Ok(()) };
        let datagram = self.datagram.sealed(&shared.place.key);
        match sendto(&shared.place.socket, datagram, SendFlags::DONTWAIT, to) {
            Ok(_) => {
                shared.peers.listens(number, true);
                shared.metrics.told.inc_by(placements);
                Ok(())
            }
            Err(Errno::CONNREFUSED | Errno::NOENT) => {
                shared.peers.listens(number, false);
                Ok(())
            }
            Err(Errno::AGAIN) => Err(Errno::AGAIN),
            Err(error) => {
                shared.metrics.lost(Lost::Failed, placements);
                Err(error)
            }
        }
    }

    /// A datagram without placements to all who are not known to listen: who takes it does.
    fn greet(&mut self) {
        for number in 0..MEMBERS {
            if !self.shared.peers.is_alive(number) {
                // A full one is greeted again later.
                let _found = self.send_to(number);
            }
        }
    }
}
