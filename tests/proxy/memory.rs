//! What the router's memory does under many streams: the program itself, by what the kernel says it holds.

use router_tests::process::{self, Process};

use router_tests::client::ask;
use router_tests::wait::{self, is_long};

use crate::storm;

/// What may stay resident once the streams are gone, however many they were: buffers and tables that were touched for
/// the first time. Half of it was seen; after 8,000 streams a leak of 700 bytes a stream is more.
const KEPT_KIB: u64 = 6 << 10;

#[test]
fn memory_comes_back_after_a_thousand_streams_while_engines_die() {
    let program = match process::program() {
        Ok(program) => program,
        Err(reason) => {
            println!("SKIP memory_comes_back_after_a_thousand_streams_while_engines_die: {reason}");
            return;
        }
    };
    let (steady, mortal) = (storm::engine(), storm::engine());
    let engines = [steady.addr(), mortal.addr()];
    let args = ["--backoff-min=20ms", "--backoff-max=50ms", "--idle-conn-age-max=200ms", "--log-level=error"];
    let router = Process::start(program, "127.79.0.1", &engines, &args);
    let fresh = router.resident_kib();
    let (ends, _mortal) = storm::rage(router.addr(), mortal, if is_long() { 60 } else { 8 });
    router.wait_idle();
    let mut least = u64::MAX;
    wait::until(&format!("memory comes back to {fresh} + {KEPT_KIB} KiB"), || {
        // The allocator gives back what it can when a thread asks it for memory.
        for _ in 0..20 {
            assert_eq!(ask(router.addr(), "GET /version HTTP/1.1\r\nhost: h\r\n\r\n").status, 200);
        }
        least = least.min(router.resident_kib());
        least < fresh + KEPT_KIB
    });
    let peak = router.resident_kib_max();
    println!("{ends:?}; KiB resident: {fresh} at first, {peak} at most, {least} in the end");
}
