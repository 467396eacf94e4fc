//! What the last looks saw, bounded.

use std::collections::{HashMap, VecDeque};

use super::super::status::{Backend, Status};

/// Looks kept: a minute at the default interval.
pub(super) const LOOKS: usize = 60;

/// The last looks; a backend that went takes its past along.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) now: Option<Status>,
    /// By URL: requests in flight, oldest first.
    in_flight: HashMap<String, VecDeque<u64>>,
    by_load: bool,
}

impl History {
    pub(super) fn add(&mut self, status: Status) {
        self.in_flight.retain(|url, _| status.backends.iter().any(|b| b.url == *url));
        for backend in &status.backends {
            let past = self.in_flight.entry(backend.url.clone()).or_default();
            if past.len() == LOOKS {
                past.pop_front();
            }
            past.push_back(most(backend));
        }
        self.now = Some(status);
    }

    /// In order of row, or the busiest first.
    pub(super) fn sort(&mut self) {
        self.by_load = !self.by_load;
    }

    pub(super) const fn is_by_load(&self) -> bool {
        self.by_load
    }

    /// The backends of the last look, in the order chosen.
    pub(super) fn backends(&self) -> Vec<&Backend> {
        let mut backends: Vec<&Backend> = self.now.iter().flat_map(|status| &status.backends).collect();
        if self.by_load {
            backends.sort_by_key(|b| (std::cmp::Reverse(most(b)), b.row));
        }
        backends
    }

    /// A backend's requests in flight as bars, the newest last.
    pub(super) fn bars(&self, url: &str, width: usize) -> String {
        const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let Some(past) = self.in_flight.get(url) else { return String::new() };
        let scale = past.iter().copied().max().unwrap_or(0).max(8);
        let bar = |&n: &u64| BARS[(n * 8).div_ceil(scale).min(8) as usize];
        past.iter().skip(past.len().saturating_sub(width)).map(bar).collect()
    }
}

/// Requests in flight as whoever sees most of them counts: the routers, or the kernel, which sees others' too.
fn most(backend: &Backend) -> u64 {
    let kernel = backend.awaiting.unwrap_or(0).saturating_add(backend.streaming.unwrap_or(0));
    kernel.max(backend.in_flight.into())
}

#[cfg(test)]
mod tests {
    use super::super::super::status::example_tests::status;
    use super::{History, LOOKS};

    #[test]
    fn the_past_is_bounded_and_goes_with_its_backend() {
        let mut history = History::default();
        for n in 0..3 * LOOKS as u32 {
            history.add(status(&[n % 17, 4]));
        }
        assert_eq!(history.bars("http://engine-0:8000", 200).chars().count(), LOOKS);
        assert_eq!(history.bars("http://engine-1:8000", 3), "▄▄▄", "half of the least scale");
        history.add(status(&[1]));
        assert_eq!(history.bars("http://engine-1:8000", 9), "");
    }

    #[test]
    fn the_busiest_come_first_when_asked() {
        let mut history = History::default();
        history.add(status(&[1, 7, 3]));
        let rows = |h: &History| h.backends().iter().map(|b| b.row).collect::<Vec<_>>();
        assert_eq!(rows(&history), [0, 1, 2]);
        history.sort();
        assert_eq!(rows(&history), [1, 2, 0]);
    }
}
