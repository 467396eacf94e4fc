//! Programs at network devices instead of a cgroup: `lo`, where both ends are seen, and a cable to another host.
#![expect(unsafe_code, reason = "asking what is attached is a bpf system call; umount2")]

use std::fs;
use std::net::{TcpListener, TcpStream};

use router_user::account::view::{View, pinned};
use router_user::account::{
    Account, At, Detach, DeviceError, Hook, KernelError, KernelMode, KernelOptions, Role, State, detach, open,
};

use crate::hosts::{CLIENTS, Clients, DEVICE, connect_hosts, ip, own_network, send_frame};
use crate::phases::{AWAITING, CHUNKED, IDLE, LAST_CHUNK, REQUEST, STREAMING, UNKNOWN, Wire, pass};
use crate::sandbox::{Sandbox, name, run, say, wait_until_finished};
use crate::world::{Backend, account, connect_marked, register, requests, try_open, wait_row, wait_until};

const PROGRAMS: [&str; 2] = ["tcx_ingress", "tcx_egress"];

pub(crate) fn try_at(sandbox: &Sandbox, mode: KernelMode, devices: &[&str]) -> Result<Account, KernelError> {
    let devices = devices.iter().map(|&name| name.to_owned()).collect();
    open(&KernelOptions { mode, pin_dir: sandbox.pin_dir(), hook: Hook::Tcx(devices) })
}

/// An account with both programs on each of the devices.
pub(crate) fn at_devices(sandbox: &Sandbox, devices: &[&str]) -> Account {
    let account = try_at(sandbox, KernelMode::On, devices).unwrap();
    let State::On { programs, missing, .. } = account.state() else { panic!("{:?}", account.state()) };
    assert_eq!((programs.as_slice(), missing.len()), (&PROGRAMS[..], 0));
    account
}

/// How many programs are on a device, both ways.
pub(crate) fn attached(device: &str) -> u32 {
    const BPF_PROG_QUERY: libc::c_int = 16;
    const TCX: [u32; 2] = [46, 47];
    let any = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::DGRAM, None);
    let ifindex = rustix::net::netdevice::name_to_index(any.unwrap(), device).unwrap();
    let count = |direction| {
        // Device, direction, two kinds of flags, where to put numbers (nowhere), and how many there are.
        let mut query = [ifindex, direction, 0, 0, 0, 0, 0, 0];
        // SAFETY: the attributes live through the call, which writes the count into them.
        let done =
            unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_QUERY, query.as_mut_ptr(), size_of_val(&query)) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        query[6]
    };
    TCX.map(count).iter().sum()
}

/// The kernel takes a program off a little after its link went.
pub(crate) fn wait_detached(device: &str) {
    wait_until(|| match attached(device) {
        0 => Ok(()),
        programs => Err(format!("{programs} programs")),
    });
}

/// A backend on the other host.
pub(crate) fn beyond(hosts: &Clients, account: &Account, host: &'static str) -> Backend {
    let listener = hosts.run(move || TcpListener::bind((host, 0)).unwrap());
    let addr = listener.local_addr().unwrap();
    Backend { listener, id: register(account, addr) }
}

/// Two requests, and the end of the connection.
fn follow(mut wire: Wire) {
    wire.is(IDLE);
    for n in 1..=2 {
        wire.ask(REQUEST).is(AWAITING);
        wire.answer(CHUNKED).is(STREAMING).answer("5\r\nhello\r\n").is(STREAMING);
        wire.answer(LAST_CHUNK).is(IDLE);
        assert_eq!(wire.row().ttfb_count, n);
    }
    wire.ask(REQUEST).answer("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab").is(STREAMING);
    wire.answer("cd").is(IDLE);
    // In parts that the receiver has room for: what it drops is sent, and seen, again.
    let long = "HTTP/1.1 200 OK\r\ncontent-length: 300000\r\n\r\n";
    wire.ask(REQUEST).answer(long).is(STREAMING);
    for _ in 0..10 {
        wire.answer("x".repeat(30_000));
    }
    wire.is(IDLE);
    let row = wire.row();
    let chunked = CHUNKED.len() + "5\r\nhello\r\n".len() + LAST_CHUNK.len();
    let sized = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nabcd".len();
    let answers = 2 * chunked + sized + long.len() + 300_000;
    assert_eq!((row.tx_bytes, row.rx_bytes), (4 * REQUEST.len() as u64, answers as u64));
    assert_eq!((row.conns, row.foreign_conns, row.opened, row.closed), (1, 1, 1, 0));
    assert!(row.ttfb_ns > 0 && row.last_rx_ns > 0);
    let Wire { account, backend, ours, theirs } = wire;
    drop((ours, theirs));
    wait_row(&account, backend.id, |row| (row.conns, row.foreign_conns, row.closed) == (0, 0, 1));
    assert_eq!(account.row(backend.id).resets, 0);
}

