//! Three router processes on a host: they share counts through the table, and placements by gossip.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use router_tests::backend::Backend;
use router_tests::client::{Answer, Client, ask, post};
use router_tests::router::metric_at;
use router_tests::wait;
use router_user::account::view::View;

use crate::router_process::{BINARY, is_built};
use crate::sandbox::{Sandbox, name, run};

const IP: &str = "127.78.0.4";

/// A router process, killed with its value.
struct Router {
    process: Child,
    addr: SocketAddr,
    admin: SocketAddr,
}

impl Router {
    fn start(sandbox: &Sandbox, engines: &[Backend]) -> Self {
        let [addr, admin] = [(); 2].map(|()| TcpListener::bind((IP, 0)).unwrap());
        let [addr, admin] = [addr, admin].map(|listener| listener.local_addr().unwrap());
        let mut command = Command::new(std::env::var_os(BINARY).unwrap());
        command.arg("serve").args([format!("--listen={addr}"), format!("--admin-listen={admin}")]);
        command.args(["--kernel=on", "--debug-headers", "--log-level=error"]).arg("--pin-dir");
        command.arg(sandbox.pin_dir()).arg("--gossip-dir").arg(sandbox.dir().join("gossip"));
        command.args(engines.iter().map(|engine| format!("--backend=http://{},model=m", engine.addr())));
        let process = command.stdin(Stdio::null()).spawn().unwrap();
        let router = Self { process, addr, admin };
        wait::until("it listens", || TcpStream::connect(addr).is_ok());
        // It listens before all is set up, and answers after.
        assert_eq!(ask(addr, "GET /version HTTP/1.1\r\nhost: h\r\n\r\n").status, 200);
        router
    }

    fn metric(&self, name: &str) -> f64 {
        metric_at(self.admin, name, "")
    }

    fn send(&self, prompt: &str) -> Answer {
        let body = format!(r#"{{"model":"m","prompt":"{prompt}"}}"#);
        let answer = ask(self.addr, post("/v1/completions", &body));
        assert_eq!(answer.status, 200);
        answer
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

fn prompt(conversation: usize) -> String {
    format!("This is turn one of conversation {conversation}. ").repeat(60)
}

fn wait_peers(routers: &[Router]) {
    let others = (routers.len() - 1) as f64;
    wait::until("they know each other", || {
        routers.iter().all(|r| r.metric("unlatch_gossip_peers") == others)
    });
}

/// A turn at one process. Both others have heard of it when it returns: what came late would be taken for the
/// next turn's.
fn turn(routers: &[Router], at: usize, prompt: &str) -> Answer {
    let heard = || [1, 2].map(|n| routers[(at + n) % 3].metric("unlatch_gossip_heard_total"));
    let before = heard();
    let answer = routers[at % 3].send(prompt);
    wait::until("both others are told", || heard() == before.map(|count| count + 1.0));
    answer
}

/// A first turn at one process, the second at the next one.
fn converse(routers: &[Router], conversation: usize) {
    let one = turn(routers, conversation, &prompt(conversation));
    let two = turn(routers, conversation + 1, &format!("{} And this is turn two.", prompt(conversation)));
    let decision = two.header("x-unlatch-decision").unwrap();
    assert!(decision.contains("cost_with_prefix"), "conversation {conversation}: {decision}");
    assert_eq!(two.header("x-unlatch-backend"), one.header("x-unlatch-backend"));
}

#[test]
fn a_second_turn_at_another_process_goes_where_the_first_went_also_after_a_kill() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let engines = [(); 4].map(|()| Backend::ok());
        let mut routers: Vec<_> = (0..3).map(|_| Router::start(sandbox, &engines)).collect();
        wait_peers(&routers);
        assert_eq!(View::open(&sandbox.pin_dir()).unwrap().workers().len(), 3);
        (0..12).for_each(|conversation| converse(&routers, conversation));

        let killed = routers.remove(0);
        drop(killed);
        // Its socket stays behind; whoever comes takes the place.
        routers.push(Router::start(sandbox, &engines));
        wait_peers(&routers);
        (12..24).for_each(|conversation| converse(&routers, conversation));
        assert!(routers.iter().all(|router| router.metric("unlatch_gossip_lost_total") == 0.0));
    });
}

#[test]
fn a_burst_over_three_processes_is_spread_as_evenly_as_one_would() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let engines = [(); 4].map(|()| {
            Backend::start(|request, exchange| {
                if request.body.windows(4).any(|text| text == b"hold") {
                    return exchange.wait_closed();
                }
                exchange.answer("200 OK", "{}")
            })
        });
        let routers: Vec<_> = (0..3).map(|_| Router::start(sandbox, &engines)).collect();
        let view = View::open(&sandbox.pin_dir()).unwrap();
        let counts =
            || -> Vec<u32> { view.rows().unwrap().iter().map(|row| row.load.workers.iter().sum()).collect() };
        let clients: Vec<_> = (0..12)
            .map(|n| {
                let mut client = Client::connect(routers[n % 3].addr);
                client.send(post("/v1/completions", r#"{"model":"m","prompt":"hold"}"#));
                // One after the other, so that each must see the count of the process before.
                wait::until("it is counted", || counts().iter().sum::<u32>() as usize == n + 1);
                client
            })
            .collect();
        assert_eq!(counts(), [3, 3, 3, 3]);
        drop(clients);
        wait::until("all are gone", || counts() == [0, 0, 0, 0]);
    });
}
