use proptest::prelude::*;
use router_policy::BackendId;
use router_policy::Taught;
use router_policy::prefix::{ChainBuilder, Copying, HashKey, Trie, Walk};

use super::super::format::{CHUNK, Engine, HEADER, KEY_BYTES, Refused, Saved, State, VERSION};
use super::super::pieces::Pieces;
use super::super::write::Writer;
use super::read;

fn id(row: usize) -> BackendId {
    BackendId::new(row).unwrap()
}

fn engine(row: usize) -> Engine {
    let taught = Taught {
        averages: [Some((1.5, 3)), None, Some((3.25, 7)), None, Some((9000.0, 1)), Some((0.5, 2))],
        seats_from_scrapes: Some(4),
        proven_seats: 9,
        kv_tokens: Some(1 << 20),
        ..Taught::default()
    };
    let addr = if row == 0 { "10.0.0.1:8000" } else { "[2001:db8::1]:8000" };
    Engine {
        addr: addr.parse().unwrap(),
        url: format!("http://engine-{row}"),
        seen_at: 17,
        process_start: (row == 0).then_some(1.25),
        taught,
    }
}

fn insert(trie: &mut Trie, id: BackendId, chain: &[u128], answer: usize) {
    let mut walk = Walk::default();
    trie.walk(chain, &mut walk);
    if let Some(pin) = trie.insert(id, chain, &walk, 1 << 20) {
        trie.unpin(id, pin, answer, 1 << 20);
    }
}

fn pieces(trie: &mut Trie, copying: &Copying) -> Pieces {
    let mut pieces = Pieces::with_room(4);
    while trie.copy(copying, 4, |held| pieces.push(held)).unwrap() {}
    pieces
}

/// A state of two engines with what they hold.
fn write(trie: &mut Trie) -> Vec<u8> {
    let mut to = Writer::new(Vec::new(), 42, &[7; KEY_BYTES], 1 << 20).unwrap();
    for row in 0..2 {
        to.engine(&engine(row)).unwrap();
        let copying = trie.begin_copy(id(row));
        let mut pieces = pieces(trie, &copying);
        to.pieces(&pieces).unwrap();
        to.whole(pieces.clear()).unwrap();
    }
    to.end().unwrap().1
}

fn hold(state: &State) -> Trie {
    let mut trie = Trie::default();
    for (row, saved) in state.engines.iter().enumerate() {
        let left_out = saved.recall().prompts(|blocks, answer| {
            insert(&mut trie, id(row), blocks, answer);
            true
        });
        assert_eq!(left_out, 0);
    }
    trie
}

fn chain(path: &[u8]) -> Vec<u128> {
    let mut hash = 1_u128;
    let mut next = |&step: &u8| {
        hash = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
        hash = hash.wrapping_add(u128::from(step) + 1);
        hash
    };
    path.iter().map(&mut next).collect()
}

/// A small state, of all kinds of pieces.
fn example() -> Vec<u8> {
    let mut trie = Trie::default();
    for (row, path) in [(0, &[1; 11][..]), (1, &[1, 1, 1, 2]), (0, &[1, 2])] {
        insert(&mut trie, id(row), &chain(path), row);
    }
    write(&mut trie)
}

proptest! {
    #[test]
    fn what_is_loaded_matches_what_was_saved(
        ops in prop::collection::vec((0_usize..2, prop::collection::vec(0_u8..3, 1..30), 0_usize..4), 0..40)
    ) {
        let mut trie = Trie::default();
        for (row, path, answer) in &ops {
            insert(&mut trie, id(*row), &chain(path), *answer);
        }
        let state = read(write(&mut trie)).unwrap();
        prop_assert_eq!((state.saved_at, state.key.0), (42, [7; KEY_BYTES]));
        let again = hold(&state);
        let (mut walk, mut walk_again) = (Walk::default(), Walk::default());
        for row in 0..2 {
            prop_assert_eq!(&state.engines[row].engine, &engine(row));
            prop_assert_eq!(again.held_blocks(id(row)), trie.held_blocks(id(row)));
            for (_, path, _) in &ops {
                trie.walk(&chain(path), &mut walk);
                again.walk(&chain(path), &mut walk_again);
                prop_assert_eq!(walk.leading_blocks(id(row)), walk_again.leading_blocks(id(row)));
            }
        }
    }

    #[test]
    fn no_bytes_are_a_danger(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0_usize..400) {
        read(bytes.clone()).unwrap_err();
        let mut file = example();
        let at = at.min(file.len());
        let end = (at + bytes.len()).min(file.len());
        file[at..end].copy_from_slice(&bytes[..end - at]);
        if file != example() {
            read(file).unwrap_err();
        }
    }
}