#[test]
fn requests_are_followed_at_lo_where_both_ends_are_seen() {
    run(name!(), |sandbox| {
        own_network().unwrap();
        let account = at_devices(sandbox, &["lo"]);
        for host in ["127.0.0.1", "::1"] {
            let backend = Backend::new(&account, host);
            follow(Wire::to(account.clone(), backend));
        }
    });
}

#[test]
fn requests_are_followed_over_a_cable() {
    run(name!(), |sandbox| {
        let hosts = connect_hosts().unwrap();
        // One device after the other makes no difference: this one leads nowhere.
        let account = at_devices(sandbox, &[DEVICE, "lo"]);
        for host in [CLIENTS[0], CLIENTS[4]] {
            let backend = beyond(&hosts, &account, host);
            follow(Wire::to(account.clone(), backend));
        }
    });
}

#[test]
fn a_dual_stack_socket_is_the_same_row() {
    run(name!(), |sandbox| {
        own_network().unwrap();
        let account = at_devices(sandbox, &["lo"]);
        let backend = Backend::new(&account, "127.0.0.1");
        let mapped = format!("[::ffff:127.0.0.1]:{}", backend.addr().port());
        let mut ours = TcpStream::connect(mapped).unwrap();
        let mut theirs = backend.listener.accept().unwrap().0;
        pass(&mut ours, &mut theirs, REQUEST);
        wait_row(&account, backend.id, |row| (row.conns, row.awaiting) == (1, 1));
        pass(&mut theirs, &mut ours, CHUNKED);
        wait_row(&account, backend.id, |row| (row.awaiting, row.streaming) == (0, 1));
    });
}

