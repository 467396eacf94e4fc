//! Without rights or places: one line says what is missing, and counting goes on in memory.
#![expect(unsafe_code, reason = "setuid, capset and umount2")]

use std::fs;

use router_user::account::view::pinned;
use router_user::account::{
    CgroupError, Detach, Hook, KernelError, KernelMode, KernelOptions, State, detach, open,
};

use crate::sandbox::{Sandbox, name, run, say, wait_until_finished};
use crate::world::{reason, register, requests, try_open};

#[test]
fn without_capabilities_the_reason_names_them() {
    const NOBODY: u32 = 65534;
    run(name!(), |sandbox| {
        if sandbox.step().is_none() {
            return drop(sandbox.helper("nobody").finish());
        }
        // SAFETY: changes who this process is, in all of its threads.
        assert_eq!(unsafe { libc::setgid(NOBODY) + libc::setuid(NOBODY) }, 0);
        let account = try_open(sandbox, KernelMode::Auto).unwrap();
        assert_eq!(reason(&account), "needs CAP_BPF and CAP_NET_ADMIN and CAP_PERFMON");
        assert!(matches!(try_open(sandbox, KernelMode::On), Err(KernelError::Capabilities(_))));
        let id = register(&account, "127.0.0.1:1".parse().unwrap());
        requests(&account, id, 7);
        assert_eq!(account.in_flight(id), 7);
    });
}

#[test]
fn a_pin_directory_elsewhere_is_named() {
    run(name!(), |_sandbox| {
        let dir = tempfile::tempdir().unwrap();
        let options =
            |mode| KernelOptions { mode, pin_dir: dir.path().join("pins"), hook: Hook::Cgroup(None) };
        let account = open(&options(KernelMode::Auto)).unwrap();
        let text = reason(&account);
        assert!(text.contains("pins") && text.contains("not on a BPF file system"), "{text}");
        assert!(matches!(open(&options(KernelMode::On)), Err(KernelError::NotBpffs { .. })));
        assert!(!dir.path().join("pins").exists(), "nothing was made there");
    });
}

#[test]
fn a_missing_bpf_file_system_is_mounted_at_its_usual_place() {
    run(name!(), |_sandbox| {
        let usual = c"/sys/fs/bpf";
        // SAFETY: a terminated string; only this case's mount namespace loses the mount, if there was one.
        while unsafe { libc::umount2(usual.as_ptr(), libc::MNT_DETACH) } == 0 {}
        let pin_dir = std::path::Path::new(usual.to_str().unwrap()).join("unlatch-test");
        let account =
            open(&KernelOptions { mode: KernelMode::On, pin_dir: pin_dir.clone(), hook: Hook::Cgroup(None) })
                .unwrap();
        assert!(pin_dir.join("v1/LOAD").exists());
        drop(account);
        detach(&pin_dir, Detach::Careful).unwrap();
        assert!(!pin_dir.exists());
    });
}

#[test]
fn a_cgroup_that_does_not_hold_this_process_is_refused() {
    run(name!(), |sandbox| {
        let beside = sandbox.cgroup.join("beside");
        fs::create_dir(&beside).unwrap();
        let options =
            |mode, cgroup| KernelOptions { mode, pin_dir: sandbox.pin_dir(), hook: Hook::Cgroup(cgroup) };
        let refused = open(&options(KernelMode::On, Some(beside.clone()))).unwrap_err();
        fs::remove_dir(&beside).unwrap();
        assert!(matches!(&refused, KernelError::Cgroup(CgroupError::NotAbove { .. })), "{refused}");
        let missing = open(&options(KernelMode::Auto, Some(beside))).unwrap();
        assert!(reason(&missing).contains("cannot open cgroup"), "{}", reason(&missing));
        assert!(open(&options(KernelMode::On, Some(sandbox.cgroup.clone()))).unwrap().state().is_on());
    });
}

