//! What engines report, as a router of this host heard it: no pin holds that, so the router is asked, if one answers.

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::client::get;
use super::{Backend, Status};
use crate::config::AdminListen;

/// Time for the answer, and its bytes at most.
const TIMEOUT: Duration = Duration::from_secs(1);
const BYTES_MAX: usize = 16 << 20;

/// A value that an engine told: absent while unknown.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Told {
    value: Option<Value>,
    age_seconds: Option<f64>,
}

/// What an engine reports.
#[derive(Clone, Debug, Serialize)]
pub(in super::super) struct Reported {
    state: String,
    engine: Option<String>,
    problem: Option<String>,
    running: Told,
    waiting: Told,
}

#[derive(Deserialize)]
struct Answer {
    backends: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    row: usize,
    url: String,
    report: State,
    running: Told,
    waiting: Told,
}

#[derive(Deserialize)]
struct State {
    state: String,
    engine: Option<String>,
    problem: Option<String>,
}

/// Adds to each backend what the router at `admin` heard of it, and says where that comes from.
pub(super) fn add(status: &mut Status, admin: Option<&AdminListen>) {
    let Some(admin) = admin else { return };
    let ask =
        || Ok::<Answer, anyhow::Error>(serde_json::from_slice(&get(admin, "/status", TIMEOUT, BYTES_MAX)?)?);
    let answer = match ask() {
        Ok(answer) => answer,
        Err(why) => {
            status.reports = format!("unknown, as no router answers at {admin}: {why}");
            return;
        }
    };
    status.reports = format!("as the router at {admin} heard them");
    for Row { row, url, report: State { state, engine, problem }, running, waiting } in answer.backends {
        if let Some(backend) = status.backends.iter_mut().find(|b| b.row == row && b.url == url) {
            backend.report = Some(Reported { state, engine, problem, running, waiting });
        }
    }
}

/// A line for each backend whose report is not known.
pub(super) fn table(backends: &[Backend]) -> String {
    let mut text = String::new();
    for (url, report) in backends.iter().filter_map(|b| Some((&b.url, b.report.as_ref()?))) {
        let problem = report.problem.as_ref().map(|p| format!(": {p}")).unwrap_or_default();
        if report.state != "known" {
            let _ = writeln!(text, "report   {url}: {}{problem}", report.state);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener};

    use super::{add, table};
    use crate::commands::status::example_tests::status;

    /// A router that answers one question so.
    fn router(body: &'static str) -> (SocketAddr, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; 4096];
            let n = stream.read(&mut head).unwrap();
            assert!(head[..n].starts_with(b"GET /status HTTP/1.1\r\n"));
            let length = body.len();
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
        });
        (addr, answering)
    }

    #[test]
    fn backends_get_what_the_router_heard_of_them_and_others_nothing() {
        let mut status = status(&[1, 2, 3]);
        let (addr, answering) = router(
            r#"{"policy":"x","backends":[
                {"row":0,"url":"http://engine-0:8000","report":{"state":"known","engine":"vllm","problem":null},
                 "running":{"value":4,"age_seconds":0.5},"waiting":{"value":0,"age_seconds":0.5}},
                {"row":1,"url":"http://engine-1:8000",
                 "report":{"state":"missing","engine":"vllm","problem":"vllm:num_requests_running is missing"},
                 "running":{"value":null,"why":"missing"},"waiting":{"value":0,"age_seconds":0.5}},
                {"row":2,"url":"http://another","report":{"state":"known","engine":null,"problem":null},
                 "running":{"value":9,"age_seconds":0},"waiting":{"value":0,"age_seconds":0}}]}"#,
        );
        add(&mut status, Some(&addr.into()));
        answering.join().unwrap();
        assert_eq!(status.reports, format!("as the router at {addr} heard them"));
        let told = serde_json::to_value(&status.backends).unwrap();
        assert_eq!(told[0]["report"]["running"]["value"], 4);
        assert!(told[1]["report"]["running"]["value"].is_null() && told[2]["report"].is_null());
        assert_eq!(
            table(&status.backends),
            "report   http://engine-1:8000: missing: vllm:num_requests_running is missing\n"
        );
    }

    #[test]
    fn a_router_at_a_socket_is_asked_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; 4096];
            let n = stream.read(&mut head).unwrap();
            assert!(head[..n].starts_with(b"GET /status HTTP/1.1\r\n"));
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n{{\"backends\":[]}}").unwrap();
        });
        let mut status = status(&[1]);
        let at = format!("unix:{}", path.display());
        add(&mut status, Some(&at.parse().unwrap()));
        answering.join().unwrap();
        assert_eq!(status.reports, format!("as the router at {at} heard them"));
    }

    #[test]
    fn without_a_router_the_reports_are_unknown_and_the_status_stays() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let nobody = listener.local_addr().unwrap();
        drop(listener);
        let (other, answering) = router("<html>");
        for addr in [nobody, other] {
            let mut status = status(&[1]);
            add(&mut status, Some(&addr.into()));
            assert!(status.reports.starts_with("unknown, as no router answers"), "{}", status.reports);
            assert!(status.backends[0].report.is_none());
        }
        answering.join().unwrap();
        let mut unasked = status(&[1]);
        add(&mut unasked, None);
        assert_eq!(table(&unasked.backends), "");
    }
}
