//! Whatever is taken off under a router that serves, traffic goes on, and one line says what was lost.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use router_policy::{InFlight, LoadTable};
use router_tests::backend::{Backend, Exchange, Received, Then};
use router_tests::client::Client;
use router_tests::wait;
use router_user::account::view::{View, pinned};
use router_user::account::{Detach, detach};

use crate::agent_process::Agent;
use crate::hosts::own_network;
use crate::program::{Program, Serve, completion};
use crate::router_process::{BINARY, is_built};
use crate::sandbox::{Sandbox, name, run, say, wait_until_finished};
use crate::tcx::at_devices;
use crate::world::{ATTACHED, PROGRAMS, account, bpftool, register, requests};

/// Streams what says so, holds what says so, answers all else at once.
fn engine(request: &Received, exchange: &mut Exchange) -> Then {
    let says = |word: &[u8]| request.body.windows(word.len()).any(|text| text == word);
    if says(b"hold") {
        return exchange.wait_closed();
    }
    if says(b"stream") {
        exchange.start_stream();
        for _ in 0..5 {
            exchange.chunk("data: {}\n\n");
            std::thread::sleep(Duration::from_millis(3));
        }
        return exchange.end_stream();
    }
    exchange.answer("200 OK", "{}")
}

/// Requests on one kept connection after another, of which each must be answered in full.
fn load(router: &Program, prompt: &str, answered: &AtomicUsize, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let mut client = Client::connect(router.addr);
        for _ in 0..50 {
            client.send(completion(prompt));
            let answer = client.answer();
            assert!(answer.status == 200 && answer.is_complete, "{answer:?}");
            answered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What is done to a router under load, step by step.
type Step<'a> = (&'a str, Box<dyn FnMut() + 'a>);

fn under_load(router: &Program, steps: &mut [Step<'_>]) {
    let (answered, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for prompt in ["answer", "answer", "stream", "stream", "stream", "stream"] {
            let (answered, stop) = (&answered, &stop);
            scope.spawn(move || load(router, prompt, answered, stop));
        }
        // Ends the others also when a wait here fails.
        let _stop = Stop(&stop);
        let more = |what: &str| {
            let before = answered.load(Ordering::Relaxed);
            wait::until(what, || answered.load(Ordering::Relaxed) >= before + 200);
        };
        more("answers before");
        for (what, step) in steps {
            step();
            more(what);
        }
    });
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The router has said once what it lost, shows it, and counts on for itself.
fn counts_on_alone(router: &Program) {
    wait::until("the loss is said", || !router.said().is_empty());
    let said = router.said();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("taken off while running"), "{said:?}");
    assert!(PROGRAMS.iter().all(|program| said[0].contains(program)), "{said:?}");
    assert_eq!(router.metric("unlatch_kernel_attached"), Some(0.0));
    assert_eq!(router.metric("unlatch_backend_kernel_connections"), None, "old is no 0");
    assert!(router.get("/status").contains("taken off while running"));
    let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(router.addr)).collect();
    let in_flight = |count| {
        wait::until("the count in memory", || router.metric("unlatch_backend_in_flight") == Some(count));
    };
    in_flight(0.0);
    clients.iter_mut().for_each(|client| client.send(completion("hold")));
    in_flight(3.0);
    drop(clients);
    in_flight(0.0);
}

fn engines() -> [Backend; 2] {
    [(); 2].map(|()| {
        let engine = Backend::start(engine);
        engine.say(include_str!("../fixtures/metrics/vllm_idle.txt"));
        engine
    })
}

fn is_nothing_attached(sandbox: &Sandbox) {
    wait::until("programs are off", || {
        let shown = bpftool(&["cgroup", "show"], &sandbox.cgroup, &[]);
        !PROGRAMS.iter().any(|program| shown.contains(program)) && !shown.contains("local_")
    });
}

#[test]
fn a_forced_detach_and_a_killed_agent_fail_no_request() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let engines = engines();
        let ports = engines.each_ref().map(|engine| engine.addr().port().to_string()).join(",");
        let mut agent = Agent::start(sandbox, &ports, &[]);
        let router = Serve::new(sandbox, "127.78.4.1", "on", &engines.each_ref()).start();
        assert_eq!(router.metric("unlatch_kernel_attached"), Some(ATTACHED));
        let detach = || {
            let mut unlatch = Command::new(std::env::var_os(BINARY).unwrap());
            unlatch.args(["bpf", "detach", "--force", "--pin-dir"]).arg(sandbox.pin_dir());
            let output = unlatch.output().unwrap();
            assert!(output.status.success(), "{output:?}");
        };
        under_load(
            &router,
            &mut [
                ("answers without the agent", Box::new(|| agent.kill())),
                ("answers without programs", Box::new(detach)),
            ],
        );
        assert!(!sandbox.pin_dir().exists());
        is_nothing_attached(sandbox);
        counts_on_alone(&router);
    });
}

