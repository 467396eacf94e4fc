//! What commands say on standard output and standard error: one that is full or closed is never a panic.

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::Context;

/// Prints a command's answer. A reader that closed the pipe has seen enough.
///
/// # Errors
/// It cannot be written, as on a full disk.
pub(super) fn answer(text: &str) -> anyhow::Result<()> {
    goes_on(text).map(|_| ())
}

/// The same; whether the reader wants more.
///
/// # Errors
/// It cannot be written, as on a full disk.
pub(super) fn goes_on(text: &str) -> anyhow::Result<bool> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("cannot write to standard output"),
    }
}

/// Says a line for people; nothing is left to do if nobody can read it.
pub(super) fn tell(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
