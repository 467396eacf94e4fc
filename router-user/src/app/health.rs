//! The engines' vitals, looked at by the control thread: a few times a second who answers, who waits and what time has
//! changed; [`GLANCES`] times as often whether the kernel saw connections break, which is how an engine is missed that was killed
//! while nobody waited for it.

use std::sync::Arc;
use std::time::Duration;

use router_common::limits::MAX_BACKENDS;
use router_policy::Nanos;

use crate::account::suspect::{Sign, Suspicion};
use crate::account::{Account, Ledger};
use crate::backends::{Registry, Target};
use crate::clock;

/// From beat to beat.
const BEAT: Duration = Duration::from_millis(100);

/// Looks at what the kernel counts, two reads an engine, to a beat.
const GLANCES: u32 = 5;

/// Looks for ever; without the kernel only as often as hearts are to beat.
pub(super) async fn look_after(ledger: Arc<Ledger>, registry: Arc<Registry>, account: Account) {
    let per_beat = if account.state().is_on() { GLANCES } else { 1 };
    let mut ticks = tokio::time::interval(BEAT / per_beat);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut seen = vec![[0; 2]; MAX_BACKENDS];
    for tick in 1_u64.. {
        ticks.tick().await;
        let targets = registry.all();
        if account.state().is_on() {
            glance(&targets, &account, &mut seen);
        }
        if tick.is_multiple_of(per_beat.into()) {
            beat(&targets, &ledger, &account);
        }
    }
}

/// Has those asked at once that broke a connection, or have none left.
fn glance(targets: &[Arc<Target>], account: &Account, seen: &mut [[u64; 2]]) {
    for target in targets {
        let now = account.resets_and_conns(target.id);
        let [resets_before, conns_before] = std::mem::replace(&mut seen[target.id.index()], now);
        if now[0] > resets_before || (now[1] == 0 && conns_before > 0) {
            target.vitals.look();
        }
    }
}

fn beat(targets: &[Arc<Target>], ledger: &Ledger, account: &Account) {
    let now = clock::now();
    // Nobody waits too long before that, whatever is expected.
    let least = |target: &Target| Duration::from_secs_f64(target.vitals.rules().hung_seconds);
    let until = targets.iter().map(|target| least(target)).min().unwrap_or_default();
    let until = Nanos(now.0.saturating_sub(u64::try_from(until.as_nanos()).unwrap_or(u64::MAX)));
    let asked: Vec<_> = targets.iter().map(|target| (target.id, target.vitals.counts_from())).collect();
    for (target, oldest) in targets.iter().zip(ledger.waits(&asked, until)) {
        let tell = |trust| ledger.trust(target.id, trust);
        target.vitals.beat(now, oldest, &tell);
        if is_unreachable(target, account, now) {
            target.vitals.unreachable(now, &tell);
        }
    }
}

/// Whether the kernel says that the engine's host acknowledges nothing, or takes nothing more.
fn is_unreachable(target: &Target, account: &Account, now: Nanos) -> bool {
    let row = account.kernel_row(target.id).filter(|row| row.load.conns > 0);
    let lately = Duration::from_secs(5);
    let sign = row.and_then(|row| Suspicion::of(&row, Nanos(0), now, lately)).map(|told| told.sign);
    matches!(sign, Some(Sign::Unreachable | Sign::NotReading))
}
