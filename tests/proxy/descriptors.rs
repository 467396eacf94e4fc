//! P13: a router that may have no more descriptors says so, does not spin, serves whom it has, and recovers.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use router_tests::backend::Backend;
use router_tests::client::{Client, ask, chat};
use router_tests::process::{self, Process};
use router_tests::wait;

const SAID: &str = "cannot accept a connection";

#[test]
fn p13_no_descriptors_left_is_a_line_in_the_log_and_holds_no_client_up() {
    let program = match process::program() {
        Ok(program) => program,
        Err(reason) => {
            println!("SKIP p13_no_descriptors_left_is_a_line_in_the_log_and_holds_no_client_up: {reason}");
            return;
        }
    };
    let engine = Backend::ok();
    let router = Process::start(program, "127.79.0.4", &[engine.addr()], &["--log-level=warn"]);
    let mut client = Client::connect(router.addr());
    client.send(chat());
    assert_eq!(client.answer().status, 200);
    router.allow_more_descriptors(20);
    let idle: Vec<_> = (0..100).map(|_| TcpStream::connect(router.addr()).unwrap()).collect();
    wait::until("it says so", || router.said().contains(SAID));
    let began = Instant::now();
    let mut answered = 0;
    while began.elapsed() < Duration::from_secs(3) {
        client.send(chat());
        let answer = client.answer();
        assert_eq!(answer.status, 200, "{answer:?} {}", router.said());
        answered += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    let lines = router.said().matches(SAID).count();
    assert!(lines <= 2, "one a worker: {}", router.said());
    drop(idle);
    wait::until("it serves again", || ask(router.addr(), chat()).status == 200);
    let tries = router.metric("unlatch_accept_errors_total", "");
    println!("{answered} answered beside {tries} tries to accept and {lines} lines");
    // Two workers that try 20 times a second.
    assert!(tries > 0.0 && tries < 50.0 * began.elapsed().as_secs_f64(), "{tries}");
}
