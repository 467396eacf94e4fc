//! What is saved over restarts.

#[path = "../../../src/state/format.rs"]
pub mod format;
#[path = "../../../src/state/pieces.rs"]
pub mod pieces;
#[path = "../../../src/state/read.rs"]
pub mod read;
#[path = "../../../src/state/write.rs"]
pub mod write;

/// A file of these chunks behind the first, with the checks that they ought to have.
pub fn checked(chunks: &[(u32, &[u8])]) -> Vec<u8> {
    let empty = write::Writer::new(Vec::new(), 7, &[7; format::KEY_BYTES], u64::MAX);
    let (_, mut file) = empty.and_then(write::Writer::end).expect("a vector takes everything");
    // The end comes last.
    file.truncate(file.len() - format::CHUNK);
    for (at, (kind, payload)) in chunks.iter().chain([&(format::kind::END, &[][..])]).enumerate() {
        let mut head = kind.to_le_bytes().to_vec();
        head.extend((payload.len() as u32).to_le_bytes());
        file.extend(&head);
        file.extend(format::check(&head, payload, at as u64 + 2).to_le_bytes());
        file.extend(*payload);
    }
    file
}
