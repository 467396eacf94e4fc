//! Without a right, a place or a feature of the kernel: one line names what is missing, and traffic goes on.
//!
//! E02 of the known failures of others: a missing capability must be named, and must not stop the service.
#![expect(unsafe_code, reason = "a seccomp filter for the bpf system call")]

use std::os::unix::fs::chown;

use router_common::limits::MAX_BACKENDS;
use router_tests::client::{Client, ask};
use router_tests::wait;
use router_user::account::view::View;

use crate::program::{CAPABILITIES, NOBODY, Program, Serve, completion, holding_engine};
use crate::router_process::is_built;
use crate::sandbox::{Sandbox, name, run};
use crate::world::{ATTACHED, account, register};

/// Traffic passes, is counted in memory, and one line says why.
#[track_caller]
pub(crate) fn serves_without_kernel(router: &Program, because: &[&str]) {
    assert_eq!(ask(router.addr, completion("answer")).status, 200);
    let in_flight = |count: f64| {
        wait::until("the count in memory", || router.metric("unlatch_backend_in_flight") == Some(count));
    };
    let mut client = Client::connect(router.addr);
    client.send(completion("hold"));
    in_flight(1.0);
    drop(client);
    in_flight(0.0);
    let said = router.said();
    assert_eq!(said.len(), 1, "{said:?}");
    let status: serde_json::Value = serde_json::from_str(&router.get("/status")).unwrap();
    let line = status["kernel"]["line"].as_str().unwrap();
    for part in because {
        assert!(said[0].contains(part), "no {part:?} in {said:?}");
        assert!(line.contains(part), "no {part:?} in {line}");
    }
    assert_eq!(router.metric("unlatch_kernel_attached"), Some(0.0), "shown as off");
    assert_eq!(router.metric("unlatch_backend_kernel_connections"), None, "unknown is no 0");
}

/// The same program with `--kernel on` ends with 69 and one line.
#[track_caller]
pub(crate) fn refuses(serve: Serve, because: &[&str]) {
    let (code, said) = serve.refused();
    assert_eq!((code, said.lines().count()), (Some(69), 1), "{said}");
    assert!(because.iter().all(|part| said.contains(part)), "{because:?} in {said}");
}

#[test]
fn e02_each_missing_capability_is_named_and_traffic_goes_on() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let engine = holding_engine();
        let serve = |kernel: &str, capabilities: &[&str]| {
            Serve::new(sandbox, "127.78.2.1", kernel, &[&engine]).for_nobody(sandbox, capabilities)
        };
        for subset in 0..7_usize {
            let (has, lacks): (Vec<_>, Vec<_>) = (0..3).partition(|bit| subset & (1 << bit) != 0);
            let [has, lacks] = [has, lacks]
                .map(|bits| bits.into_iter().map(|bit: usize| CAPABILITIES[bit].0).collect::<Vec<_>>());
            let because = format!("needs {}", lacks.join(" and "));
            serves_without_kernel(&serve("auto", &has).start(), &[&because]);
            refuses(serve("on", &has), &[&because]);
            assert!(!sandbox.pin_dir().exists(), "nothing is left of a try with {has:?}");
        }
    });
}

#[test]
fn three_capabilities_and_a_directory_of_its_own_are_enough_for_nobody() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let engine = holding_engine();
        // As packaging/unlatch.service does it.
        std::fs::create_dir(sandbox.pin_dir()).unwrap();
        chown(sandbox.pin_dir(), Some(NOBODY), Some(NOBODY)).unwrap();
        for kernel in ["auto", "on"] {
            let all = CAPABILITIES.map(|(name, _)| name);
            let router =
                Serve::new(sandbox, "127.78.2.2", kernel, &[&engine]).for_nobody(sandbox, &all).start();
            let mut client = Client::connect(router.addr);
            client.send(completion("hold"));
            wait::until("the kernel's count", || {
                router.metric("unlatch_backend_kernel_awaiting") == Some(1.0)
            });
            assert_eq!(router.said(), Vec::<String>::new());
            assert_eq!(router.metric("unlatch_kernel_attached"), Some(ATTACHED));
            let workers = View::open(&sandbox.pin_dir()).unwrap().workers();
            assert_eq!(workers.iter().map(|(_, worker)| worker.pid).collect::<Vec<_>>(), [router.pid()]);
        }
    });
}

