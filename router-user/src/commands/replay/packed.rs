//! Files that are plain or packed with zstd: known by their first bytes, not by their name. Read as a stream, so of
//! any size.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use zstd::stream::read::Decoder;

/// First bytes of zstd.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Bytes read at a time.
const CHUNK_BYTES: usize = 1 << 16;

/// The content of a file, unpacked.
///
/// # Errors
/// It cannot be opened or begun.
pub(super) fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let mut file = BufReader::with_capacity(CHUNK_BYTES, File::open(path)?);
    if file.fill_buf()?.starts_with(&ZSTD_MAGIC) {
        return Ok(Box::new(BufReader::with_capacity(CHUNK_BYTES, Decoder::with_buffer(file)?)));
    }
    Ok(Box::new(file))
}