#[test]
fn a_chosen_cgroup_further_up_counts_processes_beside() {
    run(name!(), |sandbox| {
        if let Some(backend) = sandbox.step() {
            let beside = sandbox.cgroup.join("beside");
            fs::write(beside.join("cgroup.procs"), "0").unwrap();
            let _open = std::net::TcpStream::connect(backend).unwrap();
            say("open");
            return wait_until_finished();
        }
        let (own, beside) = (sandbox.cgroup.join("own"), sandbox.cgroup.join("beside"));
        fs::create_dir(&own).unwrap();
        fs::create_dir(&beside).unwrap();
        fs::write(own.join("cgroup.procs"), "0").unwrap();
        let options = KernelOptions {
            mode: KernelMode::On,
            pin_dir: sandbox.pin_dir(),
            hook: Hook::Cgroup(Some(sandbox.cgroup.clone())),
        };
        let account = open(&options).unwrap();
        let backend = crate::world::Backend::new(&account, "127.0.0.1");
        let mut other = sandbox.helper(&backend.addr().to_string());
        other.hears();
        assert_eq!(account.row(backend.id).conns, 1);
        other.finish();
        fs::remove_dir(&beside).unwrap();
        fs::write(sandbox.cgroup.join("cgroup.procs"), "0").unwrap();
        fs::remove_dir(&own).unwrap();
    });
}

/// Capabilities of this thread from now on.
fn keep_only(capabilities: &[u32]) {
    /// `_LINUX_CAPABILITY_VERSION_3`; 0 = the calling thread.
    const HEADER: [u32; 2] = [0x2008_0522, 0];
    let mask = capabilities.iter().fold(0_u64, |mask, capability| mask | 1 << capability);
    let (low, high) = (mask as u32, (mask >> 32) as u32);
    // Effective, permitted, inheritable; first the lower 32 capabilities, then the upper.
    let sets = [low, low, 0, high, high, 0];
    // SAFETY: both arrays have the layout that version 3 asks for, and are only read.
    let failed = unsafe { libc::syscall(libc::SYS_capset, HEADER.as_ptr(), sets.as_ptr()) };
    assert_eq!(failed, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn three_capabilities_are_enough_and_fewer_are_not() {
    const CAP_NET_ADMIN: u32 = 12;
    const CAP_PERFMON: u32 = 38;
    const CAP_BPF: u32 = 39;
    run(name!(), |sandbox| {
        keep_only(&[CAP_NET_ADMIN, CAP_PERFMON, CAP_BPF]);
        let account = crate::world::account(sandbox);
        let backend = crate::world::Backend::new(&account, "127.0.0.1");
        let _open = backend.connect();
        assert_eq!(account.row(backend.id).conns, 1);
        keep_only(&[CAP_BPF]);
        let without = try_open(sandbox, KernelMode::Auto).unwrap();
        assert_eq!(reason(&without), "needs CAP_NET_ADMIN and CAP_PERFMON");
    });
}

/// Puts something in the way of a program's link.
fn block(sandbox: &Sandbox, program: &str) {
    drop(crate::world::account(sandbox));
    let links = pinned(&sandbox.pin_dir()).unwrap().links;
    let path = &links.iter().find(|link| link.program == program).unwrap().path;
    fs::remove_file(path).unwrap();
    fs::create_dir(path).unwrap();
}

#[test]
fn without_the_connection_counter_requests_are_still_shared() {
    run(name!(), |sandbox| {
        block(sandbox, "inflight_sockops");
        let account = try_open(sandbox, KernelMode::Auto).unwrap();
        let State::On { programs, missing, .. } = account.state() else { panic!("{:?}", account.state()) };
        assert_eq!(programs, &["release"]);
        assert!(missing[0].starts_with("inflight_sockops (unpin)"), "{missing:?}");
        assert!(missing[1..].iter().all(|why| why.contains("of no use without")), "{missing:?}");
        assert!(matches!(try_open(sandbox, KernelMode::On), Err(KernelError::Program(_))));
    });
}

#[test]
fn without_the_program_that_frees_slots_nothing_is_shared() {
    run(name!(), |sandbox| {
        block(sandbox, "release");
        let account = try_open(sandbox, KernelMode::Auto).unwrap();
        assert!(reason(&account).contains("cannot attach release"), "{}", reason(&account));
        assert!(matches!(try_open(sandbox, KernelMode::On), Err(KernelError::Program(_))));
    });
}
