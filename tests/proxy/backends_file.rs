//! Backends in a file that changes while the router serves.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use router_tests::backend::Backend;
use router_tests::client::{ask, chat};
use router_tests::dns::Dns;
use router_tests::router::{config, metric};
use router_tests::wait;
use router_user::app::Router;
use router_user::config::{BackendsFile, Config, ConfigError, DnsConfig, backend};

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

/// What a reload adds joins before the reload is over, and it says so: an address, a file's list, a name.
#[test]
fn a_reload_takes_in_files_and_names() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("b.json");
    let (dns, engines) = (Dns::start(), [Backend::ok(), Backend::ok(), Backend::ok()]);
    let [first, in_file, by_name] = engines.each_ref().map(Backend::addr);
    fs::write(&path, format!("[\"http://{in_file},model=m\"]")).unwrap();
    dns.say_addresses("e.test", &[Ipv4Addr::LOCALHOST]);
    let name = format!("http://e.test:{}", by_name.port());
    let one = config(&[first]);
    let more = Config {
        backends: vec![backend::parse(&format!("{name},model=m"), &|_| Ok(String::new())).unwrap()],
        dns: DnsConfig { servers: vec![dns.addr()], ..DnsConfig::default() },
        ..with_file(&path)
    };
    let next: Arc<Mutex<Result<Config, ConfigError>>> = Arc::new(Mutex::new(Ok(one.clone())));
    let read = Arc::clone(&next);
    let router = Router::start_from(one.clone(), Some(Box::new(move || read.lock().clone()))).unwrap();
    let reload = || router.reloader().reload().unwrap().change;
    assert!(reload().is_empty(), "the same again is no change");

    *next.lock() = Ok(more);
    let change = reload();
    let mut added = change.added;
    added.sort();
    let mut wanted = vec![format!("http://{in_file}"), name.clone()];
    wanted.sort();
    assert_eq!((added, change.leaving), (wanted, vec![format!("http://{first}")]));
    wait::until("both get requests", || {
        assert_eq!(ask(router.addr(), chat()).status, 200);
        engines[1..].iter().all(|engine| !engine.received().is_empty())
    });
    assert_eq!(engines[0].received().len(), 0);

    *next.lock() = Err(ConfigError { at: "u.toml:1".to_owned(), message: "no such key".to_owned() });
    assert!(router.reloader().reload().is_err());
    assert_eq!(ask(router.addr(), chat()).status, 200, "what cannot be used changes nothing");
    *next.lock() = Ok(one);
    let mut left = reload().leaving;
    left.sort();
    let mut wanted = vec![format!("http://{in_file}"), name];
    wanted.sort();
    assert_eq!(left, wanted, "a file that is no longer named takes its list along");
}
