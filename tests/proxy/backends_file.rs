//! Backends in a file that changes while the router serves.

use std::fs;
use std::path::Path;

use router_tests::backend::Backend;
use router_tests::client::{ask, chat};
use router_tests::router::{config, metric};
use router_tests::wait;
use router_user::app::Router;
use router_user::config::{BackendsFile, Config};

fn with_file(path: &Path) -> Config {
    Config { backends_files: vec![BackendsFile::new(path.to_owned()).unwrap()], ..config(&[]) }
}

/// As an editor does it, and whoever does not want others to read a half.
fn replace(path: &Path, text: &str) {
    let other = path.with_extension("new");
    fs::write(&other, text).unwrap();
    fs::rename(&other, path).unwrap();
}

#[test]
fn a_changed_file_changes_the_fleet_and_a_bad_one_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("b.yaml");
    let (first, second) = (Backend::ok(), Backend::ok());
    fs::write(&path, format!("- http://{},model=m\n", first.addr())).unwrap();
    let router = Router::start(with_file(&path)).unwrap();
    assert_eq!(ask(router.addr(), chat()).status, 200, "it is there from the start");
    replace(&path, &format!("- url: http://{}\n  model: m\n", second.addr()));
    wait::until("the other one gets the requests", || {
        assert_eq!(ask(router.addr(), chat()).status, 200);
        !second.received().is_empty()
    });
    let at_first = first.received().len();
    let failures = || metric(&router, "unlatch_discovery_failures_total", &path.display().to_string());
    for (n, bad) in ["- http://127.0.0.1:1\n- wrong\n", "", "- ["].into_iter().enumerate() {
        replace(&path, bad);
        wait::until("it is refused", || failures() == (n + 1) as f64);
        assert_eq!(ask(router.addr(), chat()).status, 200, "{bad:?} changes nothing");
    }
    fs::remove_file(&path).unwrap();
    wait::until("it is missed", || failures() == 4.0);
    assert_eq!(ask(router.addr(), chat()).status, 200, "the last good list stays");
    assert_eq!(first.received().len(), at_first, "what is no longer named gets nothing");
    replace(&path, "[]\n");
    wait::until("an empty list empties", || ask(router.addr(), chat()).status == 503);
}
