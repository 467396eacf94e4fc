//! The model, its clock, and the responses that wait for it.
//!
//! Whoever looks at the model brings it up to date first, so what is seen never depends on how late the driver
//! task wakes (its timer counts whole milliseconds). The schedule is the model's, in virtual time.
//! Invariants: `live` holds exactly the requests that the model will send events of; the lock is never held over
//! an await; seats and blocks are free before a response learns of its last token.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::clock::Clock;
use super::progress::Progress;
use crate::model::{
    ConfigError, Engine, EngineConfig, Event, EventKind, Prompt, Request, RequestId, Stats, SubmitError,
};

/// One model running in time.
#[derive(Debug)]
pub(super) struct Runner {
    state: Mutex<State>,
    /// There may be an earlier event than the driver sleeps for, or another time for it.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    /// Stands still while the engine sleeps.
    clock: Clock,
    engine: Engine,
    sleep_level: Option<u8>,
    /// Bounded by the seats and the queue of the model.
    live: HashMap<RequestId, Arc<Progress>>,
    last_id: u64,
    /// Kept for its capacity; empty between calls.
    events: Vec<Event>,
}

impl Runner {
    pub(super) fn new(config: EngineConfig, time_scale: f64) -> Result<Self, ConfigError> {
        let state = State {
            clock: Clock::start(time_scale),
            engine: Engine::new(config)?,
            sleep_level: None,
            live: HashMap::new(),
            last_id: 0,
            events: Vec::new(),
        };
        Ok(Self { state: Mutex::new(state), changed: Notify::new() })
    }

    /// Queues a generation. Dropping what is returned takes it back, whatever its state.
    pub(super) fn submit(
        self: &Arc<Self>,
        prompt: Prompt,
        max_tokens: u32,
    ) -> Result<Generation, SubmitError> {
        let prompt_tokens = prompt.tokens();
        let progress = Arc::new(Progress::default());
        let id = {
            let mut state = self.state.lock();
            state.advance();
            let now = state.clock.now();
            state.last_id += 1;
            let id = RequestId(state.last_id);
            state.engine.submit(now, Request { id, prompt, max_tokens })?;
            state.live.insert(id, Arc::clone(&progress));
            id
        };
        self.changed.notify_one();
        Ok(Generation { runner: Arc::clone(self), progress, id, prompt_tokens, max_tokens })
    }

    /// What the model tells of this moment.
    pub(super) fn stats(&self) -> Stats {
        let mut state = self.state.lock();
        state.advance();
        state.engine.stats()
    }

    pub(super) fn reset_peaks(&self) {
        let mut state = self.state.lock();
        state.advance();
        state.engine.reset_peaks();
    }

    pub(super) fn config(&self) -> EngineConfig {
        *self.state.lock().engine.config()
    }

    /// Stands still until [`Self::wake`], and forgets the cache. What runs goes on then; what comes waits till then.
    pub(super) fn sleep(&self, level: u8) {
        let mut state = self.state.lock();
        state.advance();
        state.clock.halt();
        state.engine.forget_cache();
        state.sleep_level = Some(level);
    }

    pub(super) fn wake(&self) {
        let mut state = self.state.lock();
        state.sleep_level = None;
        state.clock.go_on();
        drop(state);
        self.changed.notify_one();
    }

    /// 1 or 2 while asleep.
    pub(super) fn sleep_level(&self) -> Option<u8> {
        self.state.lock().sleep_level
    }

    /// Runs so many times slower for so long in real time, from now on; at full speed without.
    pub(super) fn set_slow(&self, slow: Option<(f64, Duration)>) {
        let mut state = self.state.lock();
        state.advance();
        match slow {
            Some((factor, span)) => state.clock.slow_down(factor, span),
            None => state.clock.speed_up(),
        }
        drop(state);
        self.changed.notify_one();
    }

    /// A new model in place of the old one: awake, nothing cached, counted or running. No response of before ever
    /// gets another token.
    pub(super) fn restart(&self) {
        let mut state = self.state.lock();
        let config = *state.engine.config();
        state.engine = Engine::new(config).expect("invariant: these settings worked before");
        state.live.clear();
        state.sleep_level = None;
        state.clock.go_on();
    }

    /// Wakes for every event of the model, for ever. Dropping it halts the engine at any await.
    pub(super) async fn drive(&self) {
        loop {
            let next = {
                let mut state = self.state.lock();
                state.advance();
                state.engine.next_event().and_then(|next| state.clock.instant_of(next))
            };
            let Some(next) = next else {
                self.changed.notified().await;
                continue;
            };
            // Any order will do: both only lead to another look.
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                () = self.changed.notified() => {}
            }
        }
    }

    fn cancel(&self, id: RequestId) {
        let mut state = self.state.lock();
        state.advance();
        // False if it has ended in time.
        state.engine.cancel(id);
        state.live.remove(&id);
    }
}

impl State {
    /// Lets the model run up to now, and only then tells the responses.
    fn advance(&mut self) {
        if self.clock.is_still() {
            return;
        }
        self.engine.advance(self.clock.now(), &mut self.events);
        for event in self.events.drain(..) {
            match event.kind {
                EventKind::FirstToken { cached_tokens } => {
                    if let Some(progress) = self.live.get(&event.id) {
                        progress.on_first_token(cached_tokens);
                    }
                }
                EventKind::Token => {
                    if let Some(progress) = self.live.get(&event.id) {
                        progress.on_token();
                    }
                }
                EventKind::Finished => drop(self.live.remove(&event.id)),
            }
        }
    }
}

