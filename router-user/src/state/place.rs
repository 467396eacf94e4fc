//! The directory of state files, and whose file is whose.
//!
//! ```text
//! <dir>/            0700, ours
//! <dir>/0.lock …    0600       locked as long as the process with that number lives
//! <dir>/0.state …   0600       what it saved last; whole or not there
//! <dir>/0.new …     0600       what it is writing
//! ```
//! A process takes the first number that nobody has locked, reads that number's state and writes no other: so two
//! routers never overwrite each other's, and one that comes back finds its own, or that of another router of the same
//! host, which is as good, as states name engines by address.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use router_common::limits::MAX_WORKERS;

use crate::private_dir;

/// A process's number in the directory.
#[derive(Debug)]
pub struct Place {
    dir: PathBuf,
    number: usize,
    _lock: File,
}

impl Place {
    /// Takes the first free number; the directory is made if need be.
    ///
    /// # Errors
    /// The directory cannot be made, is not this user's alone, cannot be written, or all its numbers are taken.
    pub fn take(dir: &Path) -> io::Result<Self> {
        private_dir::ensure(dir)?;
        for number in 0..MAX_WORKERS {
            let options = &mut OpenOptions::new();
            let path = dir.join(format!("{number}.lock"));
            let lock = options.write(true).create(true).truncate(false).mode(0o600).open(path)?;
            match lock.try_lock() {
                Ok(()) => return Ok(Self { dir: dir.to_owned(), number, _lock: lock }),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Err(io::Error::other(format!("{MAX_WORKERS} routers use it already")))
    }

    /// The state of this number.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.dir.join(format!("{}.state", self.number))
    }

    /// Reads it, if it is there and has at most so many bytes.
    ///
    /// # Errors
    /// It cannot be read, or [`io::ErrorKind::FileTooLarge`].
    pub fn read(&self, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let file = match File::open(self.path()) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let len = file.metadata()?.len();
        let mut bytes = Vec::with_capacity(usize::try_from(len.min(bytes_max)).unwrap_or(0));
        // It may grow while it is read, in the hands of whoever may write it.
        file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > bytes_max { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(Some(bytes)) }
    }

    /// Writes a new one beside the old and then puts it in its place, so that there is a whole one at any time. Blocks
    /// until it is on the disk. Returns what `write` does.
    ///
    /// # Errors
    /// What `write`, or the disk, has against it; the old one is still there.
    pub fn write<T>(&self, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<T>) -> io::Result<T> {
        let new = self.dir.join(format!("{}.new", self.number));
        let written = self.write_new(&new, write);
        if written.is_err() {
            // A full disk needs the room; if it cannot be taken away, the next one is written over it.
            let _still_there = fs::remove_file(&new);
        }
        written
    }

    fn write_new<T>(
        &self,
        new: &Path,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<T>,
    ) -> io::Result<T> {
        let options = &mut OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(new)?;
        let mut out = BufWriter::with_capacity(1 << 16, file);
        let value = write(&mut out)?;
        out.flush()?;
        out.get_ref().sync_all()?;
        fs::rename(new, self.path())?;
        File::open(&self.dir)?.sync_all()?;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{self, Write};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::{MAX_WORKERS, Place};

    fn write(place: &Place, text: &str) -> io::Result<()> {
        place.write(|out| out.write_all(text.as_bytes()))
    }

    #[test]
    fn each_process_has_a_file_of_its_own_and_finds_it_again() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("lib/unlatch");
        let [first, second] = [(); 2].map(|()| Place::take(&dir).unwrap());
        assert_eq!(first.read(100).unwrap(), None);
        write(&first, "first").unwrap();
        write(&second, "second").unwrap();
        assert_eq!(first.read(100).unwrap().unwrap(), b"first");
        assert_eq!(first.read(4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        drop(first);
        assert_eq!(Place::take(&dir).unwrap().read(5).unwrap().unwrap(), b"first");
        let mode = |path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(dir.clone()), mode(second.path())), (0o700, 0o600));
        let _all: Vec<_> = (1..MAX_WORKERS).map(|_| Place::take(&dir).unwrap()).collect();
        let refused = Place::take(&dir).unwrap_err().to_string();
        assert!(refused.contains("16 routers"), "{refused}");
    }

    #[test]
    fn what_cannot_be_written_leaves_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("state");
        let place = Place::take(&dir).unwrap();
        write(&place, "old").unwrap();
        let full = place.write(|out| {
            out.write_all(b"half of the new")?;
            Err::<(), _>(io::ErrorKind::StorageFull.into())
        });
        assert_eq!(full.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(place.read(100).unwrap().unwrap(), b"old");
        assert!(!dir.join("0.new").exists(), "a full disk needs the room");
    }

    #[test]
    fn a_directory_that_others_can_reach_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o750)).unwrap();
        assert!(Place::take(folder.path()).unwrap_err().to_string().contains("0700"));
        assert!(Place::take(&folder.path().join("no/../file")).is_err() || folder.path().join("no").exists());
    }
}
