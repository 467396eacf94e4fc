//! An engine, a client, and waiting with a deadline.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use engine_sim::model::Stats;
use engine_sim::{Config, EngineConfig, Handle, Profile, Server};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// An engine of 4 seats, so fast that tests do not wait for it.
pub(crate) fn fast() -> Config {
    let engine = EngineConfig { max_num_seqs: 4, ..EngineConfig::of(Profile::H100_8B) };
    Config { name: "e1".to_owned(), model: "m".to_owned(), time_scale: 200.0, engine, ..Config::default() }
}

pub(crate) async fn start(config: Config) -> Handle {
    Server::start(config).await.expect("a free loopback port")
}

/// One connection; dropping it closes the connection, as a client that leaves does.
pub(crate) struct Client {
    sender: SendRequest<Full<Bytes>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Client {
    pub(crate) async fn connect(engine: &Handle) -> Self {
        Self::connect_to(engine.addr()).await
    }

    pub(crate) async fn connect_to(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).await.expect("the engine listens");
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("a handshake");
        let connection = tokio::spawn(async move { drop(connection.await) });
        Self { sender, tasks: vec![connection] }
    }

    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        self.sender.ready().await.expect("the connection is open");
        tokio::time::timeout(DEADLINE, self.sender.send_request(request))
            .await
            .expect("in time")
            .expect("a response")
    }

    /// Sends without waiting for the answer, which comes to nobody.
    pub(crate) async fn send_in_background(&mut self, request: Request<Full<Bytes>>) {
        self.sender.ready().await.expect("the connection is open");
        let response = self.sender.send_request(request);
        self.tasks.push(tokio::spawn(async move {
            if let Ok(response) = response.await {
                drop(response.into_body().collect().await);
            }
        }));
    }

    pub(crate) async fn get(&mut self, path: &str) -> (StatusCode, String) {
        let request = Request::get(path).body(Full::default()).expect("a valid request");
        text(self.send(request).await).await
    }

    pub(crate) async fn post(&mut self, path: &str, body: &str) -> (StatusCode, String) {
        text(self.send(post(path, body)).await).await
    }
}

pub(crate) fn post(path: &str, body: &str) -> Request<Full<Bytes>> {
    Request::post(path).body(Full::from(body.to_owned())).expect("a valid request")
}

/// A chat of one user message.
pub(crate) fn chat(content: &str, max_tokens: u32, extra: Value) -> Request<Full<Bytes>> {
    let mut body =
        json!({"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": max_tokens});
    body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
    post("/v1/chat/completions", &body.to_string())
}

pub(crate) async fn text(response: Response<Incoming>) -> (StatusCode, String) {
    let status = response.status();
    let body = tokio::time::timeout(DEADLINE, response.into_body().collect()).await.expect("in time");
    let bytes = body.expect("a whole body").to_bytes();
    (status, String::from_utf8(bytes.to_vec()).expect("UTF-8"))
}

pub(crate) async fn json_body(response: Response<Incoming>) -> Value {
    let (status, body) = text(response).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    serde_json::from_str(&body).expect("JSON")
}

/// The `data:` fields of an event stream.
pub(crate) fn events(stream: &str) -> Vec<&str> {
    stream
        .split_terminator("\n\n")
        .map(|event| event.strip_prefix("data: ").expect("every event is one data field"))
        .collect()
}

pub(crate) async fn wait_until(engine: &Handle, what: &str, is_so: impl Fn(&Stats) -> bool) {
    let waited = tokio::time::timeout(DEADLINE, async {
        while !is_so(&engine.stats()) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(waited.await.is_ok(), "{what}: {:?}", engine.stats());
}
