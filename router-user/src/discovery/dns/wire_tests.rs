use std::time::Duration;

use super::super::{Answer, Failure, Found, Service};
use super::{Kind, Reply, question, reply};

/// A reply as a server writes it: head and question of `asked`, then records by hand.
fn written(asked: &[u8], flags: [u8; 2], records: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = asked.to_vec();
    bytes[2] = 0x80 | flags[0];
    bytes[3] = flags[1];
    bytes[7] = records.len() as u8;
    records.iter().for_each(|record| bytes.extend(record));
    bytes
}

fn record(owner: &[u8], kind: u8, ttl: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = [owner, &[0, kind, 0, 1]].concat();
    bytes.extend(ttl.to_be_bytes());
    bytes.extend((data.len() as u16).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// The question's name, by a pointer.
const ITSELF: &[u8] = &[0xc0, 12];
const OTHER: &[u8] = b"\x01o\x07example\x00";

fn asked(kind: Kind) -> Vec<u8> {
    question("e.example.", kind, 0x1234).unwrap()
}

fn answered(kind: Kind, records: &[Vec<u8>]) -> Option<Reply> {
    reply(&written(&asked(kind), [1, 0], records), &asked(kind), kind)
}

fn is(found: Found, ttl: u64) -> Option<Reply> {
    Some(Reply::Is(Ok(Answer { found, ttl: Duration::from_secs(ttl) })))
}

#[test]
fn a_question_is_what_the_standard_says() {
    let wanted = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01e\x07example\x00\x00\x01\x00\x01";
    assert_eq!(asked(Kind::A), wanted);
    for name in ["", "a..b.", &"a".repeat(64), &"abcdefg.".repeat(40)] {
        assert_eq!(question(name, Kind::A, 0), Err(Failure::NotAName), "{name}");
    }
}

#[test]
fn addresses_and_the_shortest_ttl_are_read() {
    let a = |n, ttl| record(ITSELF, 1, ttl, &[10, 0, 0, n]);
    let ips = |all: &[&str]| Found::Addresses(all.iter().map(|ip| ip.parse().unwrap()).collect());
    assert_eq!(answered(Kind::A, &[a(1, 30), a(2, 5)]), is(ips(&["10.0.0.1", "10.0.0.2"]), 5));
    let six = record(ITSELF, 28, 7, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(answered(Kind::Aaaa, &[six]), is(ips(&["::1"]), 7));
    let alias = record(ITSELF, 5, 3, OTHER);
    let behind = record(OTHER, 1, 60, &[10, 0, 0, 9]);
    assert_eq!(answered(Kind::A, &[alias.clone(), behind.clone()]), is(ips(&["10.0.0.9"]), 3));
    let nothing = Some(Reply::Is(Err(Failure::NoRecord)));
    assert_eq!(answered(Kind::A, &[]), nothing);
    assert_eq!(answered(Kind::A, &[alias]), nothing, "an alias that leads nowhere");
    assert_eq!(answered(Kind::A, &[behind]), nothing, "another name's address");
}

#[test]
fn services_of_the_best_priority_are_read() {
    let srv = |priority: u8, weight: u8, port: [u8; 2], host: &[u8]| {
        record(ITSELF, 33, 9, &[&[0, priority, 0, weight], &port[..], host].concat())
    };
    let service = |weight, port| Service { host: "o.example".to_owned(), port, weight };
    let all = [srv(1, 3, [31, 64], OTHER), srv(2, 9, [31, 65], OTHER), srv(1, 1, [31, 66], OTHER)];
    assert_eq!(answered(Kind::Srv, &all), is(Found::Services(vec![service(3, 8000), service(1, 8002)]), 9));
    for wrong in [srv(1, 1, [31, 64], &[0]), srv(1, 1, [0, 0], OTHER), srv(1, 1, [31, 64], b"\x03a b\x00")] {
        assert_eq!(answered(Kind::Srv, &[wrong]), Some(Reply::Is(Err(Failure::NoRecord))));
    }
}

#[test]
fn refusals_are_told_apart() {
    let said = |flags| reply(&written(&asked(Kind::A), flags, &[]), &asked(Kind::A), Kind::A);
    assert_eq!(said([1, 3]), Some(Reply::Is(Err(Failure::NoName))));
    assert_eq!(said([1, 2]), Some(Reply::Is(Err(Failure::Refused("SERVFAIL".to_owned())))));
    assert_eq!(said([3, 0]), Some(Reply::Truncated));
    // A head alone is enough to refuse.
    assert!(reply(b"\x12\x34\x80\x05\0\0\0\0\0\0\0\0", &asked(Kind::A), Kind::A).is_some());
}

#[test]
fn what_is_no_reply_to_the_question_is_passed_over() {
    let good = written(&asked(Kind::A), [1, 0], &[record(ITSELF, 1, 1, &[10, 0, 0, 1])]);
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        reply(&bytes, &asked(Kind::A), Kind::A)
    };
    assert!(changed(2, 0x81).is_some());
    assert_eq!(changed(1, 0), None, "another number");
    assert_eq!(changed(2, 0x01), None, "a question");
    assert_eq!(changed(13, b'f'), None, "another name");
    assert_eq!(changed(24, 28), None, "another kind");
    assert_eq!(reply(b"", &good, Kind::A), None);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(500))]
    #[test]
    fn no_bytes_panic(bytes: Vec<u8>, at in proptest::collection::vec((0_usize..80, proptest::num::u8::ANY), 0..6), cut in 0_usize..90) {
        for kind in [Kind::A, Kind::Aaaa, Kind::Srv] {
            let _any = reply(&bytes, &asked(kind), kind);
            let data = [&[0, 1, 0, 1, 31, 64], OTHER].concat();
            let mut good = written(&asked(kind), [1, 0], &[record(ITSELF, 33, 1, &data), record(ITSELF, 1, 1, &[10, 0, 0, 1])]);
            for (at, byte) in &at {
                if let Some(old) = good.get_mut(*at) {
                    *old = *byte;
                }
            }
            good.truncate(cut.max(12));
            let _any = reply(&good, &asked(kind), kind);
        }
    }
}