#[test]
fn a_file_that_is_cut_anywhere_is_refused() {
    let whole = example();
    assert!(read(whole.clone()).is_ok());
    for len in 0..whole.len() {
        assert_eq!(read(whole[..len].to_vec()).unwrap_err(), Refused::Cut, "{len} of {} bytes", whole.len());
    }
    let longer = [&whole[..], &[0]].concat();
    assert_eq!(read(longer).unwrap_err(), Refused::Malformed);
}

#[test]
fn a_file_in_which_any_bit_is_flipped_is_refused() {
    let whole = example();
    for bit in 0..whole.len() * 8 {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let refused = read(flipped).unwrap_err();
        let expected: &[Refused] = match bit / 8 {
            0..8 => &[Refused::Foreign],
            8..16 => &[Refused::OtherVersion],
            _ => &[Refused::Damaged, Refused::Cut],
        };
        assert!(expected.contains(&refused), "bit {bit}: {refused:?}");
    }
}

#[test]
fn chunks_that_are_left_out_or_moved_are_missed() {
    let whole = example();
    let first = HEADER + CHUNK + KEY_BYTES;
    let len = |at: usize| CHUNK + u32::from_le_bytes(whole[at + 4..at + 8].try_into().unwrap()) as usize;
    let second = first + len(first);
    let without = [&whole[..first], &whole[second..]].concat();
    assert_eq!(read(without).unwrap_err(), Refused::Damaged);
    let third = second + len(second);
    let swapped = [&whole[..first], &whole[second..third], &whole[first..second], &whole[third..]].concat();
    assert_eq!(read(swapped).unwrap_err(), Refused::Damaged);
}

#[test]
fn what_was_never_completed_is_void_and_the_rest_is_not() {
    let mut to = Writer::new(Vec::new(), 1, &[7; KEY_BYTES], 1 << 20).unwrap();
    let mut trie = Trie::default();
    insert(&mut trie, id(0), &chain(&[1; 20]), 0);
    for row in 0..2 {
        to.engine(&engine(row)).unwrap();
        let copying = trie.begin_copy(id(0));
        let mut pieces = pieces(&mut trie, &copying);
        to.pieces(&pieces).unwrap();
        if row == 1 {
            to.whole(pieces.clear()).unwrap();
        }
    }
    let state = read(to.end().unwrap().1).unwrap();
    assert_eq!(state.engines.iter().map(Saved::has_pieces).collect::<Vec<_>>(), [false, true]);
    assert_eq!(state.engines[0].engine, engine(0), "what it taught is not of the copy");
}

#[test]
fn an_engine_is_written_again_as_it_was_saved() {
    let state = read(example()).unwrap();
    let mut to = Writer::new(Vec::new(), 42, &state.key.0, 1 << 20).unwrap();
    for saved in &state.engines {
        saved.write(&mut to).unwrap();
    }
    assert_eq!(to.end().unwrap().1, example());
}

#[test]
fn a_state_is_never_larger_than_allowed() {
    let mut to = Writer::new(Vec::new(), 1, &[7; KEY_BYTES], 450).unwrap();
    to.engine(&engine(0)).unwrap();
    assert_eq!(to.engine(&engine(1)).unwrap_err().kind(), std::io::ErrorKind::FileTooLarge);
}

/// Hashes of another rule mean nothing: whoever changes it raises the version.
#[test]
fn the_rule_of_the_hashes_is_that_of_the_version() {
    let key = HashKey::new([7; KEY_BYTES]);
    let mut chain = ChainBuilder::new(&key, b"model");
    chain.update(&[b'x'; 600]);
    let of_version_1 =
        [175813288329569442726741194504119088772_u128, 174183305532895643328694984750174783513];
    assert_eq!((VERSION, &chain.finish().blocks[..]), (1, &of_version_1[..]));
}
