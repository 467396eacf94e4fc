//! The edge guard between two hosts: who gets through, what is counted, and that nothing stays.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;

use router_common::edge::{EdgeLimits, Verdict};
use router_tests::client::ask;
use router_tests::router;
use router_user::config::{Config, EdgeConfig, KernelConfig, KernelMode};
use router_user::edge::view::{self, Kind};
use router_user::edge::{Edge, EdgeOptions, Mode, Prefix};

use crate::hosts::{CLIENTS, Clients, DEVICE, ROUTER, connect_hosts, ip, send_frame};
use crate::sandbox::{Sandbox, name, run};
use crate::world::wait_until;

/// A guarded port and one beside it, over both families.
pub(crate) struct Ports {
    v4: [TcpListener; 2],
    v6: [TcpListener; 2],
}

impl Ports {
    pub(crate) fn open() -> Self {
        let v4 = [(ROUTER[0], 8001), (ROUTER[0], 8003)].map(|at| TcpListener::bind(at).unwrap());
        let v6 = [(ROUTER[1], 8001), (ROUTER[1], 8003)].map(|at| TcpListener::bind(at).unwrap());
        Self { v4, v6 }
    }
}

pub(crate) const GUARDED: u16 = 8001;
const BESIDE: u16 = 8003;

/// Where a client of this address finds the router.
pub(crate) fn at(client: &str, port: u16) -> SocketAddr {
    let client: IpAddr = client.parse().unwrap();
    SocketAddr::new(ROUTER[usize::from(client.is_ipv6())].parse().unwrap(), port)
}

pub(crate) fn tries(clients: &Clients, from: &str, port: u16) -> bool {
    !clients.connect(from, at(from, port), 1).is_empty()
}

pub(crate) fn options(sandbox: &Sandbox, device: &str) -> EdgeOptions {
    EdgeOptions {
        pin_dir: sandbox.pin_dir(),
        device: device.to_owned(),
        port: GUARDED,
        deny: Vec::new(),
        allow: Vec::new(),
        limits: EdgeLimits::default(),
    }
}

pub(crate) fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn packets(sandbox: &Sandbox, verdict: Verdict) -> u64 {
    view::state(&sandbox.pin_dir()).unwrap().packets[verdict as usize].1
}

/// Whether a program is on the device.
pub(crate) fn is_attached(device: &str) -> bool {
    ip(&["link", "show", "dev", device]).contains("xdp")
}

/// The kernel frees a link a moment after its last pin went.
pub(crate) fn wait_detached() {
    wait_until(|| if is_attached(DEVICE) { Err("a program on the device".to_owned()) } else { Ok(()) });
}

#[test]
fn denied_prefixes_cannot_connect_and_others_can() {
    run(name!(), |sandbox| {
        let clients = connect_hosts().unwrap();
        let _ports = Ports::open();
        let deny = ["10.9.1.0/24", "fd09:0:0:2::/64"].map(prefix).into();
        let edge = Edge::start(&EdgeOptions { deny, ..options(sandbox, DEVICE) }).unwrap();
        assert_eq!((edge.mode(), edge.not_native()), (Mode::Native, None));
        let denied = ["10.9.1.2", "10.9.1.3", "fd09:0:0:2::2", "fd09:0:0:2::3"];
        for client in CLIENTS {
            assert_eq!(tries(&clients, client, GUARDED), !denied.contains(&client), "{client}");
            assert!(tries(&clients, client, BESIDE), "{client}: other ports are not guarded");
        }
        assert_eq!(packets(sandbox, Verdict::Denied), 4, "one SYN of each");
        assert_eq!(packets(sandbox, Verdict::Admitted), 3);

        // A longer prefix decides, and rules change without a router's help.
        view::add(&sandbox.pin_dir(), prefix("10.9.1.2"), Kind::Allow).unwrap();
        view::add(&sandbox.pin_dir(), prefix("10.9.0.3"), Kind::Deny).unwrap();
        let now = ["10.9.1.2", "10.9.1.3", "10.9.0.3"].map(|client| tries(&clients, client, GUARDED));
        assert_eq!(now, [true, false, false]);
        assert!(view::remove(&sandbox.pin_dir(), prefix("10.9.0.3"), Kind::Deny).unwrap());
        assert!(!view::remove(&sandbox.pin_dir(), prefix("10.9.0.3"), Kind::Deny).unwrap());
        assert!(tries(&clients, "10.9.0.3", GUARDED));
    });
}

#[test]
fn a_denied_source_loses_its_connections_too() {
    run(name!(), |sandbox| {
        let clients = connect_hosts().unwrap();
        let ports = Ports::open();
        let _edge = Edge::start(&options(sandbox, DEVICE)).unwrap();
        let mut theirs = clients.connect(CLIENTS[0], at(CLIENTS[0], GUARDED), 1).remove(0);
        let (mut ours, _) = ports.v4[0].accept().unwrap();
        echo(&mut theirs, &mut ours);
        view::add(&sandbox.pin_dir(), prefix(CLIENTS[0]), Kind::Deny).unwrap();
        let before = packets(sandbox, Verdict::Denied);
        theirs.write_all(b"x").unwrap();
        ours.set_read_timeout(Some(std::time::Duration::from_millis(200))).unwrap();
        assert!(ours.read(&mut [0; 1]).is_err(), "nothing of it arrives");
        assert!(packets(sandbox, Verdict::Denied) > before);
    });
}

