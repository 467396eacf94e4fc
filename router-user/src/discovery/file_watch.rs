//! Tells when the content of a file changed.
//!
//! It looks at the file four times a second, by its path: device, inode, size and times of what the path leads to. That
//! sees a file that was written in place or renamed over, and the swap of a symlink anywhere on the way, as Kubernetes
//! mounts a ConfigMap; on network and overlay file systems, too. inotify watches inodes: it would have to follow every
//! directory and link of the path, and hears nothing of a change on another host. A look costs a few microseconds.
//!
//! What changed is read once it kept still from one look to the next, so that a file is rarely seen half written; and
//! it is told only if its content is another. Invariant: nothing here blocks the runtime's thread.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio::task::spawn_blocking;
use xxhash_rust::xxh3::xxh3_128;

use crate::config::read_text;

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A file that was written within this time may be written again without its times showing that.
const CLOCK_STEP: Duration = Duration::from_secs(2);

/// What a file looks like from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl From<Metadata> for Look {
    fn from(m: Metadata) -> Self {
        Self {
            device: m.dev(),
            inode: m.ino(),
            size: m.size(),
            modified: (m.mtime(), m.mtime_nsec()),
            changed: (m.ctime(), m.ctime_nsec()),
        }
    }
}

impl Look {
    /// Whether a later write would show.
    fn is_old(&self) -> bool {
        let seconds = |t: i64| Duration::from_secs(u64::try_from(t).unwrap_or(0));
        let last = SystemTime::UNIX_EPOCH + seconds(self.modified.0.max(self.changed.0));
        last.elapsed().is_ok_and(|age| age > CLOCK_STEP)
    }
}

/// A look, or why there was none; both can be told from the one before.
type Seen = Result<Look, io::ErrorKind>;

/// One file that is watched.
#[derive(Debug)]
pub struct FileWatch {
    path: PathBuf,
    bytes_max: u64,
    /// The look before.
    seen: Option<Seen>,
    /// The look at which it was read, if a change since would show.
    read_at: Option<Seen>,
    /// Hash of what was told last, text or error.
    told: Option<u128>,
}

impl FileWatch {
    /// A file of at most so many bytes, of which nothing was told yet: the first [`Self::changed`] tells its content at once.
    #[must_use]
    pub const fn new(path: PathBuf, bytes_max: u64) -> Self {
        Self { path, bytes_max, seen: None, read_at: None, told: None }
    }

    /// The same file, its content taken as told.
    #[must_use]
    pub fn knowing(mut self, text: &str) -> Self {
        self.told = Some(hash(Ok(text)));
        self
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until the content is another than the one told last, and tells it. What is dropped while it waits loses
    /// nothing.
    ///
    /// # Errors
    /// The file cannot be read (any more), is too large or no text: once, until that changes.
    pub async fn changed(&mut self) -> io::Result<String> {
        loop {
            if self.seen.is_some() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            let path = self.path.clone();
            let seen = blocking(move || std::fs::metadata(path)).await.map(Look::from).map_err(|e| e.kind());
            let is_still = self.seen.replace(seen).is_none_or(|before| before == seen);
            if is_still && self.read_at != Some(seen) {
                let (path, max) = (self.path.clone(), self.bytes_max);
                let text = blocking(move || read_regular(&path, max)).await;
                self.read_at = Some(seen).filter(|seen| seen.as_ref().map_or(true, Look::is_old));
                let hash = hash(text.as_deref());
                if self.told.replace(hash) != Some(hash) {
                    return text;
                }
            }
        }
    }
}

async fn blocking<T: Send + 'static>(call: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    // It ends without a value only when the runtime ends.
    spawn_blocking(call).await.unwrap_or_else(|e| Err(io::Error::other(e)))
}

/// Opening a pipe would wait for its writer.
fn read_regular(path: &Path, max: u64) -> io::Result<String> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file"));
    }
    read_text(path, max)
}

fn hash(text: Result<&str, &io::Error>) -> u128 {
    match text {
        Ok(text) => xxh3_128(text.as_bytes()),
        // No text hashes to this but by chance.
        Err(e) => !xxh3_128(e.to_string().as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::FileWatch;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::time::Duration;
    use tokio::time::timeout;

    fn watch(path: &Path) -> FileWatch {
        FileWatch::new(path.to_owned(), 64)
    }

    /// What is told; paused time is over as soon as nothing else is to be done.
    async fn told(watch: &mut FileWatch) -> String {
        match timeout(Duration::from_secs(60), watch.changed()).await.expect("a change must be told") {
            Ok(text) => text,
            Err(e) => format!("error: {e}"),
        }
    }

    async fn nothing_is_told(watch: &mut FileWatch) -> bool {
        timeout(Duration::from_secs(60), watch.changed()).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn every_way_to_change_a_file_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "1").unwrap();
        let mut watch = watch(&path);
        assert_eq!(told(&mut watch).await, "1");
        assert!(nothing_is_told(&mut watch).await);

        fs::write(&path, "2").unwrap();
        assert_eq!(told(&mut watch).await, "2", "written in place, the same size");
        let other = dir.path().join("g");
        fs::write(&other, "3").unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(told(&mut watch).await, "3", "renamed over");
        fs::write(&path, "3").unwrap();
        assert!(nothing_is_told(&mut watch).await, "the same content is no change");
        fs::remove_file(&path).unwrap();
        assert!(told(&mut watch).await.starts_with("error: "), "gone");
        assert!(nothing_is_told(&mut watch).await, "an error is told once");
        fs::write(&path, "3").unwrap();
        assert_eq!(told(&mut watch).await, "3", "there again");
        fs::write(&path, "x".repeat(65)).unwrap();
        assert!(told(&mut watch).await.starts_with("error: larger"), "too large");
        fs::write(&path, [0xff]).unwrap();
        assert!(told(&mut watch).await.starts_with("error: "), "no text");
    }

    #[tokio::test(start_paused = true)]
    async fn a_config_map_is_swapped_by_its_link() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (version, text) in [("..1", "one"), ("..2", "two")] {
            fs::create_dir(at(version)).unwrap();
            fs::write(at(version).join("f"), text).unwrap();
        }
        symlink("..1", at("..data")).unwrap();
        symlink("..data/f", at("f")).unwrap();
        let mut watch = watch(&at("f"));
        assert_eq!(told(&mut watch).await, "one");
        symlink("..2", at("..tmp")).unwrap();
        fs::rename(at("..tmp"), at("..data")).unwrap();
        fs::remove_dir_all(at("..1")).unwrap();
        assert_eq!(told(&mut watch).await, "two");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_known_is_not_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "1").unwrap();
        let mut watch = watch(&path).knowing("1");
        assert!(nothing_is_told(&mut watch).await);
        fs::write(&path, "2").unwrap();
        assert_eq!(told(&mut watch).await, "2");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pipe_is_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(told(&mut watch(&path)).await, "error: it is no file");
    }
}
