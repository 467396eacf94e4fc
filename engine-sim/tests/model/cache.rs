//! What the prefix cache finds, and what it loses first.

use engine_sim::model::{Nanos, RequestId};

use crate::support::{cached_tokens, engine, prompt, request, run, step, with_host_tier};

const ZERO: Nanos = Nanos(0);

#[test]
fn the_prefix_cache_counts_whole_blocks_and_leaves_a_token_to_compute() {
    let table = [(15, 0), (16, 0), (17, 16), (32, 16), (33, 32), (100, 96)];
    for (tokens, cached) in table {
        let mut engine = engine(4, 8192, 1000);
        engine.submit(ZERO, request(1, prompt(5, tokens), 1)).unwrap();
        engine.submit(ZERO, request(2, prompt(6, tokens), 1)).unwrap();
        run(&mut engine);
        engine.submit(ZERO, request(3, prompt(5, tokens), 1)).unwrap();
        let events = run(&mut engine);
        assert_eq!(cached_tokens(&events, 3), cached, "the same {tokens} tokens again");
        assert_eq!(engine.stats().cache_hit_tokens, u64::from(cached));
        assert_eq!(engine.stats().prompt_tokens, 3 * u64::from(tokens));
    }
}

#[test]
fn a_longer_prompt_finds_the_whole_of_a_shorter_one() {
    let mut engine = engine(4, 8192, 1000);
    engine.submit(ZERO, request(1, prompt(5, 160), 1)).unwrap();
    run(&mut engine);
    engine.submit(ZERO, request(2, prompt(5, 400), 1)).unwrap();
    assert_eq!(cached_tokens(&run(&mut engine), 2), 160);
}

#[test]
fn blocks_are_visible_to_others_from_allocation_on() {
    let mut engine = engine(4, 8192, 1000);
    engine.submit(ZERO, request(1, prompt(5, 1000), 1)).unwrap();
    engine.submit(ZERO, request(2, prompt(5, 1000), 1)).unwrap();
    let events = run(&mut engine);
    assert_eq!((cached_tokens(&events, 1), cached_tokens(&events, 2)), (0, 992));
}

#[test]
fn chunks_not_yet_scheduled_are_not_in_the_cache() {
    let mut engine = engine(4, 512, 1000);
    engine.submit(ZERO, request(1, prompt(5, 2048), 100)).unwrap();
    step(&mut engine);
    engine.cancel(RequestId(1));
    engine.submit(ZERO, request(2, prompt(5, 2048), 1)).unwrap();
    assert_eq!(cached_tokens(&run(&mut engine), 2), 512, "only the first chunk was computed");
}

#[test]
fn the_prefix_used_longest_ago_is_evicted_tail_first() {
    let mut engine = engine(4, 8192, 30);
    for (id, family) in [(1, 5), (2, 6)] {
        engine.submit(ZERO, request(id, prompt(family, 160), 1)).unwrap();
        run(&mut engine);
    }
    // 10 blocks of each are cached and 10 are empty; 15 are needed now.
    engine.submit(ZERO, request(3, prompt(7, 240), 1)).unwrap();
    run(&mut engine);
    engine.submit(ZERO, request(4, prompt(6, 161), 1)).unwrap();
    assert_eq!(cached_tokens(&run(&mut engine), 4), 160, "the one used later is whole");
    engine.submit(ZERO, request(5, prompt(5, 161), 1)).unwrap();
    assert_eq!(cached_tokens(&run(&mut engine), 5), 64, "of the older one, head blocks are left");
}

#[test]
fn a_host_tier_keeps_what_the_gpu_alone_would_have_evicted() {
    for (host_blocks, cached) in [(0, 0), (20, 144)] {
        let mut engine = with_host_tier(4, 8192, 20, host_blocks);
        for (id, family) in [(1, 5), (2, 6), (3, 7)] {
            engine.submit(ZERO, request(id, prompt(family, 160), 1)).unwrap();
            run(&mut engine);
        }
        engine.submit(ZERO, request(4, prompt(5, 160), 1)).unwrap();
        assert_eq!(cached_tokens(&run(&mut engine), 4), cached, "{host_blocks} blocks of host memory");
    }
}

#[test]
fn a_host_tier_lets_no_more_run_and_no_longer_request_in() {
    let mut engine = with_host_tier(4, 8192, 20, 1000);
    assert!(engine.submit(ZERO, request(1, prompt(5, 320), 1)).is_err(), "321 tokens on 20 blocks of 16");
    engine.submit(ZERO, request(2, prompt(6, 170), 1)).unwrap();
    engine.submit(ZERO, request(3, prompt(7, 170), 1)).unwrap();
    step(&mut engine);
    assert_eq!(engine.stats().running_peak, 1, "11 blocks each, so not both at once");
    assert_eq!(engine.stats().total_blocks, 20);
}

#[test]
fn a_forgotten_cache_is_empty_and_who_runs_goes_on() {
    let mut engine = engine(4, 8192, 1000);
    engine.submit(ZERO, request(1, prompt(5, 160), 3)).unwrap();
    step(&mut engine);
    engine.forget_cache();
    assert_eq!(run(&mut engine).len(), 4, "three tokens and the end");
    engine.submit(ZERO, request(2, prompt(5, 160), 1)).unwrap();
    assert_eq!(cached_tokens(&run(&mut engine), 2), 0);
}