#[test]
fn what_cannot_be_told_is_unknown_and_probes_are_nowhere() {
    run(name!(), |sandbox| {
        own_network().unwrap();
        let account = at_devices(sandbox, &["lo"]);
        let backend = Backend::new(&account, "127.0.0.1");
        let mut probe = connect_marked(&account, &backend, Role::Probe);
        let mut probes = backend.listener.accept().unwrap().0;
        pass(&mut probe, &mut probes, REQUEST);
        let mut router = connect_marked(&account, &backend, Role::Router);
        let mut routers = backend.listener.accept().unwrap().0;
        pass(&mut router, &mut routers, REQUEST);
        let mut wire = Wire::to(account, backend);
        wire.is(AWAITING);
        assert_eq!((wire.row().conns, wire.row().foreign_conns, wire.row().foreign_awaiting), (2, 1, 0));
        pass(&mut routers, &mut router, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".as_bytes());
        wire.ask(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").is(UNKNOWN).answer("anything").is(UNKNOWN);
    });
}

#[test]
fn a_connection_older_than_the_programs_is_taken_up_with_its_next_packet() {
    run(name!(), |sandbox| {
        own_network().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut theirs = listener.accept().unwrap().0;
        let account = at_devices(sandbox, &["lo"]);
        let backend = Backend { id: register(&account, listener.local_addr().unwrap()), listener };
        // The rest of a body: which protocol it is of cannot be told, so nothing is said of it.
        pass(&mut ours, &mut theirs, b"\"the rest\"}");
        wait_row(&account, backend.id, |row| (row.conns, row.unknown, row.awaiting) == (1, 0, 0));
        pass(&mut theirs, &mut ours, CHUNKED);
        assert_eq!(account.row(backend.id).streaming, 0);
        pass(&mut ours, &mut theirs, REQUEST);
        wait_row(&account, backend.id, |row| (row.conns, row.awaiting) == (1, 1));
        drop((ours, theirs));
        wait_row(&account, backend.id, |row| (row.conns, row.awaiting, row.closed) == (0, 0, 1));
    });
}

/// An acknowledgement from `from` to `to`, as short as Ethernet makes it: six bytes of padding, which are no answer.
fn padded(from: std::net::SocketAddrV4, to: std::net::SocketAddrV4, ack: u32) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    frame.extend(from.ip().octets());
    frame.extend(to.ip().octets());
    frame.extend(from.port().to_be_bytes());
    frame.extend(to.port().to_be_bytes());
    frame.extend([0; 4]);
    frame.extend(ack.to_be_bytes());
    frame.extend([0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    frame.extend([b'x'; 6]);
    assert_eq!(frame.len(), 60);
    frame
}

#[test]
fn padding_is_no_answer() {
    run(name!(), |sandbox| {
        let hosts = connect_hosts().unwrap();
        let account = at_devices(sandbox, &[DEVICE]);
        let backend = beyond(&hosts, &account, CLIENTS[0]);
        let mut wire = Wire::to(account, backend);
        let (std::net::SocketAddr::V4(to), std::net::SocketAddr::V4(from)) =
            (wire.ours.local_addr().unwrap(), wire.backend.addr())
        else {
            panic!("IPv4");
        };
        wire.ask(REQUEST).is(AWAITING);
        // The sequence number of the request is not known here: one of these comes after it.
        for ack in [0, 1 << 31] {
            let frame = padded(from, to, ack);
            hosts.run(move || send_frame(&frame));
        }
        // Frames of a cable arrive in order.
        wire.answer(CHUNKED).is(STREAMING);
        assert_eq!(wire.row().rx_bytes, CHUNKED.len() as u64);
        assert_eq!(wire.row().unknown, 0);
    });
}

#[test]
fn the_next_router_finds_links_and_totals_and_detach_leaves_nothing() {
    run(name!(), |sandbox| {
        own_network().unwrap();
        let links = || pinned(&sandbox.pin_dir()).unwrap().links;
        let wire =
            Wire::to(at_devices(sandbox, &["lo"]), Backend::new(&at_devices(sandbox, &["lo"]), "127.0.0.1"));
        let before = links();
        assert_eq!(before.len(), 2);
        assert!(
            before.iter().all(|link| link.at == At::Device(1) && link.place() == "device lo"),
            "{before:?}"
        );
        assert_eq!(attached("lo"), 2);
        let Wire { account, backend, ours, theirs } = wire;
        drop(account);
        let again = at_devices(sandbox, &["lo"]);
        assert_eq!(links(), before, "what hangs there in this version stays");
        assert_eq!(register(&again, backend.addr()), backend.id);
        assert_eq!(again.row(backend.id).conns, 1);
        drop((ours, theirs));
        wait_row(&again, backend.id, |row| (row.conns, row.closed) == (0, 1));
        drop(again);
        assert_eq!(detach(&sandbox.pin_dir(), Detach::Careful).unwrap().links.len(), 2);
        assert!(!sandbox.pin_dir().exists());
        wait_detached("lo");
    });
}

#[test]
fn a_killed_routers_slot_is_freed_by_the_living_and_by_the_next() {
    run(name!(), |sandbox| {
        own_network().unwrap();
        let addr = "127.0.0.1:1".parse().unwrap();
        if sandbox.step().is_some() {
            let account = at_devices(sandbox, &["lo"]);
            requests(&account, register(&account, addr), 3);
            say(account.slot());
            return wait_until_finished();
        }
        let account = at_devices(sandbox, &["lo"]);
        let id = register(&account, addr);
        assert!(account.needs_sweeping());
        let kill = || {
            let mut other = sandbox.helper("other");
            let slot: usize = other.hears().parse().unwrap();
            assert_eq!(account.in_flight(id), 3);
            assert_eq!(account.sweep().unwrap().slots, 0, "the living keep theirs");
            other.kill();
            drop(other);
            slot
        };
        let slot = kill();
        assert_eq!(account.in_flight(id), 3, "no program sees it die");
        assert!(!View::open(&sandbox.pin_dir()).unwrap().is_alive(slot));
        assert_eq!(account.sweep().unwrap().slots, 1);
        assert_eq!((account.in_flight(id), account.row(id).workers[slot]), (0, 0));
        assert_eq!(kill(), slot);
        let next = at_devices(sandbox, &["lo"]);
        assert_eq!((next.slot(), account.in_flight(id)), (slot, 0));
        drop(next);
        kill();
        drop(account);
        detach(&sandbox.pin_dir(), Detach::Careful).unwrap();
    });
}

#[test]
fn programs_of_both_hooks_never_count_into_the_same_maps() {
    run(name!(), |sandbox| {
        own_network().unwrap();
        let at_device = at_devices(sandbox, &["lo"]);
        assert!(matches!(try_open(sandbox, KernelMode::On), Err(KernelError::OtherHook)));
        drop(at_device);
        let at_cgroup = account(sandbox);
        let links = pinned(&sandbox.pin_dir()).unwrap().links;
        assert!(links.iter().all(|link| matches!(link.at, At::Cgroup(_))), "{links:?}");
        wait_detached("lo");
        assert!(matches!(try_at(sandbox, KernelMode::On, &["lo"]), Err(KernelError::OtherHook)));
        drop(at_cgroup);
        let at_device = at_devices(sandbox, &["lo"]);
        assert_eq!(pinned(&sandbox.pin_dir()).unwrap().links.len(), 2);
        follow(Wire::to(at_device.clone(), Backend::new(&at_device, "127.0.0.1")));
    });
}

#[test]
fn a_device_that_is_gone_is_left_and_one_made_anew_is_used() {
    run(name!(), |sandbox| {
        own_network().unwrap();
        let add = || ip(&["link", "add", "one", "type", "veth", "peer", "name", "two"]);
        add();
        drop(at_devices(sandbox, &["one"]));
        ip(&["link", "del", "one"]);
        let links = || pinned(&sandbox.pin_dir()).unwrap().links;
        assert!(links().iter().all(|link| link.at == At::Gone), "{:?}", links());
        assert!(matches!(
            try_at(sandbox, KernelMode::On, &["one"]),
            Err(KernelError::Device(DeviceError::Missing { .. }))
        ));
        add();
        let _account = at_devices(sandbox, &["one"]);
        assert_eq!(links().len(), 2);
        assert!(links().iter().all(|link| link.place() == "device one"), "{:?}", links());
    });
}

#[test]
fn no_cgroup_is_needed() {
    run(name!(), |sandbox| {
        own_network().unwrap();
        // Of this thread: the process has others, in the namespace it came from.
        let mounts = || fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let cgroups = |mounts: &str| {
            let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
            std::ffi::CString::new(mount.split(' ').nth(4)?).ok()
        };
        while let Some(mount) = cgroups(&mounts()) {
            // SAFETY: a terminated string; only this case's mount namespace loses the mount.
            assert_eq!(unsafe { libc::umount2(mount.as_ptr(), libc::MNT_DETACH) }, 0);
        }
        assert!(matches!(try_open(sandbox, KernelMode::On), Err(KernelError::Cgroup(_))));
        let account = at_devices(sandbox, &["lo"]);
        follow(Wire::to(account.clone(), Backend::new(&account, "127.0.0.1")));
    });
}

#[test]
fn what_is_missing_is_one_line() {
    run(name!(), |sandbox| {
        own_network().unwrap();
        let refused = |devices: &[&str]| {
            let account = try_at(sandbox, KernelMode::Auto, devices).unwrap();
            crate::world::reason(&account).to_owned()
        };
        assert_eq!(refused(&["none0"]), "no network device none0: No such device (os error 19)");
        assert_eq!(refused(&[]), "no network device is named; --kernel-dev does");
        ip(&["tuntap", "add", "bare0", "mode", "tun"]);
        assert_eq!(refused(&["bare0"]), "the packets of network device bare0 have no Ethernet header");
        assert!(!sandbox.pin_dir().exists(), "nothing was made");

        // A program that cannot be attached leaves the requests of routers shared, and nothing else counted.
        drop(at_devices(sandbox, &["lo"]));
        let links = pinned(&sandbox.pin_dir()).unwrap().links;
        let ingress = &links.iter().find(|link| link.program == "tcx_ingress").unwrap().path;
        fs::remove_file(ingress).unwrap();
        fs::create_dir(ingress).unwrap();
        let account = try_at(sandbox, KernelMode::Auto, &["lo"]).unwrap();
        let State::On { programs, missing, .. } = account.state() else { panic!("{:?}", account.state()) };
        assert!(programs.is_empty());
        assert!(missing[0].starts_with("tcx_ingress (unpin)"), "{missing:?}");
        assert!(missing[1].contains("of no use without"), "{missing:?}");
        let id = register(&account, "127.0.0.1:1".parse().unwrap());
        assert!(account.kernel_row(id).is_none());
        assert!(matches!(try_at(sandbox, KernelMode::On, &["lo"]), Err(KernelError::Program(_))));
    });
}
