//! Warm restarts: a router that comes back knows what the engines hold, as far as it was saved, and nothing that may be
//! of another process.

use std::fs;
use std::path::Path;
use std::time::Duration;

use router_policy::PolicyName;
use router_tests::backend::Backend;
use router_tests::client::{Answer, ask, post};
use router_tests::process::{Process, program};
use router_tests::router::{backend, config, metric, start, status, wait_idle};
use router_tests::wait;
use router_user::app::RunningRouter;
use router_user::backends::Member;
use router_user::config::Config;

const SESSIONS: usize = 12;

fn keeping(engines: &[Backend], dir: &Path) -> Config {
    let mut config = config(&engines.iter().map(Backend::addr).collect::<Vec<_>>());
    config.policy.policy = PolicyName::PrefixCost;
    config.state.dir = Some(dir.to_owned());
    config.state.interval = None;
    config
}

/// A turn of a session, with all turns before it.
fn turn(session: usize, turns: usize) -> String {
    let one = |turn| format!("This is turn {turn} of session {session}. ").repeat(60);
    let prompt: String = (0..turns).map(one).collect();
    post("/v1/completions", &serde_json::json!({"model": "m", "prompt": prompt}).to_string())
}

/// Where it went, and how many prompt tokens were believed cached there.
fn send(router: &RunningRouter, session: usize, turns: usize) -> (String, u64) {
    let answer = ask(router.addr(), turn(session, turns));
    wait_idle(router);
    where_to(&answer)
}

fn where_to(answer: &Answer) -> (String, u64) {
    assert_eq!(answer.status, 200);
    let decision = answer.header("x-unlatch-decision").unwrap();
    let matched = decision.split_once("matched=").unwrap().1.split(';').next().unwrap();
    (answer.header("x-unlatch-backend").unwrap().to_owned(), matched.parse().unwrap())
}

fn engines() -> [Backend; 4] {
    std::array::from_fn(|_| Backend::ok())
}

#[test]
fn the_next_turns_go_where_the_turns_before_the_restart_went() {
    let (folder, engines) = (tempfile::tempdir().unwrap(), engines());
    let dir = folder.path().join("state");
    let first = start(keeping(&engines, &dir));
    let went: Vec<_> = (0..SESSIONS).map(|session| send(&first, session, 1)).collect();
    let used: std::collections::BTreeSet<_> = went.iter().map(|(backend, _)| backend).collect();
    assert!(used.len() >= 3, "sessions must spread for the test to tell anything: {used:?}");
    let taught = status(&first, 0)["chars_per_token"].clone();
    first.shutdown(wait::DEADLINE);

    // The list is in another order: rows mean nothing from one router to the next.
    let mut reversed = keeping(&engines, &dir);
    reversed.backends.reverse();
    let warm = start(reversed);
    assert_eq!(metric(&warm, "unlatch_state_loaded_prompts_total", ""), SESSIONS as f64);
    assert_eq!(status(&warm, 3)["chars_per_token"], taught);
    for (session, (backend, _)) in went.iter().enumerate() {
        let (to, matched) = send(&warm, session, 2);
        assert_eq!((&to, matched > 300), (backend, true), "session {session}: {matched} tokens found");
    }
    warm.shutdown(wait::DEADLINE);

    // The same chance would choose the same.
    let mut other = keeping(&engines, &folder.path().join("other"));
    other.seed = Some(2);
    let cold = start(other);
    let moved = (0..SESSIONS).rev().filter(|&session| send(&cold, session, 2).0 != went[session].0).count();
    assert!(moved >= SESSIONS / 3, "a cold one finds {} of {SESSIONS} by chance", SESSIONS - moved);
}

