//! Rows shared by processes with different backends.

use std::net::SocketAddr;

use router_common::limits::MAX_BACKENDS;
use router_common::{BackendAddr, BackendId};
use router_user::account::view::View;
use router_user::account::{Account, RowError};

use crate::sandbox::{name, run, say, wait_until_finished};
use crate::world::{Backend, account, register, requests, wait_row, wait_until};

fn addr(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

fn row(account: &Account, port: u16) -> Result<BackendId, RowError> {
    account.register(BackendAddr::from_socket_addr(addr(port)), &format!("http://{}", addr(port)))
}

#[test]
fn routers_with_different_lists_agree_on_the_rows() {
    run(name!(), |sandbox| {
        let (first, second) = (account(sandbox), account(sandbox));
        let rows = |account: &Account, ports: [u16; 2]| ports.map(|p| register(account, addr(p)).index());
        assert_eq!(rows(&first, [10, 11]), [0, 1], "a fresh directory: in order of configuration");
        assert_eq!(rows(&second, [12, 11]), [2, 1]);
    });
}

#[test]
fn a_row_is_given_on_only_when_nobody_uses_it_and_nothing_is_open() {
    run(name!(), |sandbox| {
        let account = account(sandbox);
        let other = crate::world::account(sandbox);
        let backend = Backend::new(&account, "127.0.0.1");
        let open = backend.connect();
        for port in 1..MAX_BACKENDS as u16 {
            row(&account, port).unwrap();
        }
        assert!(matches!(row(&account, 1000), Err(RowError::Full)));

        account.unregister(backend.id);
        assert!(matches!(row(&account, 1000), Err(RowError::Full)), "a connection is open there");
        drop(open);
        wait_row(&account, backend.id, |row| row.conns == 0);
        register(&other, backend.addr());
        assert!(matches!(row(&account, 1000), Err(RowError::Full)), "another process uses it");
        requests(&other, backend.id, 1);
        other.unregister(backend.id);
        assert!(matches!(row(&account, 1000), Err(RowError::Full)), "a request is in flight there");
        requests(&other, backend.id, 0);
        assert_eq!(row(&account, 1000).unwrap(), backend.id);
        assert_eq!(account.row(backend.id).opened, 0, "with the totals of nobody else");
        let _uncounted = backend.connect();
        assert_eq!(account.row(backend.id).opened, 0, "the old address leads nowhere");
    });
}

#[test]
fn a_process_that_was_killed_uses_no_row() {
    run(name!(), |sandbox| {
        if sandbox.step().is_some() {
            let account = account(sandbox);
            for port in 1..=MAX_BACKENDS as u16 {
                row(&account, port).unwrap();
            }
            say("full");
            return wait_until_finished();
        }
        let account = account(sandbox);
        let mut other = sandbox.helper("other");
        other.hears();
        assert!(matches!(row(&account, 1000), Err(RowError::Full)));
        other.kill();
        // Its slot is freed last. A row that is asked for in that moment may be any: the first ones were looked at before.
        wait_until(|| match View::open(&sandbox.pin_dir()).unwrap().workers().len() {
            1 => Ok(()),
            n => Err(format!("{n} processes")),
        });
        assert_eq!(row(&account, 1000).unwrap().index(), 0);
    });
}
