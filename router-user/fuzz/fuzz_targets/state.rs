//! Saved states: no bytes are a danger, with or without the right checks; what is read is written again as it was, and
//! whatever an index held before, it is whole after it was told what a state says.
#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use router_fuzz::state::format::KEY_BYTES;
use router_fuzz::state::read::read;
use router_fuzz::state::write::Writer;
use router_fuzz::state::{checked, pieces};
use router_policy::BackendId;
use router_policy::prefix::{Recalled, Trie, Walk};

const BLOCKS_MAX: usize = 500;

fuzz_target!(|bytes: &[u8]| {
    let _refused = read(bytes.to_vec());
    let mut recalled = Recalled::default();
    pieces::recall(bytes, &mut recalled);
    hold(&recalled);
    let mut input = Unstructured::new(bytes);
    let mut chunks = Vec::new();
    while let (Ok(kind), Ok(len), false) = (input.int_in_range(0..=6_u32), input.arbitrary::<u8>(), input.is_empty()) {
        let payload = input.bytes(input.len().min(len.into())).unwrap_or_default();
        chunks.push((kind, payload));
    }
    let file = checked(&chunks);
    let Ok(state) = read(file) else { return };
    let mut to = Writer::new(Vec::new(), state.saved_at, &[7; KEY_BYTES], u64::MAX).expect("a vector takes everything");
    for saved in &state.engines {
        saved.write(&mut to).expect("a vector takes everything");
        hold(&saved.recall());
    }
    let again = read(to.end().expect("a vector takes everything").1).expect("what is written can be read");
    assert_eq!(again.engines.len(), state.engines.len());
    for (a, b) in again.engines.iter().zip(&state.engines) {
        assert_eq!(a.engine, b.engine);
        assert_eq!(a.has_pieces(), b.has_pieces());
    }
});

fn hold(recalled: &Recalled) {
    let (mut trie, mut walk) = (Trie::new(BLOCKS_MAX), Walk::default());
    let mut budget = 2000_usize;
    let ids = [0, 1].map(|row| BackendId::new(row).expect("invariant: there are two rows"));
    for id in ids {
        recalled.prompts(|blocks, answer| {
            trie.walk(blocks, &mut walk);
            if let Some(pin) = trie.insert(id, blocks, &walk, BLOCKS_MAX) {
                trie.unpin(id, pin, answer.min(BLOCKS_MAX), BLOCKS_MAX);
            }
            assert!(trie.held_blocks(id) <= BLOCKS_MAX);
            budget = budget.saturating_sub(1 + blocks.len());
            budget > 0
        });
        let copying = trie.begin_copy(id);
        assert!(trie.copy(&copying, usize::MAX, |_| ()).is_some());
    }
    ids.into_iter().for_each(|id| trie.clear(id));
    assert!(trie.is_empty());
}
