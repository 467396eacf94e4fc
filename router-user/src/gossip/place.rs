//! The directory in which the router processes of a host find each other: their sockets, and the key they share.
//!
//! ```text
//! <dir>/          0700, ours      nobody else can reach what is in it, so a datagram is from a process of our user
//! <dir>/key       0600            the secret of the prompt hashes; made by the first process, kept after the last
//! <dir>/0.sock …  0600            one a process; a number whose process is gone is given away again
//! ```
//! Invariant: key and sockets are made and taken away only under the directory's lock.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use router_common::limits::MAX_WORKERS;

use crate::private_dir;

/// Processes that tell each other: as many as count together.
pub(super) const MEMBERS: usize = MAX_WORKERS;

/// Bytes of the secret.
pub const KEY_BYTES: usize = 192;

/// Bytes that may be on the way from one process to all others; the kernel gives as much of it as its limit allows.
const SEND_BUFFER: usize = 4 << 20;

/// Another process is in here for a few milliseconds at most.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// This process's place in the directory. Dropping it removes its socket.
#[derive(Debug)]
pub(super) struct Place {
    dir: PathBuf,
    pub(super) number: usize,
    pub(super) socket: UnixDatagram,
    pub(super) key: Key,
}

/// The secret of the prompt hashes, which all processes of the directory share.
#[derive(Clone)]
pub(super) struct Key(pub(super) [u8; KEY_BYTES]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(secret)")
    }
}

impl Place {
    /// Takes a place. `fresh` is the key if there is none yet.
    ///
    /// # Errors
    /// The directory cannot be made, is not ours alone, or is full; its key is none.
    pub(super) fn take(dir: &Path, fresh: [u8; KEY_BYTES]) -> io::Result<Self> {
        private_dir::ensure(dir)?;
        let _lock = lock(dir)?;
        let key = read_key(dir, fresh)?;
        let (number, socket) = claim(dir)?;
        // A smaller one serves too.
        let _smaller = rustix::net::sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER);
        Ok(Self { dir: dir.to_owned(), number, socket, key })
    }

    /// The socket of a process.
    pub(super) fn path(&self, number: usize) -> PathBuf {
        path(&self.dir, number)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Without the lock another could take the number between the two, and lose its socket. What stays is stale.
        if let Ok(_lock) = lock(&self.dir) {
            let _gone = fs::remove_file(path(&self.dir, self.number));
        }
    }
}

fn path(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("{number}.sock"))
}

/// Held as long as the file is.
fn lock(dir: &Path) -> io::Result<File> {
    let file = File::open(dir)?;
    let end = Instant::now() + LOCK_WAIT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

fn read_key(dir: &Path, fresh: [u8; KEY_BYTES]) -> io::Result<Key> {
    let (path, new) = (dir.join("key"), dir.join("key.new"));
    match File::open(&path) {
        Ok(mut file) => {
            let mut key = [0; KEY_BYTES];
            let is_whole = file.metadata()?.len() == KEY_BYTES as u64;
            file.read_exact(&mut key)?;
            if is_whole { Ok(Key(key)) } else { Err(io::Error::other("its key is none of ours")) }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Whole or not there: a process that dies here leaves no half key.
            let options = &mut OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600).open(&new)?.write_all(&fresh)?;
            fs::rename(&new, &path)?;
            Ok(Key(fresh))
        }
        Err(error) => Err(error),
    }
}

/// The first number that nobody listens at.
fn claim(dir: &Path) -> io::Result<(usize, UnixDatagram)> {
    let probe = UnixDatagram::unbound()?;
    for number in 0..MEMBERS {
        let path = path(dir, number);
        match probe.connect(&path) {
            Ok(()) => continue,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(&path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let socket = UnixDatagram::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        return Ok((number, socket));
    }
    Err(io::Error::other(format!("{MEMBERS} processes are in it already")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn processes_share_the_first_ones_key_and_have_numbers_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("run/gossip");
        let first = Place::take(&dir, [1; KEY_BYTES]).unwrap();
        let second = Place::take(&dir, [2; KEY_BYTES]).unwrap();
        assert_eq!((first.number, second.number), (0, 1));
        assert_eq!((first.key.0, second.key.0), ([1; KEY_BYTES], [1; KEY_BYTES]));
        assert_eq!((mode(&dir), mode(&dir.join("key")), mode(&dir.join("1.sock"))), (0o700, 0o600, 0o600));
        drop(first);
        assert!(!dir.join("0.sock").exists(), "its socket goes with a process");
        assert_eq!(Place::take(&dir, [3; KEY_BYTES]).unwrap().key.0, [1; KEY_BYTES], "the key stays");
        assert!(!format!("{second:?}").contains("1, 1"), "a key is never printed");
    }

    #[test]
    fn the_socket_of_a_dead_process_is_given_away_and_that_of_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("gossip");
        private_dir::ensure(&dir).unwrap();
        drop(UnixDatagram::bind(dir.join("0.sock")).unwrap());
        assert!(dir.join("0.sock").exists(), "a killed process leaves its socket");
        let alive = UnixDatagram::bind(dir.join("1.sock")).unwrap();
        let places: Vec<_> = (1..MEMBERS).map(|_| Place::take(&dir, [1; KEY_BYTES]).unwrap()).collect();
        let numbers: Vec<_> = places.iter().map(|place| place.number).collect();
        assert_eq!((numbers[0], numbers[1]), (0, 2));
        let refused = Place::take(&dir, [1; KEY_BYTES]).unwrap_err().to_string();
        assert!(refused.contains("16 processes"), "{refused}");
        drop(alive);
        assert_eq!(Place::take(&dir, [1; KEY_BYTES]).unwrap().number, 1);
    }

    #[test]
    fn a_directory_that_others_can_reach_is_refused_and_so_is_a_broken_key() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("gossip");
        private_dir::ensure(&dir).unwrap();
        fs::write(dir.join("key"), "short").unwrap();
        assert!(Place::take(&dir, [1; KEY_BYTES]).is_err(), "a short key");
        fs::write(dir.join("key"), [0; KEY_BYTES + 1]).unwrap();
        assert!(Place::take(&dir, [1; KEY_BYTES]).is_err(), "a long key");
        fs::remove_file(dir.join("key")).unwrap();
        for mode in [0o701, 0o770, 0o755] {
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
            assert!(Place::take(&dir, [1; KEY_BYTES]).is_err(), "{mode:o}");
        }
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        assert!(Place::take(&link, [1; KEY_BYTES]).is_err(), "a link may lead elsewhere tomorrow");
        assert!(Place::take(&dir, [1; KEY_BYTES]).is_ok());
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(Place::take(&file.join("gossip"), [1; KEY_BYTES]).is_err());
    }
}
