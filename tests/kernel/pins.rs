//! What is pinned: readable by others, reopened, refused when foreign, taken off.

use std::fs;
use std::path::Path;

use router_user::account::view::{View, pinned};
use router_user::account::{At, Detach, DetachError, KernelError, KernelMode, detach};

use crate::sandbox::{name, run, say, wait_until_finished};
use crate::world::{
    Backend, PROGRAMS, account, bpftool, reason, register, requests, try_open, wait_row, wait_until,
};

/// What lies in a BPF file system, but for the two files of the kernel's own.
pub(crate) fn left_in(bpffs: &Path) -> Vec<String> {
    let names = fs::read_dir(bpffs).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !["maps.debug", "progs.debug"].contains(&name.as_str())).collect()
}

#[test]
fn bpftool_prints_rows_with_field_names() {
    run(name!(), |sandbox| {
        let account = account(sandbox);
        let backend = Backend::new(&account, "127.0.0.1");
        let _open = backend.connect();
        requests(&account, backend.id, 4);
        let text = bpftool(&["map", "dump", "pinned"], &sandbox.pin_dir().join("v1/LOAD"), &[]);
        let rows: serde_json::Value = serde_json::from_str(&text).unwrap();
        let row = &rows[backend.id.index()]["value"];
        assert_eq!((&row["conns"], &row["opened"]), (&1.into(), &1.into()), "{row}");
        assert_eq!(row["workers"][account.slot()], 4);
        assert_eq!(row["c_tokens"][account.slot()], 400);
        let names = "conns awaiting streaming opened closed resets tx_bytes rx_bytes ttfb_ns ttfb_count \
                     last_rx_ns last_reset_ns workers q_tokens c_tokens remote_in_flight remote_at_ns";
        for name in names.split_whitespace() {
            assert!(row.get(name).is_some(), "no field {name} in {row}");
        }
    });
}

#[test]
fn anyone_with_the_right_reads_the_pins_without_a_router() {
    run(name!(), |sandbox| {
        let router = account(sandbox);
        let backend = Backend::new(&router, "127.0.0.1");
        let _open = backend.connect();
        requests(&router, backend.id, 4);
        let view = View::open(&sandbox.pin_dir()).unwrap();
        let rows = view.rows().unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].url, format!("http://{}", backend.addr()));
        assert_eq!(rows[0].addr, Some(backend.addr()));
        assert_eq!((rows[0].in_flight, rows[0].load.conns), (4, 1));
        assert_eq!(view.workers()[0].1.pid, std::process::id());
        drop(router);
        assert!(view.workers().is_empty());
        assert_eq!(view.rows().unwrap()[0].load.opened, 1, "totals outlive the router");
    });
}

#[test]
fn a_map_of_another_layout_is_left_alone() {
    run(name!(), |sandbox| {
        let dir = sandbox.pin_dir().join("v1");
        fs::create_dir_all(&dir).unwrap();
        let foreign = dir.join("LOAD");
        let shape = "type array key 4 value 128 entries 256 name LOAD flags 1024";
        bpftool(&["map", "create"], &foreign, &shape.split(' ').collect::<Vec<_>>());

        let account = try_open(sandbox, KernelMode::Auto).unwrap();
        assert!(reason(&account).contains("another layout"), "{}", reason(&account));
        assert!(matches!(try_open(sandbox, KernelMode::On), Err(KernelError::Layout { .. })));
        let id = register(&account, "127.0.0.1:1".parse().unwrap());
        requests(&account, id, 7);
        assert_eq!(account.in_flight(id), 7, "all else works");

        assert!(detach(&sandbox.pin_dir(), Detach::Careful).is_err(), "not ours to remove");
        let text = bpftool(&["-j", "map", "show", "pinned"], &foreign, &[]);
        let map: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(map["bytes_value"], 128, "still as it was");
    });
}

#[test]
fn the_pin_directory_is_for_its_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    run(name!(), |sandbox| {
        let _account = account(sandbox);
        for dir in [sandbox.pin_dir(), sandbox.pin_dir().join("v1")] {
            assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700, "{dir:?}");
        }
    });
}

#[test]
fn a_link_whose_cgroup_is_gone_is_replaced() {
    run(name!(), |sandbox| {
        let old = sandbox.cgroup.join("old");
        if sandbox.step().is_some() {
            fs::create_dir(&old).unwrap();
            fs::write(old.join("cgroup.procs"), "0").unwrap();
            drop(account(sandbox));
            say("attached");
            return wait_until_finished();
        }
        let mut before = sandbox.helper("before");
        before.hears();
        before.finish();
        fs::remove_dir(&old).unwrap();
        // The kernel lets go of a removed cgroup a little later.
        wait_until(|| {
            let at: Vec<At> = pinned(&sandbox.pin_dir()).unwrap().links.iter().map(|link| link.at).collect();
            if at == [At::Gone; PROGRAMS.len()] { Ok(()) } else { Err(format!("links to {at:?}")) }
        });

        let account = account(sandbox);
        let links = pinned(&sandbox.pin_dir()).unwrap().links;
        assert_eq!(links.len(), PROGRAMS.len());
        assert!(links.iter().all(|link| link.at != At::Gone), "{links:?}");
        let backend = Backend::new(&account, "127.0.0.1");
        let _open = backend.connect();
        assert_eq!(account.row(backend.id).conns, 1);
    });
}