#[test]
fn a_killed_router_loses_what_came_after_its_last_save() {
    let program = match program() {
        Ok(program) => program,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let (folder, engines) = (tempfile::tempdir().unwrap(), engines());
    let dir = folder.path().join("state");
    let addrs = engines.each_ref().map(Backend::addr);
    let args = [
        format!("--state-dir={}", dir.display()),
        "--state-interval=1s".to_owned(),
        "--policy=prefix-cost".to_owned(),
        "--debug-headers".to_owned(),
    ];
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let first = Process::start(program.clone(), "127.0.0.31", &addrs, &args);
    let went: Vec<_> =
        (0..SESSIONS).map(|session| where_to(&ask(first.addr(), turn(session, 1))).0).collect();
    first.wait_idle();
    let saves = first.metric("unlatch_state_saves_total", "");
    wait::until("it is saved twice more", || first.metric("unlatch_state_saves_total", "") >= saves + 2.0);
    assert!(first.metric("unlatch_state_bytes", "") > 2000.0);
    // Killed by its drop.
    drop(first);
    let second = Process::start(program, "127.0.0.31", &addrs, &args);
    assert!(second.said().contains("warm start"), "{}", second.said());
    for (session, backend) in went.iter().enumerate() {
        let (to, matched) = where_to(&ask(second.addr(), turn(session, 2)));
        assert_eq!((&to, matched > 300), (backend, true), "session {session}: {matched} tokens found");
    }
}

#[test]
fn what_may_be_of_another_process_is_not_used() {
    let (folder, engines) = (tempfile::tempdir().unwrap(), engines());
    let dir = folder.path().join("state");
    let started = |at: u32| {
        format!("vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nprocess_start_time_seconds {at}\n")
    };
    for engine in &engines {
        engine.say(&started(1000));
    }
    let first = start(keeping(&engines, &dir));
    engines.iter().for_each(Backend::wait_probed);
    let went: Vec<_> = (0..SESSIONS).map(|session| send(&first, session, 1).0).collect();
    first.shutdown(wait::DEADLINE);

    // One was started again meanwhile, one is not configured any more, one is at another address.
    engines[0].say(&started(2000));
    let other = Backend::ok();
    let mut config = keeping(&engines, &dir);
    config.backends.remove(1);
    config.backends[1] = backend(other.addr());
    let warm = start(config);
    wait::until("the restart is seen", || status(&warm, 0)["index_blocks"] == 0);
    assert!(metric(&warm, "unlatch_state_loaded_prompts_total", "") > 0.0);
    let url = |at: usize| format!("http://{}", engines[at].addr());
    for (session, backend) in went.iter().enumerate() {
        // The others' sessions share nothing with it, so it is found where it went or nowhere.
        let (to, matched) = send(&warm, session, 1);
        let is_known = *backend == url(3);
        assert_eq!(matched > 300, is_known, "session {session} went to {backend}, now {to}");
    }
}

#[test]
fn a_state_that_is_none_or_too_old_is_no_reason_not_to_serve() {
    let (folder, engines) = (tempfile::tempdir().unwrap(), engines());
    let dir = folder.path().join("state");
    let first = start(keeping(&engines, &dir));
    send(&first, 1, 1);
    first.shutdown(wait::DEADLINE);
    let path = dir.join("0.state");
    let whole = fs::read(&path).unwrap();
    let mut flipped = whole.clone();
    flipped[200] ^= 1;
    for content in [&whole[..100], &flipped, b"", b"something else"] {
        fs::write(&path, content).unwrap();
        let router = start(keeping(&engines, &dir));
        assert_eq!(metric(&router, "unlatch_state_loaded_prompts_total", ""), 0.0);
        assert_eq!(send(&router, 1, 1).1, 0, "nothing is loaded of {} bytes", content.len());
    }
    fs::write(&path, &whole).unwrap();
    let mut config = keeping(&engines, &dir);
    config.state.max_age = Duration::ZERO;
    std::thread::sleep(Duration::from_millis(2));
    assert_eq!(metric(&start(config), "unlatch_state_loaded_prompts_total", ""), 0.0, "too old");
    fs::write(&path, &whole).unwrap();
    assert!(send(&start(keeping(&engines, &dir)), 1, 2).1 > 300, "the whole one is used");
}

#[test]
fn two_routers_have_a_file_each_and_one_directory_that_is_none_stops_nobody() {
    let (folder, engines) = (tempfile::tempdir().unwrap(), engines());
    let dir = folder.path().join("state");
    let [first, second] = [(); 2].map(|()| start(keeping(&engines, &dir)));
    send(&first, 1, 1);
    send(&second, 2, 1);
    drop((first, second));
    let files = ["0.state", "1.state"].map(|name| fs::metadata(dir.join(name)).unwrap().len());
    assert!(files.iter().all(|&bytes| bytes > 500), "{files:?}");

    fs::write(folder.path().join("file"), "").unwrap();
    let router = start(keeping(&engines, &folder.path().join("file/state")));
    send(&router, 1, 1);
    assert_eq!(metric(&router, "unlatch_state_save_failures_total", ""), 1.0);
}

/// Its source comes late: until then what it held waits, is saved with the rest, and is found when it joins.
#[test]
fn an_engine_that_joins_later_is_warm() {
    let (folder, engines) = (tempfile::tempdir().unwrap(), engines());
    let dir = folder.path().join("state");
    let first = start(keeping(&engines, &dir));
    let went: Vec<_> = (0..SESSIONS).map(|session| send(&first, session, 1).0).collect();
    first.shutdown(wait::DEADLINE);
    // It never hears of them, and saves what it was left.
    start(keeping(&[], &dir)).shutdown(wait::DEADLINE);

    let late = start(keeping(&[], &dir));
    assert_eq!(metric(&late, "unlatch_state_loaded_prompts_total", ""), 0.0);
    let members = engines.iter().map(|e| Member { config: backend(e.addr()), addr: e.addr() }).collect();
    late.fleet().set("file", members);
    for (session, backend) in went.iter().enumerate() {
        let (to, matched) = send(&late, session, 2);
        assert_eq!((&to, matched > 300), (backend, true), "session {session}: {matched} tokens found");
    }
}

#[test]
fn a_state_that_cannot_be_written_stops_nobody_and_is_written_when_it_can_be() {
    let (folder, engines) = (tempfile::tempdir().unwrap(), engines());
    let dir = folder.path().join("state");
    let mut config = keeping(&engines, &dir);
    config.state.interval = Some(Duration::from_millis(20));
    let router = start(config);
    let saves = || metric(&router, "unlatch_state_saves_total", "");
    let failures = |why: &str| metric(&router, "unlatch_state_save_failures_total", &format!("\"{why}\""));
    wait::until("it is saved", || saves() >= 1.0);
    // A disk that is full, until what it has of the new state is taken away.
    wait::until("the place is free", || std::os::unix::fs::symlink("/dev/full", dir.join("0.new")).is_ok());
    wait::until("that fails", || failures("no_space") >= 1.0);
    // Nothing can be written over a directory.
    wait::until("the place is free", || fs::create_dir(dir.join("0.new")).is_ok());
    wait::until("that fails again and again", || failures("io") >= 3.0);
    send(&router, 1, 1);
    fs::remove_dir(dir.join("0.new")).unwrap();
    let before = saves();
    wait::until("it is saved again", || saves() > before);
}
