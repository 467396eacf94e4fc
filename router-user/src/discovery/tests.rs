use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::dns::{Answer, Asked, Failure, Found, Lookup, Query, Service};
use super::{First, Handle, Plan, Publish, start_with};
use crate::config::{BackendsFile, DnsConfig, backend};

const SECOND: Duration = Duration::from_secs(1);

/// What a name is answered with, after how long.
type Script = Arc<Mutex<BTreeMap<String, (Result<Answer, Failure>, Duration)>>>;

/// Answers by heart, and writes down when it was asked what.
#[derive(Clone, Default)]
struct ByHeart {
    script: Script,
    asked: Arc<Mutex<Vec<(Duration, String)>>>,
    begin: Option<Instant>,
}

impl ByHeart {
    fn new() -> Self {
        Self { begin: Some(Instant::now()), ..Self::default() }
    }

    fn say(&self, query: &str, answer: Result<Answer, Failure>) {
        self.script.lock().insert(query.to_owned(), (answer, Duration::ZERO));
    }

    fn say_late(&self, query: &str, answer: Result<Answer, Failure>, after: Duration) {
        self.script.lock().insert(query.to_owned(), (answer, after));
    }

    /// The seconds at which a name was asked for.
    fn asked(&self, query: &str) -> Vec<u64> {
        self.asked.lock().iter().filter(|(_, q)| q == query).map(|(at, _)| at.as_secs()).collect()
    }
}

impl Lookup for ByHeart {
    fn ask(&self, query: &Query) -> Asked {
        let query = query.to_string();
        let (answer, after) =
            self.script.lock().get(&query).cloned().unwrap_or((Err(Failure::NoName), Duration::ZERO));
        self.asked.lock().push((self.begin.unwrap().elapsed(), query));
        Box::pin(async move {
            sleep(after).await;
            answer
        })
    }
}

/// The addresses that were said at the start or published, in order.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Vec<String>>>>);

impl Seen {
    fn publish(&self) -> Publish {
        let seen = Arc::clone(&self.0);
        Arc::new(move |_, members| seen.lock().push(members.iter().map(|m| m.addr.to_string()).collect()))
    }

    /// What was published since this was asked last.
    fn take(&self) -> Vec<Vec<String>> {
        std::mem::take(&mut *self.0.lock())
    }
}

fn addresses(ttl: u64, all: &[&str]) -> Result<Answer, Failure> {
    let found = Found::Addresses(all.iter().map(|ip| ip.parse().unwrap()).collect());
    Ok(Answer { found, ttl: SECOND * ttl as u32 })
}

fn plan(urls: &[&str], files: &[&Path]) -> Plan {
    Plan {
        backends: urls.iter().map(|url| backend::parse(url, &|_| Ok("key".to_owned())).unwrap()).collect(),
        files: files.iter().map(|path| BackendsFile::new((*path).to_owned()).unwrap()).collect(),
        dns: DnsConfig::default(),
    }
}

/// A discovery that runs until the end of the test.
async fn running(plan: Plan, lookup: &ByHeart, seen: &Seen, wait: Duration) -> (Handle, JoinHandle<()>) {
    let First { lists, discovery, handle } = start_with(plan, Arc::new(lookup.clone()), wait).await;
    lists.into_iter().for_each(|(source, members)| seen.publish()(&source, members));
    (handle, tokio::spawn(discovery.run(seen.publish())))
}

/// Another plan, until all of it was published.
async fn replace(handle: &Handle, plan: Plan) {
    let handle = handle.clone();
    let is_replaced = tokio::task::spawn_blocking(move || handle.replace(plan, SECOND * 10)).await.unwrap();
    assert!(is_replaced);
}

#[tokio::test(start_paused = true)]
async fn addresses_are_published_at_once() {
    let (seen, lookup, begin) = (Seen::default(), ByHeart::new(), Instant::now());
    let _running =
        running(plan(&["http://10.0.0.2:1", "http://10.0.0.1:1"], &[]), &lookup, &seen, SECOND).await;
    assert_eq!(seen.take(), [["10.0.0.2:1", "10.0.0.1:1"]]);
    assert_eq!(begin.elapsed(), Duration::ZERO);
    sleep(SECOND * 600).await;
    assert!(seen.take().is_empty(), "nothing changed");
}

#[tokio::test(start_paused = true)]
async fn the_start_waits_for_names_but_not_for_ever() {
    let (seen, lookup, begin) = (Seen::default(), ByHeart::new(), Instant::now());
    lookup.say_late("dns:a", addresses(5, &["10.0.0.1"]), SECOND / 2);
    lookup.say_late("dns:slow", addresses(5, &["10.0.0.2"]), SECOND * 7);
    let _fast = running(plan(&["http://a:1", "http://10.0.0.9:1"], &[]), &lookup, &seen, SECOND * 2).await;
    assert_eq!(
        (seen.take(), begin.elapsed()),
        (vec![vec!["10.0.0.1:1".to_owned(), "10.0.0.9:1".to_owned()]], SECOND / 2)
    );
    let begin = Instant::now();
    let _slow = running(plan(&["http://slow:1", "http://10.0.0.9:1"], &[]), &lookup, &seen, SECOND * 2).await;
    assert_eq!((seen.take(), begin.elapsed()), (vec![vec!["10.0.0.9:1".to_owned()]], SECOND * 2));
    sleep(SECOND * 6).await;
    assert_eq!(seen.take(), [["10.0.0.2:1", "10.0.0.9:1"]]);
}