/// A request inside the engine, held by its handler and then by its response body.
///
/// Every way out drops it: the body ends, the client leaves while the request is queued, prefilled or streamed, the
/// connection fails, the handler panics, the server stops. One not finished by then is cancelled, which frees its
/// seat and blocks at once.
#[derive(Debug)]
pub(super) struct Generation {
    runner: Arc<Runner>,
    pub(super) progress: Arc<Progress>,
    pub(super) id: RequestId,
    pub(super) prompt_tokens: u32,
    pub(super) max_tokens: u32,
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.runner.cancel(self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;
    use crate::model::{Nanos, Profile};

    fn runner(time_scale: f64) -> Arc<Runner> {
        let config = EngineConfig { max_num_seqs: 1, ..EngineConfig::of(Profile::H100_8B) };
        Arc::new(Runner::new(config, time_scale).unwrap())
    }

    /// Drives until `work` is ready.
    async fn driven<T>(runner: &Runner, work: impl Future<Output = T>) -> T {
        tokio::select! {
            output = work => output,
            () = runner.drive() => unreachable!("the driver never ends"),
        }
    }

    /// Real time from now until a request of one block has this many tokens.
    async fn time_to(tokens: u32, time_scale: f64) -> Duration {
        let runner = runner(time_scale);
        let began = Instant::now();
        let generation = runner.submit(Prompt::new(16, [].into()), tokens).unwrap();
        driven(&runner, generation.progress.reached(tokens)).await;
        began.elapsed()
    }

    /// The same on the model alone.
    fn virtual_time_to(tokens: u32) -> Duration {
        let mut engine = Engine::new(EngineConfig::of(Profile::H100_8B)).unwrap();
        let request = Request { id: RequestId(1), prompt: Prompt::new(16, [].into()), max_tokens: tokens };
        engine.submit(Nanos(0), request).unwrap();
        let mut events = Vec::new();
        engine.advance(Nanos(u64::MAX), &mut events);
        Duration::from_nanos(events.last().unwrap().at.0)
    }

    #[tokio::test(start_paused = true)]
    async fn late_timers_do_not_add_up() {
        for time_scale in [1.0, 10.0, 100.0] {
            for tokens in [1, 10, 2000] {
                let want = virtual_time_to(tokens).div_f64(time_scale);
                let got = time_to(tokens, time_scale).await;
                assert!(got >= want, "{tokens} tokens at {time_scale}: {got:?}, not before {want:?}");
                let late = got - want;
                assert!(late <= Duration::from_millis(2), "{tokens} tokens at {time_scale}: {late:?} late");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_engine_wakes_for_a_new_request() {
        let runner = runner(1.0);
        driven(&runner, tokio::time::sleep(Duration::from_secs(5))).await;
        assert_eq!(runner.stats().steps, 0, "an idle engine does not step");
        let late = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let generation = runner.submit(Prompt::new(16, [].into()), 1).unwrap();
            generation.progress.reached(1).await;
        };
        let began = Instant::now();
        driven(&runner, late).await;
        assert!(began.elapsed() < Duration::from_millis(1020), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_seen_does_not_wait_for_the_driver() {
        let runner = runner(1.0);
        let generation = runner.submit(Prompt::new(16, [].into()), 3).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(runner.stats().served, 1, "nobody drives, yet a look brings it up to date");
        drop(generation);
        assert_eq!(runner.stats().aborted, 0, "a finished generation is not cancelled");
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_generation_is_cancelled_in_each_state() {
        let runner = runner(1.0);
        let submit = || runner.submit(Prompt::new(16, [].into()), 1000).unwrap();
        let (running, waiting) = (submit(), submit());
        tokio::time::advance(Duration::from_millis(100)).await;
        assert_eq!((runner.stats().running, runner.stats().waiting), (1, 1));
        drop(waiting);
        assert_eq!((runner.stats().running, runner.stats().waiting), (1, 0));
        drop(running);
        drop(submit());
        assert_eq!((runner.stats().live(), runner.stats().used_blocks, runner.stats().aborted), (0, 0, 3));
        assert!(runner.state.lock().live.is_empty(), "no response is remembered");
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_asleep_stands_still_and_goes_on_where_it_was() {
        let runner = runner(1.0);
        let running = runner.submit(Prompt::new(16, [].into()), 1000).unwrap();
        tokio::time::advance(Duration::from_millis(100)).await;
        let before = runner.stats().generated_tokens;
        runner.sleep(1);
        let late = runner.submit(Prompt::new(16, [].into()), 1).unwrap();
        tokio::time::advance(Duration::from_secs(3600)).await;
        let asleep = runner.stats();
        assert_eq!((asleep.generated_tokens, asleep.arriving), (before, 1), "nothing happens");
        runner.wake();
        drop(running);
        driven(&runner, late.progress.reached(1)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_driver_at_rest_learns_that_the_engine_woke() {
        let runner = runner(1.0);
        runner.sleep(2);
        let generation = runner.submit(Prompt::new(16, [].into()), 1).unwrap();
        let work = async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            runner.wake();
            generation.progress.reached(1).await;
        };
        let began = Instant::now();
        driven(&runner, work).await;
        assert!(began.elapsed() < Duration::from_millis(60_020), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_restarted_engine_knows_nothing_of_before() {
        let runner = runner(1.0);
        let old = runner.submit(Prompt::new(16, [].into()), 1000).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(runner.stats().generated_tokens > 0);
        runner.restart();
        assert_eq!(runner.stats(), Stats { total_blocks: 27_000, ..Stats::default() });
        drop(old);
        assert_eq!(runner.stats().aborted, 0, "it was lost, not cancelled");
    }
}
