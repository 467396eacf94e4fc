//! What was read and waits for its engine to be there: engines may be discovered long after the start.

use std::net::SocketAddr;
use std::time::Duration;

use parking_lot::Mutex;

use super::format::{Saved, State};
use super::now;

/// Engines that were saved and are not there yet. At most as many as a state has.
#[derive(Debug)]
pub struct Warm {
    waiting: Mutex<Vec<Saved>>,
    max_age: u64,
}

impl Warm {
    /// Of a state, or none. What is older than `max_age` is dropped, now and later.
    #[must_use]
    pub fn new(state: Option<State>, max_age: Duration) -> Self {
        let waiting = Mutex::new(state.map_or_else(Vec::new, |state| state.engines));
        Self { waiting, max_age: max_age.as_millis() as u64 }
    }

    /// The engine at this address as it was saved, once; `None` if it was not, or too long ago.
    #[must_use]
    pub fn take(&self, addr: SocketAddr) -> Option<Saved> {
        let addr = SocketAddr::new(addr.ip().to_canonical(), addr.port());
        let mut waiting = self.waiting.lock();
        self.drop_old(&mut waiting);
        let at = waiting.iter().position(|saved| saved.engine.addr == addr)?;
        Some(waiting.swap_remove(at))
    }

    /// All that still wait. The bytes are shared, not copied.
    #[must_use]
    pub fn waiting(&self) -> Vec<Saved> {
        let mut waiting = self.waiting.lock();
        self.drop_old(&mut waiting);
        waiting.clone()
    }

    fn drop_old(&self, waiting: &mut Vec<Saved>) {
        let now = now();
        // A clock that was set back says as little of the time between as one that went on for long.
        waiting.retain(|saved| now.abs_diff(saved.engine.seen_at) <= self.max_age);
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use router_policy::Taught;

    use super::super::format::{Engine, KEY_BYTES, State};
    use super::super::{Writer, read};
    use super::{Warm, now};

    const HOUR: Duration = Duration::from_secs(3600);

    fn state(engines: &[(&str, u64)]) -> State {
        let mut to = Writer::new(Vec::new(), 1, &[7; KEY_BYTES], 1 << 20).unwrap();
        for (addr, seen_at) in engines {
            let (addr, url) = (addr.parse().unwrap(), format!("http://{addr}"));
            let engine =
                Engine { addr, url, seen_at: *seen_at, process_start: None, taught: Taught::default() };
            to.engine(&engine).unwrap();
            to.whole(0).unwrap();
        }
        read(to.end().unwrap().1).unwrap()
    }

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_engine_is_taken_once_and_by_its_address() {
        let warm = Warm::new(Some(state(&[("10.0.0.1:1", now()), ("10.0.0.2:1", now())])), HOUR);
        assert!(warm.take(addr("10.0.0.3:1")).is_none());
        assert_eq!(warm.take(addr("[::ffff:10.0.0.1]:1")).unwrap().engine.url, "http://10.0.0.1:1");
        assert!(warm.take(addr("10.0.0.1:1")).is_none());
        assert_eq!(warm.waiting().len(), 1);
    }

    #[test]
    fn what_is_too_old_or_of_another_time_is_dropped() {
        let (old, early) = (now() - 3_700_000, now() + 3_700_000);
        let warm = Warm::new(Some(state(&[("10.0.0.1:1", old), ("10.0.0.2:1", early)])), HOUR);
        assert!(warm.take(addr("10.0.0.1:1")).is_none() && warm.take(addr("10.0.0.2:1")).is_none());
        assert!(warm.waiting().is_empty());
        assert!(Warm::new(None, HOUR).waiting().is_empty());
    }
}
