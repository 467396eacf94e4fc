//! A cable between two hosts that this process carries, packet by packet, so that it can hold one back.
//!
//! Each end is a TUN device in the network namespace of its host; two threads carry what comes out of one into the
//! other. What the engine's host sends is looked at first.
#![expect(unsafe_code, reason = "making a TUN device")]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::hosts::{Clients, ip, own_network, set_up};

/// The router's host, which is this thread, and the engine's.
const ROUTER: &str = "10.8.0.1";
pub(crate) const ENGINE: &str = "10.8.0.2";

/// What becomes of an end of stream that the engine's host sends, and of what else is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// It passes, as all else does.
    Pass,
    /// It waits, and what is sent after it behind it, until there is a reset among that.
    HoldUntilReset,
    /// It waits until a reset has overtaken it.
    LetResetOvertake,
    /// It is lost, each time.
    Lose,
    /// It passes, but what only acknowledges is lost.
    LoseAcks,
    /// It passes, and what carries bytes passes twice.
    Twice,
    /// It passes, but of what carries bytes the first waits until the next has overtaken it.
    Overtake,
}

/// Whether there is what the ends are made of; says so if not.
pub(crate) fn is_possible(name: &str) -> bool {
    let is_possible = Path::new(DEVICES).exists();
    if !is_possible {
        println!("SKIP {name}: no {DEVICES} to carry packets with");
    }
    is_possible
}

const DEVICES: &str = "/dev/net/tun";

const FIN: u8 = 1;
const RST: u8 = 4;
const ACK: u8 = 16;

/// What a packet is: the flags of its TCP header, and whether it carries bytes. `None` if it is none of TCP over IPv4.
fn tcp(packet: &[u8]) -> Option<(u8, bool)> {
    let header = usize::from(packet.first()? & 15) * 4;
    if packet[0] >> 4 != 4 || *packet.get(9)? != 6 {
        return None;
    }
    let offset = usize::from(packet.get(header + 12)? >> 4) * 4;
    Some((*packet.get(header + 13)?, packet.len() > header + offset))
}

struct State {
    rule: Rule,
    held: Vec<Vec<u8>>,
    resets: usize,
}

/// The cable, and the engine's host at its other end.
pub(crate) struct Wire {
    pub(crate) engine: Clients,
    state: Arc<Mutex<State>>,
    to_router: File,
    stop: Arc<AtomicBool>,
}

impl Wire {
    /// Moves this thread to a host of its own, and lays the cable to the engine's.
    pub(crate) fn lay() -> io::Result<Self> {
        own_network()?;
        let (engine, _) = Clients::new()?;
        let router_end = tun()?;
        set_up("wire0", &[ROUTER]);
        let engine_end = engine.run(tun)?;
        engine.run(|| set_up("wire0", &[ENGINE]));
        for host in [ROUTER, ENGINE] {
            let route = move || ip(&["route", "replace", "10.8.0.0/24", "dev", "wire0"]);
            if host == ROUTER {
                route()
            } else {
                engine.run(route)
            };
        }
        let state = Arc::new(Mutex::new(State { rule: Rule::Pass, held: Vec::new(), resets: 0 }));
        let stop = Arc::new(AtomicBool::new(false));
        let wire = Self { engine, state, to_router: router_end.try_clone()?, stop };
        let (mut from, mut to) = (router_end.try_clone()?, engine_end.try_clone()?);
        wire.carry(router_end, move |packet| drop(to.write(packet)));
        let state = Arc::clone(&wire.state);
        wire.carry(engine_end, move |packet| state.lock().pass(packet, &mut from));
        Ok(wire)
    }

    /// Carries packets until the cable goes.
    fn carry(&self, mut from: File, mut each: impl FnMut(&[u8]) + Send + 'static) {
        let stop = Arc::clone(&self.stop);
        std::thread::spawn(move || {
            let mut packet = [0; 65536];
            while !stop.load(Ordering::Relaxed) {
                match from.read(&mut packet) {
                    Ok(length) => each(&packet[..length]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        std::thread::sleep(std::time::Duration::from_micros(100));
                    }
                    Err(_) => return,
                }
            }
        });
    }

    /// From now on; what is held goes on its way.
    pub(crate) fn set(&self, rule: Rule) {
        let mut state = self.state.lock();
        state.rule = rule;
        state.let_go(&mut &self.to_router);
    }

    /// Whether an end of stream is being held or was lost since the rule was set.
    pub(crate) fn has_held(&self) -> bool {
        !self.state.lock().held.is_empty()
    }

    /// Resets that the engine's host has sent.
    pub(crate) fn resets(&self) -> usize {
        self.state.lock().resets
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl State {
    fn pass(&mut self, packet: &[u8], to: &mut impl Write) {
        let (flags, has_bytes) = tcp(packet).unwrap_or_default();
        let (is_end, is_reset) = (flags & FIN != 0, flags & RST != 0);
        self.resets += usize::from(is_reset);
        match self.rule {
            Rule::HoldUntilReset if is_end || !self.held.is_empty() => {
                self.held.push(packet.to_vec());
                if is_reset {
                    self.let_go(to);
                }
            }
            Rule::LetResetOvertake | Rule::Lose if is_end => self.held.push(packet.to_vec()),
            Rule::LoseAcks if flags == ACK && !has_bytes => {}
            Rule::Overtake if has_bytes && self.held.is_empty() => self.held.push(packet.to_vec()),
            Rule::Overtake if has_bytes => {
                drop(to.write(packet));
                self.let_go(to);
                self.rule = Rule::Pass;
            }
            rule => {
                drop(to.write(packet));
                if rule == Rule::Twice && has_bytes {
                    drop(to.write(packet));
                }
            }
        }
        if is_reset && self.rule == Rule::LetResetOvertake {
            self.let_go(to);
        }
    }

    fn let_go(&mut self, to: &mut impl Write) {
        if self.rule == Rule::Lose {
            return self.held.clear();
        }
        // The device takes a packet whole or, when its host is going, not at all.
        self.held.drain(..).for_each(|packet| drop(to.write(&packet)));
    }
}

/// Makes the device `wire0` of this thread's network.
fn tun() -> io::Result<File> {
    let device = File::options().read(true).write(true).open(DEVICES)?;
    // SAFETY: all fields are integers or arrays of them.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"wire0") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request lives through the call and is what the command takes.
    if unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    rustix::io::ioctl_fionbio(&device, true)?;
    Ok(device)
}
