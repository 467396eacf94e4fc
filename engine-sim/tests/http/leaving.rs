//! A client that leaves frees its seat and its blocks, wherever its request is.

use engine_sim::{Config, Handle};
use http_body_util::BodyExt;
use serde_json::json;
use tokio::net::TcpStream;

use crate::support::{Client, chat, fast, start, wait_until};

/// One seat, in real time: a request of 100,000 tokens would take minutes.
fn slow() -> Config {
    let mut config = fast();
    config.time_scale = 1.0;
    config.engine.max_num_seqs = 1;
    config
}

async fn client_with_endless_request(engine: &Handle, is_stream: bool) -> Client {
    let mut client = Client::connect(engine).await;
    client.send_in_background(chat("hello", 100_000, json!({"stream": is_stream}))).await;
    client
}

#[tokio::test]
async fn leaving_a_stream_frees_the_seat() {
    let engine = start(slow()).await;
    let mut client = Client::connect(&engine).await;
    let mut body = client.send(chat("hello", 100_000, json!({"stream": true}))).await.into_body();
    body.frame().await.unwrap().unwrap();
    assert_eq!(engine.stats().running, 1);
    drop(client);
    wait_until(&engine, "seat and blocks are free", |s| {
        s.live() == 0 && s.used_blocks == 0 && s.aborted == 1
    })
    .await;
}

#[tokio::test]
async fn leaving_a_plain_request_frees_the_seat() {
    let engine = start(slow()).await;
    let client = client_with_endless_request(&engine, false).await;
    wait_until(&engine, "it runs", |s| s.running == 1 && s.generated_tokens > 0).await;
    drop(client);
    wait_until(&engine, "seat and blocks are free", |s| {
        s.live() == 0 && s.used_blocks == 0 && s.aborted == 1
    })
    .await;
}

#[tokio::test]
async fn leaving_the_queue_lets_the_others_move_up() {
    let engine = start(slow()).await;
    let running = client_with_endless_request(&engine, true).await;
    wait_until(&engine, "one runs", |s| s.running == 1).await;
    for is_stream in [true, false] {
        let queued = client_with_endless_request(&engine, is_stream).await;
        wait_until(&engine, "one waits", |s| s.waiting == 1).await;
        drop(queued);
        wait_until(&engine, "nobody waits", |s| s.waiting + s.arriving == 0).await;
    }
    assert_eq!((engine.stats().aborted, engine.stats().running), (2, 1), "who runs is not disturbed");
    let next = client_with_endless_request(&engine, true).await;
    wait_until(&engine, "one waits", |s| s.waiting == 1).await;
    drop(running);
    wait_until(&engine, "the next has the seat", |s| s.running == 1 && s.waiting == 0 && s.aborted == 3)
        .await;
    drop(next);
    wait_until(&engine, "all is free", |s| s.live() == 0 && s.used_blocks == 0).await;
}

#[tokio::test]
async fn stopping_the_engine_closes_its_port_and_cuts_its_streams() {
    let engine = start(slow()).await;
    let mut client = Client::connect(&engine).await;
    let mut body = client.send(chat("hello", 100_000, json!({"stream": true}))).await.into_body();
    body.frame().await.unwrap().unwrap();
    let addr = engine.addr();
    engine.stop().await;
    assert!(TcpStream::connect(addr).await.is_err(), "nobody listens any more");
    while let Some(frame) = body.frame().await {
        if frame.is_err() {
            return;
        }
    }
    panic!("a stream that was cut must not end as if it were whole");
}

#[tokio::test]
async fn dropping_the_handle_stops_the_engine() {
    let engine = start(slow()).await;
    let mut client = Client::connect(&engine).await;
    let body = client.send(chat("hello", 100_000, json!({"stream": true}))).await.into_body();
    drop(engine);
    assert!(body.collect().await.is_err(), "the stream is cut");
}