/// From now on the kernel answers this thread, and what it starts, with an error: to every call of bpf, or to one of
/// its commands.
fn refuse_bpf(errno: libc::c_int, command: Option<u32>) {
    let load = |offset| libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: offset };
    let unless_equal_skip = |value, jf| libc::sock_filter { code: 0x15, jt: 0, jf, k: value };
    let give = |value| libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: value };
    // Of `seccomp_data`: the number of the call, and the lower half of its first argument.
    let mut filter =
        vec![load(0), unless_equal_skip(libc::SYS_bpf as u32, if command.is_some() { 3 } else { 1 })];
    if let Some(command) = command {
        filter.extend([load(16), unless_equal_skip(command, 1)]);
    }
    filter.extend([give(libc::SECCOMP_RET_ERRNO | errno as u32), give(libc::SECCOMP_RET_ALLOW)]);
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its instructions live through the call, which copies them.
    let failed =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0) };
    assert_eq!(failed, 0, "{}", std::io::Error::last_os_error());
}

/// A kernel that lacks something: what its calls say, and the words that must be in the line.
fn lacks(sandbox: &Sandbox, ip: &str, errno: libc::c_int, command: Option<u32>, because: &[&str]) {
    let engine = holding_engine();
    refuse_bpf(errno, command);
    serves_without_kernel(&Serve::new(sandbox, ip, "auto", &[&engine]).start(), because);
    refuses(Serve::new(sandbox, ip, "on", &[&engine]), because);
}

#[test]
fn e02_a_forbidden_bpf_call_is_named() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        lacks(
            sandbox,
            "127.78.2.3",
            libc::EPERM,
            None,
            &["cannot load the BPF object", "Operation not permitted"],
        );
    });
}

#[test]
fn a_kernel_without_bpf_is_named() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        lacks(sandbox, "127.78.2.4", libc::ENOSYS, None, &["cannot load the BPF object", "not implemented"]);
    });
}

#[test]
fn a_kernel_that_cannot_link_programs_to_cgroups_is_named() {
    const BPF_LINK_CREATE: u32 = 28;
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let because = ["cannot attach release (attach)", "Invalid argument"];
        lacks(sandbox, "127.78.2.5", libc::EINVAL, Some(BPF_LINK_CREATE), &because);
    });
}

#[test]
fn a_missing_bpf_file_system_is_named() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let engine = holding_engine();
        let elsewhere = sandbox.bpffs.with_file_name("no-bpffs").join("pins");
        let serve = |kernel: &str| {
            let serve = Serve::new(sandbox, "127.78.2.6", kernel, &[&engine]);
            serve.arg(format!("--pin-dir={}", elsewhere.display()))
        };
        let because = [elsewhere.to_str().unwrap(), "not on a BPF file system"];
        serves_without_kernel(&serve("auto").start(), &because);
        refuses(serve("on"), &because);
    });
}

#[test]
fn when_other_routers_have_all_rows_one_counts_alone() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let others = account(sandbox);
        for port in 1..=MAX_BACKENDS as u16 {
            register(&others, ([127, 0, 0, 9], port).into());
        }
        let engine = holding_engine();
        let serve = |kernel: &str| Serve::new(sandbox, "127.78.2.7", kernel, &[&engine]);
        serves_without_kernel(&serve("auto").start(), &["all 256 backend rows of this host are in use"]);
        refuses(serve("on"), &["all 256 backend rows of this host are in use"]);
    });
}
