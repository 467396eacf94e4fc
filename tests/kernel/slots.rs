//! Router processes: seeing each other, dying, coming back.

use router_common::limits::MAX_WORKERS;
use router_policy::{InFlight, LoadTable};
use router_user::account::view::View;
use router_user::account::{Account, KernelError, KernelMode};

use crate::sandbox::{Sandbox, name, run, say, wait_until_finished};
use crate::world::{Backend, account, reason, register, requests, try_open, wait_row, wait_until};

const ADDR: &str = "127.0.0.1:1";

/// A second router: takes a slot and has three requests in flight.
fn second_router(sandbox: &Sandbox) {
    let account = account(sandbox);
    let id = register(&account, ADDR.parse().unwrap());
    requests(&account, id, 3);
    say(account.slot());
    wait_until_finished();
}

#[test]
fn a_second_process_counts_beside_and_sees_the_first() {
    run(name!(), |sandbox| {
        if sandbox.step().is_some() {
            let account = account(sandbox);
            let id = register(&account, ADDR.parse().unwrap());
            assert_eq!(account.others(id), InFlight { requests: 2, q_tokens: 20, c_tokens: 200 });
            requests(&account, id, 3);
            say(account.slot());
            return wait_until_finished();
        }
        let account = account(sandbox);
        let id = register(&account, ADDR.parse().unwrap());
        requests(&account, id, 2);
        let mut second = sandbox.helper("second");
        assert_eq!(second.hears(), "1");
        assert_eq!(account.others(id), InFlight { requests: 3, q_tokens: 30, c_tokens: 300 });
        assert_eq!(account.in_flight(id), 5);
        second.finish();
        assert_eq!(account.in_flight(id), 2, "a clean exit takes its counts along");
    });
}

#[test]
fn a_killed_router_leaves_no_request_and_no_slot() {
    run(name!(), |sandbox| {
        if sandbox.step().is_some() {
            return second_router(sandbox);
        }
        let account = account(sandbox);
        let id = register(&account, ADDR.parse().unwrap());
        requests(&account, id, 2);
        let mut second = sandbox.helper("second");
        let slot: usize = second.hears().parse().unwrap();
        assert_eq!(account.row(id).workers[slot], 3);
        second.kill();
        wait_row(&account, id, |row| {
            (row.workers[slot], row.q_tokens[slot], row.c_tokens[slot]) == (0, 0, 0)
        });
        assert_eq!(account.in_flight(id), 2, "the living keep theirs");
        wait_until(|| match View::open(&sandbox.pin_dir()).unwrap().workers().len() {
            1 => Ok(()),
            live => Err(format!("{live} live slots")),
        });
        let mut third = sandbox.helper("third");
        assert_eq!(third.hears(), slot.to_string(), "the slot is there for the next");
        third.finish();
    });
}

#[test]
fn a_restart_finds_rows_and_totals() {
    run(name!(), |sandbox| {
        let id = {
            let account = account(sandbox);
            let backend = Backend::new(&account, "127.0.0.1");
            drop(backend.connect());
            wait_row(&account, backend.id, |row| row.closed == 1);
            // Not closed: no process watches when it is opened, and the kernel counts on.
            (backend.connect(), backend)
        };
        let (open, backend) = id;
        let late = backend.connect();
        let again = account(sandbox);
        assert_eq!(register(&again, backend.addr()), backend.id);
        let row = again.row(backend.id);
        assert_eq!((row.opened, row.closed, row.conns), (3, 1, 2));
        drop((open, late));
        wait_row(&again, backend.id, |row| (row.closed, row.conns) == (3, 0));
        let more = backend.connect();
        assert_eq!(again.row(backend.id).opened, 4, "counted once, not once a start");
        drop(more);
    });
}

#[test]
fn the_seventeenth_process_counts_alone() {
    run(name!(), |sandbox| {
        let taken: Vec<Account> = (0..MAX_WORKERS).map(|_| account(sandbox)).collect();
        let mut slots: Vec<usize> = taken.iter().map(Account::slot).collect();
        slots.sort_unstable();
        assert_eq!(slots, (0..MAX_WORKERS).collect::<Vec<_>>());
        let id = register(&taken[0], ADDR.parse().unwrap());
        requests(&taken[0], id, 1);

        let alone = try_open(sandbox, KernelMode::Auto).unwrap();
        assert!(reason(&alone).contains("16 slots"), "{}", reason(&alone));
        let own = register(&alone, ADDR.parse().unwrap());
        requests(&alone, own, 5);
        assert_eq!(taken[0].in_flight(id), 1);
        assert_eq!(alone.others(own), InFlight::default());
        assert!(matches!(try_open(sandbox, KernelMode::On), Err(KernelError::NoSlot)));
        drop(taken);
        account(sandbox);
    });
}