/// A byte there and back.
fn echo(theirs: &mut TcpStream, ours: &mut TcpStream) {
    for stream in [&*theirs, &*ours] {
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    }
    let mut byte = [0];
    theirs.write_all(b"?").unwrap();
    ours.read_exact(&mut byte).unwrap();
    ours.write_all(b"!").unwrap();
    theirs.read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"!");
}

#[test]
fn a_burst_of_one_source_is_limited_and_nobody_else() {
    run(name!(), |sandbox| {
        let clients = connect_hosts().unwrap();
        let ports = Ports::open();
        let allow = vec![prefix("10.9.1.0/24")];
        // One in 10 s is beyond what this case takes: the bucket never refills in it.
        let limits = EdgeLimits { interval_ns: 10_000_000_000, burst: 5, rate: 1 };
        let _edge = Edge::start(&EdgeOptions { allow, limits, ..options(sandbox, DEVICE) }).unwrap();

        let mut early = clients.connect("10.9.0.2", at("10.9.0.2", GUARDED), 1).remove(0);
        let (mut ours, _) = ports.v4[0].accept().unwrap();
        assert_eq!(clients.connect("10.9.0.2", at("10.9.0.2", GUARDED), 8).len(), 4, "the burst is 5");
        assert_eq!(packets(sandbox, Verdict::Limited), 4);
        assert_eq!(packets(sandbox, Verdict::Admitted), 5);

        echo(&mut early, &mut ours);
        assert!(packets(sandbox, Verdict::Established) > 0);
        assert!(tries(&clients, "10.9.0.3", GUARDED), "another source has a bucket of its own");
        assert_eq!(
            clients.connect("10.9.0.2", at("10.9.0.2", BESIDE), 8).len(),
            8,
            "another port is not guarded"
        );
        assert_eq!(
            clients.connect("10.9.1.2", at("10.9.1.2", GUARDED), 20).len(),
            20,
            "a trusted one is not limited"
        );
        assert_eq!(packets(sandbox, Verdict::Trusted), 20);

        // An IPv6 host has one bucket for its /64.
        assert_eq!(clients.connect("fd09:0:0:2::2", at("fd09::2", GUARDED), 3).len(), 3);
        assert_eq!(clients.connect("fd09:0:0:2::3", at("fd09::2", GUARDED), 3).len(), 2);
        assert!(tries(&clients, "fd09::2", GUARDED));
        drop(ports.v6);

        // Raised limits hold at once.
        let raised = view::limit(&sandbox.pin_dir(), Some(0), None).unwrap();
        assert_eq!((raised.rate, raised.burst), (0, 5));
        assert!(tries(&clients, "10.9.0.2", GUARDED));
    });
}

/// An Ethernet frame to everybody with 64 bytes after its type.
fn frame(kind: u16, head: &[u8]) -> Vec<u8> {
    let mut frame = [[0xff; 6], [2, 0, 0, 0, 0, 9]].concat();
    frame.extend(kind.to_be_bytes());
    frame.extend(head);
    frame.resize(14 + 84, 0);
    frame
}

/// A SYN of 10.9.0.2 to the guarded port over IPv4, with these words of options and this fragment field.
fn syn_v4(option_words: u8, fragment: u16) -> Vec<u8> {
    let [high, low] = fragment.to_be_bytes();
    let mut ip = vec![0x45 + option_words, 0, 0, 84, 0, 1, high, low, 64, 6, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1];
    ip.extend(vec![1; usize::from(option_words) * 4]);
    ip.extend([0x90, 0]);
    ip.extend(GUARDED.to_be_bytes());
    ip.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0x10, 0]);
    frame(0x0800, &ip)
}

/// A datagram of 10.9.0.2 to the guarded port over IPv4.
fn datagram_v4() -> Vec<u8> {
    let mut datagram = syn_v4(0, 0);
    datagram[14 + 9] = 17;
    datagram
}

fn over_ipv6(next_header: u8) -> Vec<u8> {
    frame(0x86dd, &[0x60, 0, 0, 0, 0, 44, next_header, 64])
}

