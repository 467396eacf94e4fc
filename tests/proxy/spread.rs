//! Load goes where there is least of it: among equals by chance, by counts that are known now and not by what engines
//! said a while ago, and in spite of a prefix that everybody shares.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use router_policy::{PolicyConfig, PolicyName, RequestShape};
use router_tests::backend::{Backend, Exchange, Received};
use router_tests::client::{Client, ask, post};
use router_tests::router::{config, start, wait_idle};
use router_tests::wait::{self, Gate};
use router_user::config::Config;

const CHAT: &str = "/v1/chat/completions";

/// Text of so many bytes that differs from the first on by `what`.
fn text(what: &str, bytes: usize) -> String {
    let mut text = format!("{what}; ").repeat(bytes / what.len() + 1);
    text.truncate(bytes);
    text
}

/// A router of the given policy, all else by default.
fn placed_by(policy: PolicyName, engines: &[SocketAddr]) -> Config {
    let mut config = config(engines);
    let scrape_interval = config.policy.scrape_interval;
    config.policy = PolicyConfig { policy, scrape_interval, ..PolicyConfig::default() };
    config
}

/// An engine that answers when the gate opens.
fn held(gate: &Gate) -> Backend {
    let gate = gate.clone();
    Backend::start(move |_, exchange| {
        gate.wait();
        exchange.answer("200 OK", "{}")
    })
}

fn counts<const N: usize>(engines: &[Backend; N]) -> [usize; N] {
    engines.each_ref().map(|engine| engine.received().len())
}

/// R01. Each answer takes 2 ms instead of 20: there are never two at once whatever it is.
#[test]
fn r01_equal_backends_share_requests_that_come_one_by_one() {
    for policy in [PolicyName::LeastInFlight, PolicyName::PrefixCost] {
        let engines: [Backend; 3] = std::array::from_fn(|_| {
            Backend::start(|_, exchange| {
                std::thread::sleep(Duration::from_millis(2));
                exchange.answer("200 OK", "{}")
            })
        });
        let router = start(placed_by(policy, &engines.each_ref().map(Backend::addr)));
        let mut client = Client::connect(router.addr());
        for n in 0..300 {
            let message =
                serde_json::json!({"role": "user", "content": text(&format!("{n} unrelated"), 2000)});
            client.send(post(CHAT, &serde_json::json!({"model": "m", "messages": [message]}).to_string()));
            assert_eq!(client.answer().status, 200);
            wait_idle(&router);
        }
        let shares = counts(&engines);
        assert!(shares.iter().all(|n| (60..=141).contains(n)), "{policy:?}: {shares:?} of 300");
    }
}

const VLLM: &str = "vllm:num_requests_running{model_name=\"m\"} ";

/// R06. Held until all have arrived instead of for 10 s.
#[test]
fn r06_a_report_that_is_old_does_not_attract_a_burst() {
    for policy in [PolicyName::LeastInFlight, PolicyName::PrefixCost] {
        let gate = Gate::default();
        let engines = [held(&gate), held(&gate)];
        for (engine, running) in engines.iter().zip([0, 1]) {
            engine.say(&format!("{VLLM}{running}\nvllm:num_requests_waiting{{model_name=\"m\"}} 0\n"));
        }
        let mut config = placed_by(policy, &engines.each_ref().map(Backend::addr));
        config.policy.scrape_interval = Duration::from_secs(5);
        let router = start(config);
        let ids = router.ledger().backends();
        let said = || {
            let running = |&id| router.ledger().snapshot(id)?.report.running.value();
            ids.iter().map(running).collect::<Option<Vec<_>>>()
        };
        wait::until("both have reported", || said() == Some(vec![0, 1]));
        let clients: Vec<_> = (0..16)
            .map(|n| {
                let mut client = Client::connect(router.addr());
                let body = serde_json::json!({"model": "m", "prompt": text(&format!("{n} unrelated"), 2000)});
                client.send(post("/v1/completions", &body.to_string()));
                client
            })
            .collect();
        wait::until("all sixteen arrive", || counts(&engines).iter().sum::<usize>() == 16);
        let [a, b] = counts(&engines);
        assert!(a <= 10 && b >= 6, "{policy:?}: {a} at the one that looked idle, {b} at the other");
        gate.open();
        for mut client in clients {
            assert_eq!(client.answer().status, 200);
        }
        wait_idle(&router);
    }
}

