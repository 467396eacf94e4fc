//! From the ids of a prompt to what an engine and a router see of it: both derive from the same ids, so that a
//! prefix is cached for one exactly when it is the same for the other. No text is made.

use engine_sim::Prompt;
use engine_sim::model::{BLOCK_TOKENS, BlockHash};
use router_policy::RequestShape;
use router_policy::prefix::{BLOCK_BYTES, Chain};

use super::trace::{Call, Trace};

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

/// The same prompt as a router knows it: the last engine block of a router block names it and all before.
pub(super) fn shape(prompt: &Prompt, stream: bool) -> RequestShape {
    let last_of_each = prompt.hashes().iter().skip(ENGINE_BLOCKS - 1).step_by(ENGINE_BLOCKS);
    let blocks = last_of_each.map(|hash| u128::from(mix(hash.0)) << 64 | u128::from(hash.0)).collect();
    let bytes = u64::from(prompt.tokens()) * CHARS_PER_TOKEN;
    RequestShape {
        model: None,
        chain: Chain { blocks, bytes },
        shaped: true,
        stream,
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
    use super::super::trace::Session;
    use super::*;

    fn call(ids: &[u64], prompt_tokens: u32) -> Call {
        Call { ids: ids.into(), unit_tokens: 512, prompt_tokens, output_tokens: 1, gap_seconds: 0.0 }
    }

    fn trace() -> Trace {
        let session = |ids: &[u64]| Session { start_seconds: Some(0.0), calls: vec![call(ids, 1024)] };
        Trace::new(vec![session(&[1, 2]), session(&[1, 3])])
    }

    #[test]
    fn an_id_is_32_engine_blocks_and_8_router_blocks() {
        let prompt = prompt(&trace(), &call(&[1, 2], 512 + 70), 0);
        assert_eq!(prompt.hashes().len(), 32 + 4, "the partial block has no hash");
        let shape = shape(&prompt, true);
        assert_eq!((shape.chain.blocks.len(), shape.chain.bytes), (8 + 1, 4 * 582));
        assert_eq!(shape.prompt_tokens(4.0), 582);
    }

    #[test]
    fn equal_ids_are_equal_prefixes_for_engine_and_router() {
        let trace = trace();
        let (a, b) = (prompt(&trace, &call(&[1, 2], 1024), 0), prompt(&trace, &call(&[1, 3], 1024), 0));
        assert_eq!(a.hashes()[..32], b.hashes()[..32]);
        assert!(a.hashes()[32..].iter().all(|hash| !b.hashes().contains(hash)));
        let (a, b) = (shape(&a, true).chain.blocks, shape(&b, true).chain.blocks);
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
}
