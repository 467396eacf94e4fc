//! From the ids of a prompt to what an engine and a router see of it: both derive from the same ids, so that a
//! prefix is cached for one exactly when it is the same for the other. No text is made.

use engine_sim::Prompt;
use engine_sim::model::{BLOCK_TOKENS, BlockHash};
use router_policy::RequestShape;
use router_policy::prefix::{BLOCK_BYTES, Chain};

use super::chooser::Asked;
use super::trace::{Call, Session, Trace};

/// Bytes of text that stand for a token.
const CHARS_PER_TOKEN: u64 = 4;
/// Engine blocks of 16 tokens in a router block of 256 bytes.
const ENGINE_BLOCKS: usize = BLOCK_BYTES / (CHARS_PER_TOKEN as usize * BLOCK_TOKENS as usize);
/// Blocks of one prompt at most: 16 Mi tokens, more than any engine takes.
const BLOCKS_MAX: u32 = 1 << 20;
/// Ids of the copies of a trace differ from this bit on.
const COPY_SHIFT: u32 = 40;

/// The prompt of a call in copy `copy` of its trace, as the engine hashes it.
pub(super) fn prompt(trace: &Trace, call: &Call, copy: u32) -> Prompt {
    let ids: Vec<u64> = call.ids.iter().map(|id| copied(trace, *id, copy)).collect();
    let per_id = (call.unit_tokens / BLOCK_TOKENS).max(1);
    let full = (call.prompt_tokens / BLOCK_TOKENS).min(BLOCKS_MAX);
    let hashes = (0..full).map_while(|block| {
        let id = ids.get((block / per_id) as usize)?;
        // The unit keeps the ids of different forms apart.
        let place = u64::from(block % per_id) << 32 | u64::from(call.unit_tokens);
        Some(BlockHash(mix(id ^ mix(place))))
    });
    Prompt::new(call.prompt_tokens, hashes.collect())
}

/// The key of session number `number` in copy `copy` of its trace; `None` where nobody recorded whose calls they are.
pub(super) fn session(session: &Session, number: u32, copy: u32) -> Option<u64> {
    session.is_one_client.then(|| mix(u64::from(copy) << 32 | u64::from(number)))
}

/// The same request as a router knows it: the last engine block of a router block names it and all before. Without a
/// recorded session its first `hash_blocks` blocks name one.
pub(super) fn shape(asked: &Asked<'_>, hash_blocks: u32) -> RequestShape {
    let prompt = asked.prompt;
    let last_of_each = prompt.hashes().iter().skip(ENGINE_BLOCKS - 1).step_by(ENGINE_BLOCKS);
    let blocks: Vec<_> =
        last_of_each.map(|hash| u128::from(mix(hash.0)) << 64 | u128::from(hash.0)).collect();
    let first_blocks =
        || blocks.iter().take(hash_blocks.max(1) as usize).next_back().map(|hash| *hash as u64);
    let session = asked.session.or_else(first_blocks);
    let bytes = u64::from(prompt.tokens()) * CHARS_PER_TOKEN;
    RequestShape {
        model: None,
        chain: Chain { blocks, bytes },
        shaped: true,
        stream: asked.stream,
        session,
        ..RequestShape::default()
    }
}

fn copied(trace: &Trace, id: u64, copy: u32) -> u64 {
    if copy == 0 || trace.is_shared(id) { id } else { id ^ u64::from(copy) << COPY_SHIFT }
}

/// Spreads close numbers over all of 64 bits, one to one (the finaliser of splitmix64).
pub(super) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(ids: &[u64], prompt_tokens: u32) -> Call {
        Call { ids: ids.into(), unit_tokens: 512, prompt_tokens, output_tokens: 1, gap_seconds: 0.0 }
    }

    fn trace() -> Trace {
        let session = |ids: &[u64]| Session {
            start_seconds: Some(0.0),
            calls: vec![call(ids, 1024)],
            is_one_client: false,
        };
        Trace::new(vec![session(&[1, 2]), session(&[1, 3])])
    }

    fn shaped(prompt: &Prompt, session: Option<u64>, hash_blocks: u32) -> RequestShape {
        shape(&Asked { prompt, session, stream: true }, hash_blocks)
    }

    #[test]
    fn an_id_is_32_engine_blocks_and_8_router_blocks() {
        let prompt = prompt(&trace(), &call(&[1, 2], 512 + 70), 0);
        assert_eq!(prompt.hashes().len(), 32 + 4, "the partial block has no hash");
        let shape = shaped(&prompt, None, 16);
        assert_eq!((shape.chain.blocks.len(), shape.chain.bytes), (8 + 1, 4 * 582));
        assert_eq!(shape.prompt_tokens(4.0), 582);
    }

    #[test]
    fn equal_ids_are_equal_prefixes_for_engine_and_router() {
        let trace = trace();
        let (a, b) = (prompt(&trace, &call(&[1, 2], 1024), 0), prompt(&trace, &call(&[1, 3], 1024), 0));
        assert_eq!(a.hashes()[..32], b.hashes()[..32]);
        assert!(a.hashes()[32..].iter().all(|hash| !b.hashes().contains(hash)));
        let (a, b) = (shaped(&a, None, 16).chain.blocks, shaped(&b, None, 16).chain.blocks);
        assert_eq!(a[..8], b[..8]);
        assert!(a[8..].iter().all(|hash| !b.contains(hash)));
    }

    #[test]
    fn a_copy_shares_what_all_share_and_nothing_else() {
        let trace = trace();
        let of_copy = |copy| prompt(&trace, &call(&[1, 2], 1024), copy);
        assert_eq!(of_copy(0).hashes()[..32], of_copy(1).hashes()[..32], "id 1 is shared");
        assert!(of_copy(1).hashes()[32..].iter().all(|hash| !of_copy(0).hashes().contains(hash)));
        assert!(of_copy(1).hashes()[32..].iter().all(|hash| !of_copy(2).hashes().contains(hash)));
    }

    #[test]
    fn the_first_blocks_name_the_session_where_none_was_recorded() {
        let trace = trace();
        let key = |ids: &[u64], session, blocks| {
            shaped(&prompt(&trace, &call(ids, 1024), 0), session, blocks).session
        };
        assert_eq!(key(&[1, 2], None, 8), key(&[1, 3], None, 8), "equal for 8 blocks");
        assert_ne!(key(&[1, 2], None, 9), key(&[1, 3], None, 9));
        assert_eq!(key(&[1, 2], None, 0), key(&[1, 2], None, 1), "one block at least");
        assert_eq!(key(&[1, 2], Some(5), 9), Some(5), "a recorded one counts");
        let short = prompt(&trace, &call(&[1], 63), 0);
        assert_eq!(shaped(&short, None, 8).session, None, "less than a block names nobody");
    }

    #[test]
    fn a_recorded_session_has_a_key_of_its_own_in_every_copy() {
        let mut recorded = Session { start_seconds: None, calls: Vec::new(), is_one_client: true };
        let keys: std::collections::HashSet<_> = (0..4)
            .flat_map(|n| (0..4).map(move |copy| (n, copy)))
            .map(|(n, copy)| session(&recorded, n, copy))
            .collect();
        assert_eq!(keys.len(), 16);
        recorded.is_one_client = false;
        assert_eq!(session(&recorded, 0, 0), None);
    }
}
