//! The proxy on a runtime of its own: what the proxy tier cannot reach from outside.

use std::sync::Arc;
use std::time::Duration;

use router_policy::load::Alone;
use router_policy::prefix::HashKey;
use router_policy::{BackendId, BackendSpec, Placement, PolicyConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::metrics::RequestMetrics;
use super::{Proxy, Shared};
use crate::accept::limit::Connections;
use crate::account::Ledger;
use crate::backends::{Registry, Target};
use crate::config::Limits;
use crate::forward::connect::Mark;
use crate::forward::retry::RetryBudget;
use crate::shutdown::Switch;
use crate::{accept, proxy};

const ID: usize = 0;

fn shared(engine: std::net::SocketAddr) -> Arc<Shared> {
    let id = BackendId::new(ID).unwrap();
    let ledger = Ledger::new(Placement::new(PolicyConfig::default(), Box::new(Alone), 1));
    ledger.set_backend(id, BackendSpec::default());
    ledger.ready(id, true);
    let registry = Arc::new(Registry::default());
    let host = hyper::header::HeaderValue::from_static("h");
    registry.set(vec![Arc::new(Target::new(id, "http://h".into(), engine, host, String::new(), None, true))]);
    let limits = Limits::default();
    Arc::new(Shared {
        ending: Switch::default().listen(),
        ledger,
        registry,
        hash_key: HashKey::new([1; 192]),
        reading: arc_swap::ArcSwap::default(),
        budget: proxy::body::Budget::new(limits.bodies_total_bytes_max),
        retries: RetryBudget::new(limits.retry_budget),
        limits,
        metrics: Arc::new(RequestMetrics::new(&mut prometheus_client::registry::Registry::default())),
        proxy_paths: Vec::new(),
        keep_record: None,
        debug_headers: false,
        compat: None,
    })
}

/// Serves on a free port of the runtime that this is called in.
fn serve(shared: &Arc<Shared>, mark: Option<Mark>, switch: &Switch) -> std::net::SocketAddr {
    let listener = accept::bind(([127, 0, 0, 1], 0).into()).unwrap();
    let addr = listener.local_addr().unwrap();
    let proxy = Arc::new(Proxy::new(Arc::clone(shared), 1, mark));
    let limits = (&shared.limits).into();
    tokio::spawn(accept::serve(listener, proxy, limits, Arc::new(Connections::new(8)), switch.listen()));
    addr
}

#[tokio::test]
async fn a_panic_within_a_request_gives_everything_back() {
    let engine = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let shared = shared(engine.local_addr().unwrap());
    let budget = shared.budget.left();
    let panics: Mark = Arc::new(|_, _| panic!("within a request, on purpose"));
    let switch = Switch::default();
    let addr = serve(&shared, Some(panics), &switch);
    for _ in 0..3 {
        let mut client = TcpStream::connect(addr).await.unwrap();
        let request =
            b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 14\r\n\r\n{\"prompt\":\"x\"}";
        client.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(5), client.read_to_end(&mut answer)).await;
        read.expect("the connection must end").ok();
        assert!(answer.is_empty(), "a request that panicked has no answer");
    }
    let id = BackendId::new(ID).unwrap();
    assert_eq!(shared.ledger.snapshot(id).unwrap().own.requests, 0);
    assert_eq!(shared.budget.left(), budget);
}