/// H03: what does not resolve at the start is asked for again.
#[tokio::test(start_paused = true)]
async fn h03_a_name_that_does_not_resolve_does_not_keep_the_rest_waiting() {
    let (seen, lookup, begin) = (Seen::default(), ByHeart::new(), Instant::now());
    let (handle, _run) =
        running(plan(&["http://a:1", "http://10.0.0.9:1"], &[]), &lookup, &seen, SECOND * 9).await;
    assert_eq!((seen.take(), begin.elapsed()), (vec![vec!["10.0.0.9:1".to_owned()]], Duration::ZERO));
    sleep(SECOND * 40).await;
    assert_eq!(lookup.asked("dns:a"), [0, 1, 3, 7, 15, 25, 35]);
    let status = handle.status();
    assert_eq!((status[0].failures, status[0].error.as_deref()), (7, Some("there is no such name")));
    assert_eq!(status[0].good_age, None);
    lookup.say("dns:a", addresses(60, &["10.0.0.1"]));
    sleep(SECOND * 10).await;
    assert_eq!(seen.take(), [["10.0.0.1:1", "10.0.0.9:1"]]);
    assert_eq!(handle.status()[0].error, None);
}

/// H04, without its traffic: the answers of the case, by TTL.
#[tokio::test(start_paused = true)]
async fn h04_a_name_follows_its_answers_and_outlives_failures() {
    let (seen, lookup) = (Seen::default(), ByHeart::new());
    lookup.say("dns:e", addresses(5, &["127.0.0.2"]));
    let (handle, _run) = running(plan(&["http://e:1"], &[]), &lookup, &seen, SECOND).await;
    assert_eq!(seen.take(), [["127.0.0.2:1"]]);
    for all in [&["127.0.0.3"][..], &["127.0.0.2", "127.0.0.3"]] {
        lookup.say("dns:e", addresses(5, all));
        sleep(SECOND * 5 + SECOND / 10).await;
        assert_eq!(seen.take(), [all.iter().map(|ip| format!("{ip}:1")).collect::<Vec<_>>()]);
    }
    for failure in
        [Failure::NoName, Failure::Refused("SERVFAIL".to_owned()), Failure::Timeout, Failure::NoRecord]
    {
        lookup.say("dns:e", Err(failure));
        sleep(SECOND * 30).await;
        assert!(seen.take().is_empty(), "the last good answer stays");
    }
    assert!(handle.status()[0].good_age.unwrap() > SECOND * 100);
    let many: Vec<_> = (1..=200).map(|n| format!("127.0.1.{n}")).collect();
    lookup.say("dns:e", addresses(5, &many.iter().map(String::as_str).collect::<Vec<_>>()));
    sleep(SECOND * 11).await;
    assert_eq!(seen.take().iter().map(Vec::len).collect::<Vec<_>>(), [200]);
}

#[tokio::test(start_paused = true)]
async fn a_resolver_that_hangs_holds_up_nobody() {
    let (seen, lookup) = (Seen::default(), ByHeart::new());
    let slow: Vec<_> = (0..31).map(|n| format!("http://slow{n}:1")).collect();
    let urls: Vec<_> = slow.iter().map(String::as_str).chain(["http://a:1"]).collect();
    for n in 0..31 {
        lookup.say_late(&format!("dns:slow{n}"), addresses(1, &["10.9.9.9"]), SECOND * 3600);
    }
    lookup.say("dns:a", addresses(1, &["10.0.0.1"]));
    let (handle, _run) = running(plan(&urls, &[]), &lookup, &seen, SECOND).await;
    assert_eq!(seen.take(), [["10.0.0.1:1"]]);
    lookup.say("dns:a", addresses(1, &["10.0.0.2"]));
    sleep(SECOND * 2).await;
    assert_eq!(seen.take(), [["10.0.0.2:1"]]);
    sleep(SECOND * 35).await;
    let status = handle.status();
    let slow0 = status.iter().find(|s| s.name == "dns:slow0").unwrap();
    assert_eq!(slow0.error.as_deref(), Some("no server answers in time"), "its time is over");
}

#[tokio::test(start_paused = true)]
async fn a_service_brings_its_hosts_along() {
    let (seen, lookup) = (Seen::default(), ByHeart::new());
    let service = |host: &str, port| Service { host: host.to_owned(), port, weight: 0 };
    let services = |all: &[Service]| Ok(Answer { found: Found::Services(all.to_vec()), ttl: SECOND * 5 });
    lookup.say("srv:s", services(&[service("x", 8000), service("y", 8001)]));
    lookup.say("dns:x.", addresses(5, &["10.0.0.1"]));
    lookup.say("dns:y.", Err(Failure::NoName));
    let (handle, _run) = running(plan(&["srv+http://s"], &[]), &lookup, &seen, SECOND).await;
    assert_eq!(seen.take(), [["10.0.0.1:8000"]], "published once, when all of it is settled");
    lookup.say("srv:s", services(&[service("z", 9000)]));
    lookup.say("dns:z.", addresses(5, &["10.0.0.3"]));
    sleep(SECOND * 6).await;
    assert_eq!(seen.take(), [["10.0.0.3:9000"]], "no moment without anybody in between");
    let names: Vec<_> = handle.status().into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["dns:z.", "srv:s"], "hosts that are gone leave nothing");
}

