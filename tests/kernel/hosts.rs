//! Two hosts and a cable: this thread's network namespace is the router's, another thread's the clients'.
//!
//! Both go with their threads, and the cable with them. What this thread starts from then on is on the router's host.
#![expect(unsafe_code, reason = "unshare and raw sockets")]

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};

/// The router's end of the cable.
pub(crate) const DEVICE: &str = "edge0";
/// The router's addresses.
pub(crate) const ROUTER: [&str; 2] = ["10.9.0.1", "fd09::1"];
/// The clients' addresses, all on one machine.
pub(crate) const CLIENTS: [&str; 7] =
    ["10.9.0.2", "10.9.0.3", "10.9.1.2", "10.9.1.3", "fd09::2", "fd09:0:0:2::2", "fd09:0:0:2::3"];

/// Within this an answer comes if one comes; before the first repetition of a SYN, which is after 1 s.
const PATIENCE: Duration = Duration::from_millis(400);

type Job = Box<dyn FnOnce() + Send>;

/// The clients' host.
pub(crate) struct Clients {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// Moves this thread to a host of its own, and lays a cable to another.
pub(crate) fn connect_hosts() -> io::Result<Clients> {
    own_network()?;
    let (clients, thread_id) = Clients::new()?;
    ip(&["link", "add", DEVICE, "type", "veth", "peer", "name", "client0", "netns", &thread_id]);
    set_up(DEVICE, &ROUTER);
    clients.run(|| set_up("client0", &CLIENTS));
    // The kernel takes a moment to pass packets over a new cable.
    for client in CLIENTS {
        let router = ROUTER[usize::from(client.contains(':'))];
        let listener = TcpListener::bind((router, 0)).unwrap();
        let to = listener.local_addr().unwrap();
        router_tests::wait::until("packets pass", || !clients.connect(client, to, 1).is_empty());
    }
    Ok(clients)
}

/// Gives this thread, and what it starts from then on, a network with nothing but loopback.
pub(crate) fn own_network() -> io::Result<()> {
    // SAFETY: affects the network that this thread, and what it starts, sees.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(io::Error::last_os_error());
    }
    ip(&["link", "set", "lo", "up"]);
    Ok(())
}

pub(crate) fn set_up(device: &str, addresses: &[&str]) {
    for address in addresses {
        let (length, more): (_, &[&str]) =
            if address.contains(':') { ("/32", &["nodad"]) } else { ("/16", &[]) };
        ip(&[&["addr", "add", &format!("{address}{length}"), "dev", device], more].concat());
    }
    ip(&["link", "set", device, "up"]);
}

/// Runs `ip`.
pub(crate) fn ip(args: &[&str]) -> String {
    let output =
        Command::new("ip").args(args).output().expect("ip is missing; `cargo xtask setup` brings it");
    assert!(output.status.success(), "ip {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

impl Clients {
    /// A host without a cable, and the id of the thread whose network it is.
    pub(crate) fn new() -> io::Result<(Self, String)> {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let (tells, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            // SAFETY: takes and touches nothing.
            tells.send(own_network().map(|()| unsafe { libc::gettid() })).unwrap();
            for job in inbox {
                job();
            }
        });
        let thread_id = told.recv().unwrap()?.to_string();
        Ok((Self { jobs: Some(jobs), thread: Some(thread) }, thread_id))
    }

    /// Runs something on the clients' host.
    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (tells, told) = mpsc::channel();
        let job = Box::new(move || tells.send(job()).unwrap());
        self.jobs.as_ref().unwrap().send(job).unwrap();
        told.recv().expect("the job panicked")
    }

    /// Tries so many connections from one address at once; returns those that were established.
    pub(crate) fn connect(&self, from: &str, to: SocketAddr, count: usize) -> Vec<std::net::TcpStream> {
        let from: IpAddr = from.parse().unwrap();
        self.run(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut attempts = tokio::task::JoinSet::new();
                (0..count).for_each(|_| drop(attempts.spawn(open(from, to))));
                let done = attempts.join_all().await;
                done.into_iter().flatten().map(|stream| stream.into_std().unwrap()).collect()
            })
        })
    }
}

async fn open(from: IpAddr, to: SocketAddr) -> Option<TcpStream> {
    let socket = if from.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.unwrap();
    // One SYN each: what is not answered is not repeated, so that counters can be compared.
    let once: libc::c_int = 1;
    // SAFETY: a socket, and an int with its size.
    let failed = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_SYNCNT,
            (&raw const once).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    assert_eq!(failed, 0, "{}", io::Error::last_os_error());
    socket.bind(SocketAddr::new(from, 0)).unwrap();
    tokio::time::timeout(PATIENCE, socket.connect(to)).await.ok()?.ok()
}

impl Drop for Clients {
    fn drop(&mut self) {
        drop(self.jobs.take());
        // A job's own panic was told where it was waited for.
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

/// Puts a frame on the cable as it is. To be called on the clients' host.
pub(crate) fn send_frame(frame: &[u8]) {
    use rustix::net::{AddressFamily, SocketType, netdevice, socket};
    let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None).unwrap();
    let ifindex = netdevice::name_to_index(any, "client0").unwrap();
    // SAFETY: all fields are integers.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = libc::AF_PACKET as u16;
    to.sll_ifindex = ifindex as i32;
    // SAFETY: no pointer is passed.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: a descriptor that was just made, and that nobody else owns.
    let raw = unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) };
    let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the frame and the address live through the call, with their sizes.
    let sent = unsafe {
        libc::sendto(raw.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0, (&raw const to).cast(), size)
    };
    assert_eq!(usize::try_from(sent), Ok(frame.len()), "{}", io::Error::last_os_error());
}
