//! Request bodies: the scanner agrees with serde_json, and a shape depends on the body alone, not on the order of its
//! keys.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use router_fuzz::parse::json::{Scanner, name};
use router_fuzz::parse::shape;
use router_fuzz::{differs, distinct_members};
use router_policy::prefix::HashKey;
use router_policy::prefix::block::{BLOCK_BYTES, MAX_BLOCKS};

const KEY: HashKey = HashKey::new([7; 192]);

fuzz_target!(|text: &[u8]| {
    if let Some(how) = differs(text) {
        panic!("{how}");
    }
    let shape_of = |text: &[u8]| shape(&Bytes::copy_from_slice(text), &KEY);
    let Ok(of_text) = shape_of(text) else { return };
    assert!(of_text.n >= 1);
    assert!(of_text.shaped || of_text.chain.blocks.is_empty());
    // A batch counts beyond its chain; nothing else may be missing from it.
    let whole = of_text.chain.bytes / BLOCK_BYTES as u64;
    assert!(of_text.chain.blocks.len() as u64 <= whole.min(MAX_BLOCKS as u64));
    if let Some(turned) = turned(text) {
        assert_eq!(shape_of(&turned).as_ref(), Ok(&of_text), "{:?}", String::from_utf8_lossy(&turned));
    }
});

/// The same object with its members, and those of its messages, the other way round; `None` if a key comes twice,
/// where the last one counts.
fn turned(text: &[u8]) -> Option<Vec<u8>> {
    let mut members = Vec::new();
    for (key, value) in distinct_members(text)? {
        let value = if &*name(key) == b"messages" { turned_messages(value)? } else { value.to_vec() };
        members.push((key, value));
    }
    Some(object(members))
}

fn turned_messages(value: &[u8]) -> Option<Vec<u8>> {
    let mut elements = Vec::new();
    let mut s = Scanner::new(value);
    let is_array = s.array(|s| {
        elements.push(s.skip()?);
        Ok(())
    });
    if is_array.is_err() {
        return Some(value.to_vec());
    }
    let mut out = Vec::new();
    for element in elements {
        if element.first() == Some(&b'{') {
            let members = distinct_members(element)?;
            out.push(object(members.into_iter().map(|(key, value)| (key, value.to_vec())).collect()));
        } else {
            out.push(element.to_vec());
        }
    }
    Some([b"[", &*out.join(&b','), b"]"].concat())
}

fn object(mut members: Vec<(&[u8], Vec<u8>)>) -> Vec<u8> {
    members.reverse();
    let members: Vec<Vec<u8>> =
        members.iter().map(|(key, value)| [b" \"", *key, b"\" : ", value].concat()).collect();
    [b"{", &*members.join(&b','), b"\n}"].concat()
}
