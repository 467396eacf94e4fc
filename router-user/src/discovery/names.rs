//! What is known of each name, and when it is asked for again. Pure: time and answers come in.
//!
//! Invariant: the last good answer stays until there is another; no failure takes it away.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use router_common::limits::MAX_BACKENDS;
use tokio::time::Instant;

use super::dns::{Answer, Failure, Found, Query};
use crate::config::{BackendConfig, DnsConfig, Lookup};

/// Names at most; beyond, those named last are not asked for.
pub(super) const NAMES_MAX: usize = 1024;

/// The longest back-off: an engine that comes up is found within this time.
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// When a name is asked for again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    min: Duration,
    max: Duration,
}

impl From<&DnsConfig> for Pace {
    fn from(dns: &DnsConfig) -> Self {
        Self { min: dns.ttl_min, max: dns.ttl_max }
    }
}

impl Pace {
    fn after_answer(self, ttl: Duration) -> Duration {
        ttl.clamp(self.min, self.max)
    }

    /// After so many failures in a row, at least one.
    fn after_failure(self, failures: u32) -> Duration {
        let doubled = self.min.saturating_mul(1 << (failures - 1).min(16));
        doubled.min(self.max).min(BACKOFF_MAX.max(self.min))
    }
}

/// What is known of one name.
#[derive(Clone, Debug)]
pub(super) struct Name {
    /// The last good answer.
    pub(super) found: Option<Found>,
    /// When it is asked for; `None` while it is.
    due: Option<Instant>,
    /// Failures since the last good answer.
    failures: u32,
    /// Why the last question failed, if it did.
    failure: Option<Failure>,
}

/// What an answer changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// Whether it is another than the one before.
    pub(super) is_another: bool,
    /// Whether the question before failed.
    pub(super) is_recovered: bool,
    /// Addresses or records beyond what there may be.
    pub(super) cut: usize,
}

impl Name {
    const fn new(now: Instant) -> Self {
        Self { found: None, due: Some(now), failures: 0, failure: None }
    }

    /// Whether it was answered or failed once.
    pub(super) const fn is_settled(&self) -> bool {
        self.found.is_some() || self.failures > 0
    }

    /// Addresses or records that are known.
    pub(super) fn size(&self) -> usize {
        match &self.found {
            None => 0,
            Some(Found::Addresses(all)) => all.len(),
            Some(Found::Services(all)) => all.len(),
        }
    }

    pub(super) fn answered(&mut self, answer: Answer, pace: Pace, now: Instant) -> Change {
        let Answer { mut found, ttl } = answer;
        let cut = match &mut found {
            Found::Addresses(all) => bounded(all),
            Found::Services(all) => bounded(all),
        };
        let is_another = self.found.as_ref() != Some(&found);
        self.found = Some(found);
        self.failures = 0;
        self.due = Some(now + pace.after_answer(ttl));
        Change { is_another, is_recovered: self.failure.take().is_some(), cut }
    }

    /// Whether that is news.
    pub(super) fn failed(&mut self, failure: Failure, pace: Pace, now: Instant) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.due = Some(now + pace.after_failure(self.failures));
        self.failure.replace(failure.clone()) != Some(failure)
    }
}

/// The list in one order, without repetition, of a bounded length; how many went.
fn bounded<T: Ord>(all: &mut Vec<T>) -> usize {
    all.sort_unstable();
    all.dedup();
    let cut = all.len().saturating_sub(MAX_BACKENDS);
    all.truncate(MAX_BACKENDS);
    cut
}

/// All names that lists of backends need.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(BTreeMap<Query, Name>);

impl Names {
    pub(super) fn get(&self, query: &Query) -> Option<&Name> {
        self.0.get(query)
    }

    pub(super) fn get_mut(&mut self, query: &Query) -> Option<&mut Name> {
        self.0.get_mut(query)
    }

    /// Keeps what lists need and the services name, forgets the rest, and asks for what is new at once. Returns what is
    /// no longer kept.
    pub(super) fn keep<'a>(
        &mut self,
        entries: impl Iterator<Item = &'a BackendConfig>,
        now: Instant,
    ) -> Vec<Query> {
        let mut needed: BTreeSet<Query> = BTreeSet::new();
        let named = entries.filter_map(query_of).flat_map(|query| {
            let behind = self.targets(&query).collect::<Vec<_>>();
            std::iter::once(query).chain(behind)
        });
        for query in named {
            if needed.len() == NAMES_MAX {
                break;
            }
            needed.insert(query);
        }
        let gone = self.0.keys().filter(|query| !needed.contains(query)).cloned().collect();
        self.0.retain(|query, _| needed.contains(query));
        for query in needed {
            self.0.entry(query).or_insert_with(|| Name::new(now));
        }
        gone
    }

    fn targets(&self, query: &Query) -> impl Iterator<Item = Query> {
        let services = match self.0.get(query).and_then(|name| name.found.as_ref()) {
            Some(Found::Services(all)) => &all[..],
            _ => &[],
        };
        services.iter().map(|service| address_of(&service.host))
    }

    /// Whether everything that an entry needs was answered or failed once.
    pub(super) fn is_settled(&self, entry: &BackendConfig) -> bool {
        let is_settled = |query: &Query| self.0.get(query).is_none_or(Name::is_settled);
        query_of(entry)
            .is_none_or(|query| is_settled(&query) && self.targets(&query).all(|query| is_settled(&query)))
    }

    /// At most so many of the names that are to be asked for now; they count as asked.
    pub(super) fn take_due(&mut self, now: Instant, most: usize) -> Vec<Query> {
        let due = self.0.iter_mut().filter(|(_, name)| name.due.is_some_and(|due| due <= now)).take(most);
        due.map(|(query, name)| {
            name.due = None;
            query.clone()
        })
        .collect()
    }

    /// When the next name is to be asked for.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.0.values().filter_map(|name| name.due).min()
    }
}

