//! `--record`: a line for every decision, by which a client's request can be found.

use router_tests::backend::Backend;
use router_tests::client::{ask, chat};
use router_tests::router::{config, start};
use router_tests::wait::until;
use router_user::decisions::Line;

#[test]
fn a_record_names_the_request_as_the_client_knows_it() {
    let engines = [Backend::ok(), Backend::ok()];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("decisions");
    let mut config = config(&engines.each_ref().map(Backend::addr));
    (config.record, config.policy.record) = (Some(path.clone()), true);
    let router = start(config);
    let own = ask(router.addr(), chat().replacen("\r\n\r\n", "\r\nx-request-id: mine-1\r\n\r\n", 1));
    let made = ask(router.addr(), chat());
    let written = || std::fs::read_to_string(&path).unwrap();
    until("both decisions are written", || written().matches('\n').count() == 2);
    let lines: Vec<Line> = written().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (line, answer) in lines.iter().zip([&own, &made]) {
        assert_eq!(line.request.as_deref(), answer.header("x-request-id"));
        assert_eq!(Some(&*line.chosen), answer.header("x-unlatch-backend"));
        assert_eq!((line.reason.as_str(), line.candidates.len()), ("least_in_flight", 2));
    }
    assert_eq!(lines[0].request.as_deref(), Some("mine-1"));
    assert!(!written().contains("hello"), "no text of the prompt");
}
