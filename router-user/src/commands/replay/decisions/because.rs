//! Why a candidate was chosen, in one sentence. It says what the numbers of the record say, and no more.

use super::explained::{Considered, is_equal};
use super::words::{count, number};

/// The sentence for a decision.
pub(super) fn sentence(chosen: &str, reason: &str, candidates: &[Considered]) -> String {
    let Some(at) = candidates.iter().position(|c| c.is_chosen) else {
        return format!("chosen: {chosen}, which is not among the candidates of the record");
    };
    if candidates.len() == 1 {
        return format!("chosen: {chosen}, the only backend that could take it");
    }
    let why = match reason {
        "cost_with_prefix" | "cost_without_prefix" => by_cost(candidates, at),
        "least_in_flight" => by_count(candidates, at),
        "unshaped" => format!("{}; the request has no prompt to match", by_count(candidates, at)),
        "no_session" => format!("{}; the request names no session", by_count(candidates, at)),
        "below_threshold_least_in_flight" => {
            format!("{}; no match reached the threshold", by_count(candidates, at))
        }
        "prefix_match" => {
            let matched = candidates[at].known.matched_tokens;
            format!("because the longest match, {} tokens, is there", number(matched as f64))
        }
        "lowest_qps" => "because it had the fewest arrivals in the window".to_owned(),
        "below_threshold_lowest_qps" => {
            "because no match reached the threshold and it had the fewest arrivals in the window".to_owned()
        }
        "round_robin" => "because it was its turn".to_owned(),
        "random" => "by chance".to_owned(),
        "power_of_two" => "because it had the fewer in flight of two taken by chance".to_owned(),
        "hash_owner" => "because it owns the key on the hash ring and was not overloaded".to_owned(),
        "hash_spill" => "because those before it on the key's hash ring had more than their share".to_owned(),
        "forced" => "because the caller said so".to_owned(),
        other => format!("({other})"),
    };
    format!("chosen: {chosen} {why}")
}

/// The least of what was compared, and what tipped the scales.
fn by_cost(candidates: &[Considered], at: usize) -> String {
    let chosen = &candidates[at];
    let least = candidates.iter().map(|c| c.compared).fold(f64::INFINITY, f64::min);
    let counts_as_least = |c: &&Considered| is_equal(c.compared, least) || c.compared <= least + c.band;
    let equals = candidates.iter().filter(counts_as_least).count();
    if equals > 1 {
        let why = if candidates.iter().filter(counts_as_least).all(|c| is_equal(c.compared, least)) {
            "the same total"
        } else {
            "a total within one mean request of the least, which is equal where a count is only as fresh as a report"
        };
        return format!("at random among {equals} with {why}");
    }
    let others = (0..).zip(candidates).filter(|(other, _)| *other != at).map(|(_, c)| c);
    let Some(next) = others.min_by(|a, b| a.compared.total_cmp(&b.compared)) else { return String::new() };
    let difference = number((next.compared - chosen.compared).abs());
    let total = if chosen.is_weighed() || next.is_weighed() { "total, weighed by speed," } else { "total" };
    if next.compared < chosen.compared {
        return format!("although its {total} is {difference} tokens higher than {}'s", next.backend);
    }
    format!(
        "because its {total} is {difference} tokens lower than {}'s; {}",
        next.backend,
        trade(chosen, next)
    )
}

/// What is cached against what is in the way, between the chosen and the next best.
fn trade(chosen: &Considered, next: &Considered) -> String {
    let load = |c: &Considered| c.total - c.terms.uncached;
    let cached = next.terms.uncached - chosen.terms.uncached;
    let waiting = load(next) - load(chosen);
    let (of_cached, of_waiting) = (number(cached.abs()), number(waiting.abs()));
    let most = most_of(if waiting > 0.0 { (next, chosen) } else { (chosen, next) });
    match (sign(cached), sign(waiting)) {
        (1, -1) => format!("{of_cached} more cached tokens outweigh {of_waiting} of waiting ({most})"),
        (-1, 1) => {
            format!(
                "waiting at {}, {of_waiting} tokens ({most}), outweighs its {of_cached} more cached tokens",
                next.backend
            )
        }
        (1, 0) => format!("{of_cached} more tokens are cached, and waiting is the same"),
        (1, _) => {
            format!("{of_cached} more tokens are cached, and there is {of_waiting} less waiting ({most})")
        }
        (0, _) => format!("as much is cached, and there is {of_waiting} less waiting ({most})"),
        // Only where speeds weigh: fewer cached, no less waiting, and yet the least.
        _ => "it is the faster engine".to_owned(),
    }
}

/// The term of waiting by which the first exceeds the second most.
fn most_of((more, less): (&Considered, &Considered)) -> String {
    let pairs = more.terms.named().into_iter().zip(less.terms.named()).skip(1);
    let most = pairs.map(|((name, a), (_, b))| (name, a - b)).max_by(|a, b| a.1.total_cmp(&b.1));
    most.map_or_else(String::new, |(name, _)| format!("mostly {name}"))
}