/// What an entry asks for, if its host is no address.
pub(super) fn query_of(entry: &BackendConfig) -> Option<Query> {
    match entry.host.parse::<IpAddr>() {
        Ok(_) => None,
        Err(_) => Some(Query::new(entry.lookup, &entry.host)),
    }
}

/// The addresses of a host that a service names: the name is complete.
pub(super) fn address_of(host: &str) -> Query {
    Query::new(Lookup::Address, &format!("{host}."))
}

#[cfg(test)]
mod tests {
    use super::{Name, Names, Pace};
    use crate::config::{BackendConfig, backend};
    use crate::discovery::dns::{Answer, Failure, Found, Query, Service};
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;
    use tokio::time::Instant;

    const SECOND: Duration = Duration::from_secs(1);
    const PACE: Pace = Pace { min: SECOND, max: Duration::from_secs(60) };

    fn entry(url: &str) -> BackendConfig {
        backend::parse(url, &|_| Ok(String::new())).unwrap()
    }

    fn addresses(last: impl IntoIterator<Item = u8>, ttl: u64) -> Answer {
        let ips = last.into_iter().map(|n| IpAddr::V4(Ipv4Addr::new(10, 0, 0, n))).collect();
        Answer { found: Found::Addresses(ips), ttl: Duration::from_secs(ttl) }
    }

    #[test]
    fn a_name_is_asked_for_when_its_ttl_ends_within_bounds() {
        for (ttl, seconds) in [(0, 1), (5, 5), (60, 60), (86_400, 60)] {
            let (mut name, now) = (Name::new(Instant::now()), Instant::now());
            let change = name.answered(addresses([1], ttl), PACE, now);
            assert!(change.is_another && !change.is_recovered);
            assert_eq!(name.due, Some(now + SECOND * seconds), "{ttl}");
        }
    }

    #[test]
    fn failures_keep_the_answer_and_back_off() {
        let now = Instant::now();
        let mut name = Name::new(now);
        name.answered(addresses([1, 2], 5), PACE, now);
        let kept = name.found.clone();
        let mut news = Vec::new();
        for (failure, seconds) in [
            (Failure::NoName, 1),
            (Failure::NoName, 2),
            (Failure::Timeout, 4),
            (Failure::Timeout, 8),
            (Failure::Timeout, 10),
            (Failure::NoName, 10),
        ] {
            news.push(name.failed(failure, PACE, now));
            assert_eq!(name.due, Some(now + SECOND * seconds));
            assert_eq!(name.found, kept, "a failure takes nothing away");
        }
        assert_eq!(news, [true, false, true, false, false, true], "what is said once is not said again");
        let change = name.answered(addresses([2, 1], 5), PACE, now);
        assert!(!change.is_another && change.is_recovered, "the order is nothing");
        assert!(name.failed(Failure::NoName, PACE, now));
        assert_eq!(name.due, Some(now + SECOND), "the back-off begins anew");
    }

    #[test]
    fn the_least_pace_bounds_the_back_off() {
        let (slow, fast) =
            (Pace { min: SECOND * 30, max: SECOND * 60 }, Pace { min: SECOND, max: SECOND * 3 });
        assert_eq!(slow.after_failure(1), SECOND * 30);
        assert_eq!(slow.after_failure(9), SECOND * 30);
        assert_eq!(fast.after_failure(u32::MAX), SECOND * 3);
    }

    #[test]
    fn what_is_too_much_is_cut_and_told() {
        let all = (0..300_u16).map(|n| IpAddr::V4(Ipv4Addr::new(10, 0, (n >> 8) as u8, n as u8)));
        let answer = Answer { found: Found::Addresses(all.collect()), ttl: SECOND };
        let mut name = Name::new(Instant::now());
        assert_eq!(name.answered(answer, PACE, Instant::now()).cut, 44);
        assert_eq!(name.size(), 256);
    }

    #[test]
    fn names_are_kept_while_a_list_or_a_service_needs_them() {
        let now = Instant::now();
        let entries =
            [entry("http://10.0.0.1:1"), entry("http://a:1"), entry("srv+http://S"), entry("http://a:2")];
        let mut names = Names::default();
        assert!(names.keep(entries.iter(), now).is_empty());
        assert!(names.is_settled(&entries[0]) && !names.is_settled(&entries[1]));
        let shown = |queries: &[Query]| queries.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(shown(&names.take_due(now, 1)), ["dns:a"]);
        let asked = names.take_due(now, 9);
        assert_eq!(shown(&asked), ["srv:s"]);
        assert_eq!(names.next_due(), None, "both are asked for");

        let service = Service { host: "h".to_owned(), port: 1, weight: 0 };
        let answer = Answer { found: Found::Services(vec![service]), ttl: SECOND };
        names.get_mut(&asked[0]).unwrap().answered(answer, PACE, now);
        assert!(names.keep(entries.iter(), now).is_empty());
        assert!(!names.is_settled(&entries[2]), "its host is not yet known");
        let asked = names.take_due(now, 9);
        assert_eq!(shown(&asked), ["dns:h."]);
        names.get_mut(&asked[0]).unwrap().failed(Failure::NoName, PACE, now);
        assert!(names.is_settled(&entries[2]), "not to be found is settled, too");
        assert_eq!(shown(&names.keep(entries[..2].iter(), now)), ["dns:h.", "srv:s"]);
    }
}
