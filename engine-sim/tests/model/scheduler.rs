//! Which requests run when: seats, order, budget, blocks, cancellation.

use crate::support::{engine, first_tokens, prompt, request, run, step, submit};
use engine_sim::model::{
    ConfigError, Engine, EngineConfig, EventKind, Nanos, Profile, RequestId, SubmitError,
};

const ZERO: Nanos = Nanos(0);

#[test]
fn a_lone_request_takes_one_prefill_and_then_a_decode_a_token() {
    let mut engine = engine(4, 8192, 1000);
    submit(&mut engine, ZERO, 1, 8192, 3);
    let events = run(&mut engine);
    let at_ms: Vec<f64> = events.iter().map(|e| e.at.as_ms_f64()).collect();
    let prefill = 1.9 + 0.0178 * 8192.0 + 8.7e-7 * 8192.0 * 4096.0;
    let decode = |context: f64| 1.9 + 5.4536 + 4.7e-5 * context;
    let want = [prefill, prefill + decode(8192.0), prefill + decode(8192.0) + decode(8193.0)];
    for (got, want) in at_ms.iter().zip(want) {
        assert!((got - want).abs() < 1e-3, "{got} ms, the formula says {want} ms");
    }
    assert_eq!(events.len(), 4, "three tokens and the end");
    assert_eq!(events[3].kind, EventKind::Finished);
    assert_eq!(events[3].at, events[2].at, "the end comes with the last token");
}

#[test]
fn requests_of_one_moment_share_their_first_step() {
    let mut engine = engine(4, 8192, 1000);
    for id in 0..3 {
        submit(&mut engine, Nanos(7), id, 100, 2);
    }
    let events = run(&mut engine);
    assert_eq!(first_tokens(&events), [0, 1, 2]);
    assert!(events[..3].iter().all(|e| e.at == events[0].at), "all three were prefilled together");
    assert_eq!(engine.stats().steps, 2);
}

#[test]
fn a_request_that_comes_during_a_step_waits_for_the_next_one() {
    let mut engine = engine(4, 8192, 1000);
    submit(&mut engine, ZERO, 1, 1000, 2);
    step(&mut engine);
    submit(&mut engine, Nanos(1), 2, 100, 1);
    assert_eq!((engine.stats().running, engine.stats().arriving, engine.stats().waiting), (1, 1, 0));
    let events = run(&mut engine);
    assert_eq!(engine.stats().waiting_peak, 0, "a free seat was waiting for it, so it never queued");
    let first_of = |id| events.iter().find(|e| e.id == RequestId(id)).unwrap().at;
    assert!(first_of(2) > first_of(1));
}

#[test]
fn a_late_caller_does_not_start_a_request_before_it_came() {
    let mut engine = engine(4, 8192, 1000);
    submit(&mut engine, ZERO, 1, 100, 1);
    submit(&mut engine, Nanos(1_000_000_000), 2, 100, 1);
    let mut events = Vec::new();
    engine.advance(Nanos(9_000_000_000), &mut events);
    assert_eq!(first_tokens(&events), [1, 2]);
    assert!(events[2].at > Nanos(1_000_000_000), "the second came a second later");
    assert_eq!(engine.next_event(), None);
}

#[test]
fn seats_limit_who_runs_and_the_rest_queue_in_order() {
    let mut engine = engine(4, 8192, 1000);
    for id in 0..8 {
        submit(&mut engine, ZERO, id, 100, 10 + id as u32);
    }
    step(&mut engine);
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.running_peak, stats.waiting_peak), (4, 4, 4, 4));
    assert_eq!(stats.seat_queue_peak, 4, "they queue for want of a seat");
    let events = run(&mut engine);
    assert_eq!(first_tokens(&events), [0, 1, 2, 3, 4, 5, 6, 7], "first come, first served");
    assert_eq!((engine.stats().served, engine.stats().running_peak), (8, 4));
}

#[test]
fn a_queue_for_the_token_budget_is_no_queue_for_seats() {
    let mut engine = engine(4, 2048, 1000);
    submit(&mut engine, ZERO, 1, 4000, 1);
    submit(&mut engine, ZERO, 2, 90, 1);
    let events = run(&mut engine);
    assert_eq!((engine.stats().waiting_peak, engine.stats().seat_queue_peak), (1, 0));
    assert_eq!(first_tokens(&events), [1, 2]);
    assert_eq!(events[0].at, events[2].at, "the last chunk of the first left budget for the second");
}

#[test]
fn decodes_go_on_while_a_long_prompt_is_prefilled_in_chunks() {
    let mut engine = engine(4, 512, 1000);
    submit(&mut engine, ZERO, 1, 16, 20);
    step(&mut engine);
    submit(&mut engine, Nanos(1), 2, 2000, 1);
    let events = run(&mut engine);
    let first = events.iter().position(|e| e.id == RequestId(2)).unwrap();
    // 2,000 tokens beside one decode a step: 511 + 511 + 511 + 467, after the step under way.
    assert_eq!(first, 5, "one token of the other for each step before: {events:?}");
}

