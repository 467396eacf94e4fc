//! Saves from time to time, in a thread of its own, and a last time when it ends.

use std::fs::File;
use std::io::{self, BufWriter};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::format::{ENGINES_MAX, Engine};
use super::metrics::{Failure, Metrics};
use super::pieces::Pieces;
use super::place::Place;
use super::warm::Warm;
use super::write::Writer;
use super::{Source, now};
use router_policy::BackendId;

/// Pieces copied in one go, while picks wait; some tens of microseconds.
const SLICE: usize = 64;
/// After each, so that a pick that comes at any time rarely has to wait at all.
const PAUSE: Duration = Duration::from_micros(500);
/// Pieces written in one go.
const CHUNK: usize = 32 * SLICE;

/// What a saver needs.
pub struct Saving {
    /// Where.
    pub place: Place,
    /// What.
    pub source: Box<dyn Source>,
    /// What waits for its engine, and is saved as it is.
    pub warm: Arc<Warm>,
    /// How often; `None` = at the end only.
    pub interval: Option<Duration>,
    /// Bytes of a state at most.
    pub bytes_max: u64,
    /// What is counted.
    pub metrics: Metrics,
}

impl std::fmt::Debug for Saving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Saving").field("place", &self.place).finish_non_exhaustive()
    }
}

/// The thread. Dropping it saves a last time and waits for that.
#[derive(Debug)]
pub struct Saver {
    // Closed to end the thread.
    end: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Saver {
    /// Starts it.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start(saving: Saving) -> io::Result<Self> {
        let (end, ending) = sync_channel(0);
        let body = move || run(&saving, &ending);
        let thread = std::thread::Builder::new().name("unlatch-save".to_owned()).spawn(body)?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        drop(self.end.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that saves the state panicked");
        }
    }
}

fn run(saving: &Saving, ending: &Receiver<()>) {
    let mut said = None;
    loop {
        let is_last = match saving.interval {
            // Nothing is ever sent: the channel closes or time is up.
            Some(interval) => ending.recv_timeout(interval) != Err(RecvTimeoutError::Timeout),
            None => ending.recv().is_err(),
        };
        let began = Instant::now();
        match saving.save(!is_last) {
            Ok(bytes) => {
                saving.metrics.saves.inc();
                saving.metrics.bytes.set(bytes as i64);
                saving.metrics.save_seconds.set(began.elapsed().as_secs_f64());
                if said.take().is_some() {
                    tracing::info!("the state is saved again");
                }
            }
            Err(error) => {
                let why = Failure::of(&error);
                saving.metrics.failed(why);
                // Once, however often it fails so.
                if said.replace(why) != Some(why) {
                    let path = saving.place.path();
                    tracing::warn!(path = %path.display(), %error, "the state cannot be saved; the router serves on");
                }
            }
        }
        if is_last {
            return;
        }
    }
}

impl Saving {
    /// Saves; `picks` says whether there may be any meanwhile. Returns the bytes.
    fn save(&self, picks: bool) -> io::Result<u64> {
        let (now, mut pieces) = (now(), Pieces::with_room(CHUNK));
        self.place.write(|out| {
            let mut to = Writer::new(out, now, self.source.key().reveal(), self.bytes_max)?;
            let engines = self.source.engines();
            let waiting = self.warm.waiting();
            for saved in waiting.iter().take(ENGINES_MAX.saturating_sub(engines.len())) {
                saved.write(&mut to)?;
            }
            for (id, engine) in &engines {
                self.save_engine(&mut to, *id, engine, &mut pieces, picks)?;
            }
            to.end().map(|(bytes, _)| bytes)
        })
    }

    fn save_engine(
        &self,
        to: &mut Writer<&mut BufWriter<File>>,
        id: BackendId,
        engine: &Engine,
        pieces: &mut Pieces,
        picks: bool,
    ) -> io::Result<()> {
        to.engine(engine)?;
        let copying = self.source.begin_copy(id);
        let mut count = 0;
        loop {
            let more = self.source.copy(&copying, SLICE, pieces);
            if more != Some(true) || pieces.len() + SLICE > CHUNK {
                to.pieces(pieces)?;
                count += pieces.clear();
            }
            match more {
                Some(true) if picks => std::thread::sleep(PAUSE),
                Some(true) => {}
                Some(false) => return to.whole(count),
                // It lost all it held: without a last word what was written is void.
                None => return Ok(()),
            }
        }
    }
}