#[test]
fn pins_removed_by_hand_fail_no_request() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let engines = engines();
        let router = Serve::new(sandbox, "127.78.4.2", "auto", &engines.each_ref()).start();
        let remove = || std::fs::remove_dir_all(sandbox.pin_dir()).unwrap();
        under_load(&router, &mut [("answers without pins", Box::new(remove))]);
        is_nothing_attached(sandbox);
        counts_on_alone(&router);
    });
}

#[test]
fn a_new_set_of_pins_is_not_taken_for_the_old_one() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let engines = engines();
        let old = Serve::new(sandbox, "127.78.4.3", "on", &engines.each_ref()).start();
        std::fs::remove_dir_all(sandbox.pin_dir()).unwrap();
        let new = Serve::new(sandbox, "127.78.4.3", "on", &engines.each_ref()).start();
        counts_on_alone(&old);
        assert_eq!(new.metric("unlatch_kernel_attached"), Some(ATTACHED));
        assert_eq!(new.said(), Vec::<String>::new());
    });
}

#[test]
fn without_the_programs_that_count_requests_are_still_shared() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let engines = engines();
        let routers = [(); 2].map(|()| Serve::new(sandbox, "127.78.4.4", "on", &engines.each_ref()).start());
        let links = pinned(&sandbox.pin_dir()).unwrap().links;
        let egress = links.iter().find(|link| link.program == "phase_egress").unwrap();
        std::fs::remove_file(&egress.path).unwrap();
        for router in &routers {
            wait::until("the loss is said", || !router.said().is_empty());
            let said = router.said();
            assert!(said.len() == 1 && said[0].contains("taken off while running: phase_egress"), "{said:?}");
            assert_eq!(router.metric("unlatch_kernel_attached"), Some(1.0), "release is left");
        }
        let mut clients = routers.each_ref().map(|router| Client::connect(router.addr));
        clients.iter_mut().for_each(|client| client.send(completion("hold")));
        let view = View::open(&sandbox.pin_dir()).unwrap();
        let spread = || -> Vec<u32> { view.rows().unwrap().iter().map(|row| row.in_flight).collect() };
        wait::until("each router sees the other's request", || spread() == [1, 1]);
    });
}

#[test]
fn what_a_process_had_in_flight_that_died_unseen_is_not_counted() {
    run(name!(), |sandbox| {
        let addr = "127.0.0.1:1".parse().unwrap();
        let account = account(sandbox);
        let id = register(&account, addr);
        if sandbox.step().is_some() {
            requests(&account, id, 3);
            say("counted");
            return wait_until_finished();
        }
        let mut other = sandbox.helper("other");
        other.hears();
        assert_eq!((account.look_after(), account.others(id).requests), (None, 3));
        detach(&sandbox.pin_dir(), Detach::Forced).unwrap();
        assert_eq!(account.look_after(), None, "once may be chance");
        let lost = account.look_after().unwrap();
        assert!(lost.ends_with(&PROGRAMS.join(", ")), "{lost}");
        assert_eq!(account.look_after(), None, "said once");
        is_nothing_attached(sandbox);
        other.kill();
        drop(other);
        assert_eq!(account.row(id).workers.iter().sum::<u32>(), 3, "nobody freed its slot");
        assert_eq!(account.others(id), InFlight::default());
        requests(&account, id, 2);
        assert_eq!(account.row(id).workers[account.slot()], 2, "this one counts on");
        assert!(!account.is_shared());
    });
}

#[test]
fn at_devices_it_is_noticed_too() {
    run(name!(), |sandbox| {
        own_network().unwrap();
        let account = at_devices(sandbox, &["lo"]);
        let id = register(&account, "127.0.0.1:1".parse().unwrap());
        let lost = || {
            assert_eq!(account.look_after(), None, "once may be chance");
            account.look_after().unwrap()
        };
        assert_eq!([(); 3].map(|()| account.look_after()), [None, None, None]);
        let links = pinned(&sandbox.pin_dir()).unwrap().links;
        let ingress = links.iter().find(|link| link.program == "tcx_ingress").unwrap();
        std::fs::remove_file(&ingress.path).unwrap();
        assert_eq!(lost(), "taken off while running: tcx_ingress");
        assert_eq!((account.kernel_row(id), account.is_shared()), (None, true), "slots are freed as before");
        assert!(account.needs_sweeping());
        detach(&sandbox.pin_dir(), Detach::Forced).unwrap();
        assert_eq!(lost(), "taken off while running: LOAD, tcx_ingress, tcx_egress");
        assert!(!account.is_shared() && !account.needs_sweeping());
    });
}