#[test]
fn the_queue_head_holds_up_all_behind_it_when_blocks_lack() {
    let mut engine = engine(8, 8192, 20);
    submit(&mut engine, ZERO, 1, 160, 4);
    submit(&mut engine, ZERO, 2, 200, 1);
    submit(&mut engine, ZERO, 3, 16, 1);
    step(&mut engine);
    assert_eq!((engine.stats().running, engine.stats().waiting), (1, 2), "the small one does not overtake");
    assert_eq!(first_tokens(&run(&mut engine)), [1, 2, 3]);
}

#[test]
fn a_seat_and_its_blocks_are_free_before_the_last_token_is_seen() {
    let mut engine = engine(1, 8192, 100);
    submit(&mut engine, ZERO, 1, 100, 2);
    let mut last = Vec::new();
    while !last.iter().any(|e: &engine_sim::model::Event| e.kind == EventKind::Finished) {
        last = step(&mut engine);
    }
    let stats = engine.stats();
    assert_eq!((stats.running, stats.used_blocks, stats.served), (0, 0, 1));
}

#[test]
fn the_newest_is_preempted_when_blocks_run_out_and_still_gets_every_token_once() {
    let mut engine = engine(4, 8192, 12);
    for id in 0..3 {
        submit(&mut engine, ZERO, id, 60, 60);
    }
    let events = run(&mut engine);
    let stats = engine.stats();
    assert!(stats.preempted > 0, "three times 120 tokens cannot run together on 192");
    assert_eq!(stats.served, 3);
    for id in 0..3 {
        let of_id = events.iter().filter(|e| e.id == RequestId(id));
        assert_eq!(of_id.count(), 61, "60 tokens and the end");
    }
    assert_eq!(stats.prompt_tokens, 180, "recomputed prompts are not counted again");
    let end = |id| events.iter().rfind(|e| e.id == RequestId(id)).unwrap().at;
    assert!(end(0) < end(1) && end(1) < end(2), "the oldest is never the one to give way");
}

#[test]
fn cancel_frees_seat_and_blocks_in_each_state() {
    let mut engine = engine(2, 512, 1000);
    submit(&mut engine, ZERO, 1, 16, 100); // decoding
    submit(&mut engine, ZERO, 2, 4000, 5); // prefilling
    submit(&mut engine, ZERO, 3, 16, 5); // queued
    step(&mut engine);
    step(&mut engine);
    submit(&mut engine, Nanos(1), 4, 16, 5); // arriving
    assert_eq!((engine.stats().running, engine.stats().waiting, engine.stats().arriving), (2, 1, 1));
    for (id, live) in [(3, 3), (4, 2), (2, 1), (1, 0)] {
        assert!(engine.cancel(RequestId(id)), "request {id} is live");
        engine.audit().unwrap();
        assert_eq!(engine.stats().live(), live);
        assert!(!engine.cancel(RequestId(id)), "nothing is cancelled twice");
    }
    assert_eq!((engine.stats().used_blocks, engine.stats().aborted), (0, 4));
    assert_eq!(run(&mut engine), [], "nothing more is heard of them");
}

#[test]
fn a_cancelled_seat_goes_to_the_next_in_the_queue() {
    let mut engine = engine(1, 8192, 1000);
    submit(&mut engine, ZERO, 1, 16, 1000);
    submit(&mut engine, ZERO, 2, 16, 1);
    step(&mut engine);
    engine.cancel(RequestId(1));
    assert_eq!(first_tokens(&run(&mut engine)), [2]);
}

#[test]
fn what_can_never_fit_or_overfills_the_queue_is_refused_and_counted() {
    let mut engine = Engine::new(EngineConfig {
        num_gpu_blocks: 10,
        max_waiting: 1,
        ..EngineConfig::of(Profile::H100_8B)
    })
    .unwrap();
    let too_long = engine.submit(ZERO, request(1, prompt(1, 100), 61));
    assert_eq!(too_long, Err(SubmitError::TooLong { needed: 161, limit: 160 }));
    engine.submit(ZERO, request(2, prompt(1, 100), 60)).unwrap();
    let full = engine.submit(ZERO, request(3, prompt(1, 100), 60));
    assert_eq!(full, Err(SubmitError::QueueFull { limit: 1 }));
    assert_eq!(engine.stats().refused, 2);
    assert_eq!(first_tokens(&run(&mut engine)), [2], "what just fits runs to its end");
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let good = EngineConfig::of(Profile::H100_8B);
    let check = |config: EngineConfig| Engine::new(config).unwrap_err();
    assert_eq!(check(EngineConfig { max_num_seqs: 0, ..good }), ConfigError::NoSeats);
    assert_eq!(check(EngineConfig { num_gpu_blocks: 0, ..good }), ConfigError::Blocks);
    let narrow = check(EngineConfig { max_num_batched_tokens: 255, ..good });
    assert_eq!(narrow, ConfigError::BudgetBelowSeats { budget: 255, seats: 256 });
}

#[test]
fn peaks_start_again_from_what_is_now() {
    let mut engine = engine(2, 8192, 1000);
    for id in 0..4 {
        submit(&mut engine, ZERO, id, 16, 1 + 50 * (id as u32 % 2));
    }
    step(&mut engine);
    assert_eq!((engine.stats().running_peak, engine.stats().waiting_peak), (2, 2));
    run(&mut engine);
    engine.reset_peaks();
    let stats = engine.stats();
    assert_eq!((stats.running_peak, stats.waiting_peak, stats.seat_queue_peak), (0, 0, 0));
    assert_eq!(stats.served, 4, "counters go on");
}