/// R11. That one engine holds next to nothing of the index is no reason to give it what nobody holds.
#[test]
fn r11_what_nobody_holds_goes_by_load_and_not_by_shares_of_the_index() {
    let engines = [Backend::ok(), Backend::ok()];
    let mut config = placed_by(PolicyName::PrefixCost, &engines.each_ref().map(Backend::addr));
    config.backends[0].spec.max_in_flight = Some(31);
    let router = start(config);
    let [a, b] = router.ledger().backends()[..] else { panic!("two backends") };
    // Full while the other is seeded, then with a place left.
    let stream = |_| router.ledger().pick_forced(&RequestShape::unshaped(), a).unwrap();
    let mut streams: Vec<_> = (0..31).map(stream).collect();
    let send = |what: &str| {
        let body = serde_json::json!({"model": "m", "prompt": text(what, 2000)}).to_string();
        assert_eq!(ask(router.addr(), post("/v1/completions", &body)).status, 200);
        wait::until("it is no longer counted", || router.ledger().snapshot(b).unwrap().own.requests == 0);
    };
    (0..200).for_each(|n| send(&format!("seed {n}")));
    streams.pop();
    let blocks = |id| router.ledger().snapshot(id).unwrap().index_blocks;
    assert!(blocks(a) == 0 && blocks(b) > 1000, "{} and {}", blocks(a), blocks(b));
    let before = counts(&engines)[1];
    (0..20).for_each(|n| send(&format!("new {n}")));
    let went = counts(&engines)[1] - before;
    assert!(went >= 18, "{went} of 20 at the idle one");
    drop(streams);
    wait_idle(&router);
}

/// Where each turn of each user went, in order.
type Turns = Arc<Mutex<HashMap<u64, Vec<usize>>>>;

/// A request's time, a quarter of the case's 2 s: less than half a second counts as that in the cost of a seat.
const REQUEST: Duration = Duration::from_millis(500);

/// An engine whose stream begins after a tenth of a request's time.
fn streaming(row: usize, turns: &Turns) -> Backend {
    let turns = Arc::clone(turns);
    Backend::start(move |request: &Received, exchange: &mut Exchange| {
        let request: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
        turns.lock().entry(request["user"].as_u64().unwrap()).or_default().push(row);
        exchange.start_stream();
        std::thread::sleep(REQUEST / 10);
        for n in 0..9 {
            exchange.chunk(&format!("data: {n}\n\n"));
            std::thread::sleep(REQUEST / 10);
        }
        exchange.end_stream()
    })
}

/// One user's conversation.
struct User {
    number: u64,
    messages: Vec<serde_json::Value>,
}

impl User {
    fn new(number: u64) -> Self {
        let system = text("the system prompt of all", 6 << 10);
        let own = text(&format!("user {number}"), 2 << 10);
        let messages = [("system", system), ("user", own)];
        let messages = messages.map(|(role, text)| serde_json::json!({"role": role, "content": text}));
        Self { number, messages: messages.into() }
    }

    /// Sends all so far and takes the answer into it.
    fn turn(&mut self, router: SocketAddr) {
        let body =
            serde_json::json!({"model": "m", "stream": true, "user": self.number, "messages": self.messages});
        let answer = ask(router, post(CHAT, &body.to_string()));
        assert!(answer.status == 200 && answer.is_complete, "{answer:?}");
        self.messages.push(serde_json::json!({"role": "assistant", "content": answer.text()}));
        self.messages.push(serde_json::json!({"role": "user", "content": "Go on, please. ".repeat(20)}));
    }
}

/// In which order 32 clients send the four turns of 64 users.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// Each client sees one user through, then takes the next.
    UserByUser,
    /// All users take a turn before any takes the next: whoever returns finds others where it was.
    TurnByTurn,
}

fn common_system_prompt(order: Order, seats: Option<u32>) {
    let turns = Turns::default();
    let engines: [Backend; 4] = std::array::from_fn(|row| streaming(row, &turns));
    let mut config = placed_by(PolicyName::PrefixCost, &engines.each_ref().map(Backend::addr));
    config.backends.iter_mut().for_each(|backend| backend.spec.max_num_seqs = seats);
    let router = start(config);
    let users: Vec<_> = (0..64).map(|number| Mutex::new(User::new(number))).collect();
    let (next, to) = (AtomicUsize::new(0), router.addr());
    let send_all = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            match order {
                Order::UserByUser if at < 64 => (0..4).for_each(|_| users[at].lock().turn(to)),
                Order::TurnByTurn if at < 4 * 64 => users[at % 64].lock().turn(to),
                _ => break,
            }
        }
    };
    std::thread::scope(|scope| (0..32).for_each(|_| drop(scope.spawn(send_all))));
    let shares = counts(&engines);
    assert_eq!(shares.iter().sum::<usize>(), 256);
    assert!(shares.iter().all(|n| (26..=115).contains(n)), "{order:?}: {shares:?} of 256");
    let turns = turns.lock();
    let stayed: usize = turns.values().map(|t| t.windows(2).filter(|pair| pair[0] == pair[1]).count()).sum();
    assert!(stayed * 10 >= 192 * 7, "{order:?}: {stayed} of 192 later turns went where the one before did");
}

/// R05, streamed.
#[test]
fn r05_a_common_system_prompt_pins_nobody_and_users_stay() {
    common_system_prompt(Order::UserByUser, None);
}

/// R05 in the order that is harder. Seats are told: as long as they are not, a client that returns when all that were
/// ever seen in use are taken goes where one is free, by design.
#[test]
fn r05_users_stay_though_others_came_between_where_there_are_seats() {
    common_system_prompt(Order::TurnByTurn, Some(64));
}
