//! Directories of one user alone: what lies in them, nobody else can reach or change.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

/// Makes it if need be.
///
/// # Errors
/// It cannot be made, or is not this user's alone (owner, mode 0700, no link).
pub(crate) fn ensure(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let found = fs::symlink_metadata(dir)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o077 != 0 {
        return Err(io::Error::other("the directory is not this user's alone (owner, mode 0700)"));
    }
    Ok(())
}