#[test]
fn what_cannot_be_read_passes_and_is_counted_and_options_hide_nothing() {
    run(name!(), |sandbox| {
        let clients = connect_hosts().unwrap();
        let deny = ["0.0.0.0/0", "::/0"].map(prefix).into();
        let _edge = Edge::start(&EdgeOptions { deny, ..options(sandbox, DEVICE) }).unwrap();
        let cases = [
            (frame(0x8100, &[0, 7, 8, 0]), Verdict::Vlan),
            (frame(0x88a8, &[0, 7, 8, 0]), Verdict::Vlan),
            (syn_v4(0, 0x2000), Verdict::Fragment),
            (syn_v4(0, 0x0001), Verdict::Fragment),
            (over_ipv6(44), Verdict::Fragment),
            (over_ipv6(0), Verdict::Extension),
            (over_ipv6(60), Verdict::Extension),
            (syn_v4(0, 0x4000), Verdict::Denied),
            (syn_v4(10, 0), Verdict::Denied),
            (frame(0x0800, &[0x41; 20]), Verdict::Other),
            // What the router does not speak is not its guard's to drop.
            (datagram_v4(), Verdict::Other),
        ];
        for (frame, verdict) in cases {
            let before = packets(sandbox, verdict);
            let sent = frame.clone();
            clients.run(move || send_frame(&sent));
            wait_until(|| match packets(sandbox, verdict) > before {
                true => Ok(()),
                false => Err(format!("no {verdict:?} for {frame:02x?}")),
            });
        }
        let counted = [Verdict::Vlan, Verdict::Fragment, Verdict::Denied];
        assert_eq!(counted.map(|verdict| packets(sandbox, verdict)), [2, 3, 2]);
        // A new device also tells its IPv6 groups, behind a hop-by-hop header, when the kernel sees fit.
        assert!(packets(sandbox, Verdict::Extension) >= 2);
    });
}

#[test]
fn a_device_without_native_mode_is_guarded_in_generic_mode() {
    run(name!(), |sandbox| {
        let _clients = connect_hosts().unwrap();
        let deny = vec![prefix("127.0.0.2/32")];
        let edge = Edge::start(&EdgeOptions { deny, ..options(sandbox, "lo") }).unwrap();
        assert_eq!(edge.mode(), Mode::Generic);
        assert!(edge.not_native().is_some_and(|why| !why.contains('\n')), "{:?}", edge.not_native());
        let _listener = TcpListener::bind(("127.0.0.1", GUARDED)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let connects = |from: &str| {
            let from: SocketAddr = format!("{from}:0").parse().unwrap();
            runtime.block_on(async {
                let socket = tokio::net::TcpSocket::new_v4().unwrap();
                socket.bind(from).unwrap();
                let connecting = socket.connect(([127, 0, 0, 1], GUARDED).into());
                tokio::time::timeout(std::time::Duration::from_millis(400), connecting).await.is_ok()
            })
        };
        assert!(connects("127.0.0.1"));
        assert!(!connects("127.0.0.2"));
    });
}

/// A router's configuration with a guard on a device.
fn guarded(sandbox: &Sandbox, device: &str) -> Config {
    Config {
        listen: SocketAddr::new(ROUTER[0].parse().unwrap(), GUARDED),
        kernel: KernelConfig { mode: KernelMode::Off, pin_dir: sandbox.pin_dir(), ..KernelConfig::default() },
        edge: EdgeConfig {
            device: Some(device.to_owned()),
            deny: vec![prefix("10.9.1.0/24")],
            ..EdgeConfig::default()
        },
        ..router::config(&[])
    }
}

#[test]
fn a_router_guards_its_port_while_it_runs_and_counts_in_its_metrics() {
    run(name!(), |sandbox| {
        let clients = connect_hosts().unwrap();
        let router = router::start(guarded(sandbox, DEVICE));
        assert!(tries(&clients, "10.9.0.2", GUARDED));
        assert!(!tries(&clients, "10.9.1.2", GUARDED));
        let metrics = ask(router.admin_addr(), "GET /metrics HTTP/1.1\r\nhost: h\r\n\r\n");
        let text = String::from_utf8_lossy(&metrics.body);
        assert!(text.contains(r#"unlatch_edge_packets_total{verdict="denied"} 1"#), "{text}");
        assert!(is_attached(DEVICE));
        drop(router);
        wait_detached();
        view::detach(&sandbox.pin_dir()).unwrap();
        assert!(!sandbox.pin_dir().exists());
    });
}

#[test]
fn a_router_serves_without_the_guard_it_cannot_have() {
    run(name!(), |sandbox| {
        let clients = connect_hosts().unwrap();
        let router = router::start(guarded(sandbox, "nosuchdev0"));
        assert!(tries(&clients, "10.9.1.2", GUARDED));
        drop(router);
        assert!(!Path::new(&sandbox.pin_dir()).exists());
        // Somebody else's program is left alone.
        let other = sandbox.bpffs.join("other");
        let object = concat!(env!("CARGO_MANIFEST_DIR"), "/../router-ebpf/object/edge.o");
        crate::world::bpftool(&["prog", "load", object], &other, &["type", "xdp"]);
        ip(&["link", "set", "dev", DEVICE, "xdpdrv", "pinned", other.to_str().unwrap()]);
        let router = router::start(guarded(sandbox, DEVICE));
        assert!(tries(&clients, "10.9.1.2", GUARDED));
        drop(router);
        assert!(is_attached(DEVICE));
        assert!(!Path::new(&sandbox.pin_dir()).exists(), "nothing was left");
    });
}