#[test]
fn a_link_of_another_cgroup_is_not_relied_on() {
    use std::os::unix::fs::MetadataExt;
    run(name!(), |sandbox| {
        let inner = sandbox.cgroup.join("inner");
        if sandbox.step().is_some() {
            fs::create_dir(&inner).unwrap();
            fs::write(inner.join("cgroup.procs"), "0").unwrap();
            drop(account(sandbox));
            say("attached");
            return wait_until_finished();
        }
        let mut helper = sandbox.helper("inner");
        helper.hears();
        // As if the kernel had given this cgroup the number of an older one.
        let links = sandbox.pin_dir().join("v1/links");
        let place = |cgroup: &Path| links.join(fs::metadata(cgroup).unwrap().ino().to_string());
        fs::rename(place(&inner), place(&sandbox.cgroup)).unwrap();
        let account = account(sandbox);
        let backend = Backend::new(&account, "127.0.0.1");
        let _open = backend.connect();
        assert_eq!(account.row(backend.id).conns, 1);
        helper.finish();
    });
}

#[test]
fn a_program_further_up_is_not_attached_again() {
    run(name!(), |sandbox| {
        if sandbox.step().is_some() {
            let inner = sandbox.cgroup.join("inner");
            fs::create_dir(&inner).unwrap();
            fs::write(inner.join("cgroup.procs"), "0").unwrap();
            let account = account(sandbox);
            let backend = Backend::new(&account, "127.0.0.1");
            let _open = backend.connect();
            say(account.row(backend.id).opened);
            return wait_until_finished();
        }
        let _account = account(sandbox);
        let mut inner = sandbox.helper("inner");
        assert_eq!(inner.hears(), "1");
        assert_eq!(pinned(&sandbox.pin_dir()).unwrap().links.len(), PROGRAMS.len());
        inner.finish();
        fs::remove_dir(sandbox.cgroup.join("inner")).unwrap();
    });
}

#[test]
fn a_set_that_lacks_a_map_is_made_anew() {
    run(name!(), |sandbox| {
        register(&account(sandbox), "127.0.0.1:1".parse().unwrap());
        fs::remove_file(sandbox.pin_dir().join("v1/LOAD")).unwrap();
        let account = account(sandbox);
        assert!(View::open(&sandbox.pin_dir()).unwrap().rows().unwrap().is_empty());
        let backend = Backend::new(&account, "127.0.0.1");
        let open = backend.connect();
        assert_eq!(account.row(backend.id).conns, 1, "the programs count into the map that is pinned now");
        drop(open);
        wait_row(&account, backend.id, |row| (row.conns, row.opened) == (0, 1));
    });
}

#[test]
fn detach_refuses_under_a_running_router_and_then_leaves_nothing() {
    run(name!(), |sandbox| {
        let router = account(sandbox);
        let backend = Backend::new(&router, "127.0.0.1");
        let refused = detach(&sandbox.pin_dir(), Detach::Careful).unwrap_err();
        assert!(matches!(&refused, DetachError::Live(pids) if *pids == [std::process::id()]), "{refused}");
        drop(backend.connect());
        assert_eq!(router.row(backend.id).opened, 1, "nothing was taken off");
        drop(router);
        let was = detach(&sandbox.pin_dir(), Detach::Careful).unwrap();
        assert_eq!((was.links.len(), was.maps.len()), (PROGRAMS.len(), 6));
        assert_eq!(left_in(&sandbox.bpffs), Vec::<String>::new());
        let shown = bpftool(&["cgroup", "show"], &sandbox.cgroup, &[]);
        assert!(!PROGRAMS.iter().any(|program| shown.contains(program)), "{shown}");
        assert!(detach(&sandbox.pin_dir(), Detach::Careful).unwrap().links.is_empty(), "twice is fine");
    });
}

#[test]
fn a_forced_detach_goes_through_under_a_running_router() {
    run(name!(), |sandbox| {
        let router = account(sandbox);
        let id = register(&router, "127.0.0.1:1".parse().unwrap());
        detach(&sandbox.pin_dir(), Detach::Forced).unwrap();
        assert_eq!(left_in(&sandbox.bpffs), Vec::<String>::new());
        requests(&router, id, 3);
        assert_eq!(router.in_flight(id), 3, "the router counts on, for itself");
    });
}