fn sign(difference: f64) -> i8 {
    if difference.abs() <= 1e-6 { 0 } else { difference.signum() as i8 }
}

/// The fewest in flight.
fn by_count(candidates: &[Considered], at: usize) -> String {
    let Some(own) = candidates[at].known.in_flight else {
        return "although nobody knows what it has in flight".to_owned();
    };
    let known = || candidates.iter().filter_map(|c| c.known.in_flight);
    let least = known().fold(f64::INFINITY, f64::min);
    let equals = known().filter(|n| is_equal(*n, least)).count();
    match (is_equal(own, least), equals) {
        (true, 1) => format!("because it has the fewest in flight, {}", count(own)),
        (true, _) => format!("at random among {equals} with the fewest in flight, {}", count(own)),
        (false, _) => format!(
            "at random among those within one request of the fewest in flight, {}, a count that is only as fresh as \
             a report",
            count(least)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::explained::Explained;
    use super::super::tests::line;
    use crate::decisions::Line;

    /// Two candidates: uncached and queued tokens of each; the first is chosen.
    fn pair(chosen: [f64; 2], next: [f64; 2]) -> Line {
        let mut pair = line(1, None, &[("b", chosen[0] + chosen[1]), ("a", next[0] + next[1])]);
        for (c, [uncached, queued]) in pair.candidates.iter_mut().zip([chosen, next]) {
            c.cost = [uncached, 0.0, queued, 0.0, 0.0, 0.0];
        }
        pair
    }

    fn because(line: &Line) -> String {
        Explained::new(line).because
    }

    #[test]
    fn the_sentence_names_the_difference_and_what_outweighed_what() {
        for (chosen, next, want) in [
            (
                [4000.0, 0.0],
                [600.0, 4600.0],
                "chosen: b because its total is 1,200 tokens lower than a's; waiting at a, 4,600 tokens (mostly queued), \
                 outweighs its 3,400 more cached tokens",
            ),
            (
                [100.0, 500.0],
                [2000.0, 0.0],
                "chosen: b because its total is 1,400 tokens lower than a's; 1,900 more cached tokens outweigh 500 of \
                 waiting (mostly queued)",
            ),
            (
                [100.0, 0.0],
                [2000.0, 0.0],
                "chosen: b because its total is 1,900 tokens lower than a's; 1,900 more tokens are cached, and waiting \
                 is the same",
            ),
            (
                [100.0, 0.0],
                [100.0, 30.0],
                "chosen: b because its total is 30 tokens lower than a's; as much is cached, and there is 30 less \
                 waiting (mostly queued)",
            ),
            ([100.0, 0.0], [100.0, 0.0], "chosen: b at random among 2 with the same total"),
        ] {
            assert_eq!(because(&pair(chosen, next)), want);
        }
    }

    #[test]
    fn what_counts_as_equal_for_staleness_is_said_to_be_chance() {
        let mut line = pair([600.0, 0.0], [500.0, 0.0]);
        line.candidates.iter_mut().for_each(|c| c.band = 150.0);
        assert!(
            because(&line).contains("at random among 2 with a total within one mean request"),
            "{line:?}"
        );
        line.candidates.iter_mut().for_each(|c| c.band = 0.0);
        assert!(because(&line).contains("although its total is 100 tokens higher than a's"));
    }

    #[test]
    fn counts_decide_where_no_cost_is_compared() {
        let mut line = line(1, None, &[("b", 1.0), ("a", 2.0)]);
        line.reason = "least_in_flight".to_owned();
        line.candidates[0].in_flight = Some(1.0);
        line.candidates[1].in_flight = Some(4.0);
        assert_eq!(because(&line), "chosen: b because it has the fewest in flight, 1");
        line.candidates[1].in_flight = Some(1.0);
        assert_eq!(because(&line), "chosen: b at random among 2 with the fewest in flight, 1");
        line.candidates[0].in_flight = None;
        assert_eq!(because(&line), "chosen: b although nobody knows what it has in flight");
    }

    #[test]
    fn every_reason_has_words_and_a_strange_one_is_passed_on() {
        for reason in router_policy::Reason::ALL.map(router_policy::Reason::as_str) {
            let line = Line { reason: reason.to_owned(), ..line(1, None, &[("b", 1.0), ("a", 2.0)]) };
            assert!(!because(&line).contains(reason), "{reason} is put into words: {}", because(&line));
        }
        let strange = Line { reason: "moon".into(), ..line(1, None, &[("b", 1.0), ("a", 2.0)]) };
        assert_eq!(because(&strange), "chosen: b (moon)");
        let alone = line(1, None, &[("b", 1.0)]);
        assert!(because(&alone).ends_with("the only backend that could take it"));
        let nobody = Line { chosen: "c".into(), ..alone };
        assert!(because(&nobody).contains("not among the candidates"));
    }
}
