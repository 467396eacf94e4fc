//! Streams: every chunk at once, every byte as it was, and a broken one never looks whole.

use router_tests::backend::{Backend, Then};
use router_tests::client::{Client, ask, chat};
use router_tests::router::{config, start, wait_idle};
use router_tests::wait::Gate;

#[test]
fn each_chunk_reaches_the_client_before_the_next_is_made() {
    let gates: [Gate; 3] = Default::default();
    let at_engine = gates.clone();
    let engine = Backend::start(move |_, exchange| {
        exchange.start_stream();
        for (i, gate) in at_engine.iter().enumerate() {
            gate.wait();
            exchange.chunk(&format!("data: {i}\n\n"));
        }
        exchange.end_stream()
    });
    let router = start(config(&[engine.addr()]));
    let mut client = Client::connect(router.addr());
    client.send(chat());
    assert!(client.head().contains("text/event-stream"), "the head comes before the first event is made");
    for (i, gate) in gates.iter().enumerate() {
        gate.open();
        assert_eq!(client.chunk(), Some(format!("data: {i}\n\n")));
    }
    assert_eq!(client.chunk(), None);
    wait_idle(&router);
}

#[test]
fn bytes_are_not_touched_wherever_the_chunks_end() {
    let pieces: [&[u8]; 6] = [
        b"data: \xf0\x9f",
        b"\x98\x80\r\n\r\n",
        b": comment\n",
        b"data:[DONE]",
        b"\n\n\xff\xfe",
        b"data: no final blank",
    ];
    let engine = Backend::start(move |_, exchange| {
        exchange.start_stream();
        for piece in pieces {
            exchange.send(format!("{:x}\r\n", piece.len()));
            exchange.send(piece);
            exchange.send("\r\n");
        }
        exchange.end_stream()
    });
    let router = start(config(&[engine.addr()]));
    let answer = ask(router.addr(), chat());
    assert_eq!(answer.body, pieces.concat());
    assert!(answer.is_complete);
}

#[test]
fn a_chunked_stream_that_breaks_does_not_look_whole() {
    for then in [Then::Close, Then::Reset] {
        let sent = Gate::default();
        let seen = sent.clone();
        let engine = Backend::start(move |_, exchange| {
            exchange.start_stream();
            for i in 0..3 {
                exchange.chunk(&format!("data: {i}\n\n"));
            }
            // A reset would discard what the client has not read.
            seen.wait();
            then
        });
        let router = start(config(&[engine.addr()]));
        let mut client = Client::connect(router.addr());
        client.send(chat());
        let head = client.head();
        let first: String = (0..3).filter_map(|_| client.chunk()).collect();
        assert_eq!(first, "data: 0\n\ndata: 1\n\ndata: 2\n\n", "{then:?}");
        sent.open();
        let rest = client.body(head);
        assert!(
            !rest.is_complete && rest.body.is_empty(),
            "{then:?}: no last chunk, no second answer: {rest:?}"
        );
        wait_idle(&router);
        assert_eq!(engine.received().len(), 1, "{then:?}: it is not sent again");
    }
}

#[test]
fn an_answer_with_a_length_that_breaks_does_not_look_whole() {
    let engine = Backend::start(|_, exchange| {
        exchange.send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf.");
        Then::Close
    });
    let router = start(config(&[engine.addr()]));
    let answer = ask(router.addr(), chat());
    assert_eq!((answer.status, &*answer.text(), answer.is_complete), (200, "half.", false));
    wait_idle(&router);
    assert_eq!(engine.received().len(), 1);
}

#[test]
fn an_engine_that_closes_after_a_stream_with_keep_alive_announced_makes_no_failure() {
    let engine = Backend::start(|_, exchange| {
        exchange.send(
            "HTTP/1.1 200 OK\r\nkeep-alive: timeout=5, max=100\r\ncontent-type: text/event-stream\r\n\
             transfer-encoding: chunked\r\n\r\n",
        );
        exchange.chunk("data: a\n\n");
        exchange.end_stream();
        Then::Close
    });
    let router = start(config(&[engine.addr()]));
    let mut client = Client::connect(router.addr());
    for i in 0..20 {
        client.send(chat());
        let answer = client.answer();
        assert!(answer.status == 200 && answer.is_complete, "request {i}: {answer:?}");
    }
    assert_eq!(engine.received().len(), 20, "each was executed once");
    wait_idle(&router);
}