#[tokio::test(start_paused = true)]
async fn a_file_changes_the_list_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("b.yaml");
    let (seen, lookup) = (Seen::default(), ByHeart::new());
    lookup.say("dns:a", addresses(5, &["10.0.0.1"]));
    fs::write(&path, "- http://a:1\n- http://10.0.0.9:1\n").unwrap();
    let (handle, _run) = running(plan(&["http://a:2"], &[&path]), &lookup, &seen, SECOND).await;
    let mut first = seen.take();
    first.sort();
    assert_eq!(first, [vec!["10.0.0.1:1", "10.0.0.9:1"], vec!["10.0.0.1:2"]]);
    assert_eq!(lookup.asked("dns:a"), [0], "one name of two lists is asked for once");

    for wrong in ["- http://10.0.0.8:1\n- url: http://b\n  wait: 1\n", "", "- ["] {
        fs::write(&path, wrong).unwrap();
        sleep(SECOND * 2).await;
        assert!(seen.take().is_empty(), "{wrong:?} changes nothing");
    }
    fs::remove_file(&path).unwrap();
    sleep(SECOND * 2).await;
    assert!(seen.take().is_empty(), "a file that is gone changes nothing");
    let status = handle.status();
    let file = status.iter().find(|s| s.name.starts_with("file:")).unwrap();
    assert_eq!((file.failures, file.changes, file.size), (4, 1, 2));
    assert!(file.error.as_ref().unwrap().starts_with("cannot read "));

    fs::write(&path, "- http://10.0.0.9:1,weight=2\n").unwrap();
    sleep(SECOND * 2).await;
    assert_eq!(seen.take(), [["10.0.0.9:1"]], "the same address with another weight is a change");
    fs::write(&path, "# said otherwise\n- url: http://10.0.0.9:1\n  weight: 2\n").unwrap();
    sleep(SECOND * 2).await;
    assert!(seen.take().is_empty(), "the same list in other words is none");
    fs::write(&path, "[]").unwrap();
    sleep(SECOND * 2).await;
    assert_eq!(seen.take(), [[""; 0]], "an empty list empties");
}

#[tokio::test(start_paused = true)]
async fn another_plan_keeps_what_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("1.json"), dir.path().join("2.toml"));
    fs::write(&one, "[\"http://10.0.0.1:1\"]").unwrap();
    fs::write(&two, "backends = [\"http://10.0.0.2:1\"]").unwrap();
    let (seen, lookup) = (Seen::default(), ByHeart::new());
    lookup.say("dns:a", addresses(3600, &["10.0.0.7"]));
    let first = plan(&["http://a:1"], &[&one]);
    let (handle, run) = running(first.clone(), &lookup, &seen, SECOND).await;
    assert_eq!(seen.take().len(), 2);
    replace(&handle, first).await;
    assert!(seen.take().is_empty(), "the same plan changes nothing");

    lookup.say("dns:b", addresses(3600, &["10.0.0.8"]));
    replace(&handle, plan(&["http://a:1", "http://b:1"], &[&two])).await;
    let mut changes = seen.take();
    changes.sort();
    let new = vec!["10.0.0.7:1", "10.0.0.8:1"];
    assert!(
        changes.starts_with(&[vec![], vec!["10.0.0.2:1".to_owned()]]) && changes.last().unwrap() == &new,
        "{changes:?}"
    );
    assert_eq!(lookup.asked("dns:a"), [0], "a name that stays is not asked for anew");
    let names: Vec<_> = handle.status().into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["dns:a", "dns:b", &format!("file:{}", two.display())]);
    lookup.say_late("dns:slow", addresses(3600, &["10.0.0.9"]), SECOND * 7);
    let slow = plan(&["http://slow:1", "http://10.0.0.6:1"], &[&two]);
    let (done, is_done) = std::sync::mpsc::sync_channel(1);
    handle.plans.try_send((slow, done)).unwrap();
    sleep(SECOND * 6).await;
    assert!(is_done.try_recv().is_err(), "it is in force when all of it is known");
    assert_eq!(seen.take(), [["10.0.0.6:1"]], "what is known does not wait so long");
    sleep(SECOND * 2).await;
    assert!(is_done.try_recv().is_ok());
    assert_eq!(seen.take(), [["10.0.0.9:1", "10.0.0.6:1"]]);
    run.abort();
    fs::write(&two, "backends = []").unwrap();
    sleep(SECOND * 3).await;
    assert!(seen.take().is_empty(), "what was dropped publishes nothing");
}
