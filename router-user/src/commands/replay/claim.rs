//! `--assert`: a claim about the results, as `prefix-cost/oracle<=1.05` or `prefix-cost.ttft_p99<=2.5`.

use std::str::FromStr;

use super::stats::{METRICS, Summary};

/// What a claim is about when it does not say.
const METRIC_DEFAULT: &str = "ttft_mean";

/// `A[.METRIC][/B[.METRIC]] OP NUMBER`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Claim {
    text: String,
    left: Term,
    over: Option<Term>,
    relation: Relation,
    bound: f64,
}

#[derive(Clone, Debug, PartialEq)]
struct Term {
    policy: String,
    /// Index into the metrics.
    metric: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

const RELATIONS: [(&str, Relation); 4] = [
    ("<=", Relation::LessOrEqual),
    (">=", Relation::GreaterOrEqual),
    ("<", Relation::Less),
    (">", Relation::Greater),
];

impl FromStr for Claim {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (symbol, relation) = RELATIONS
            .into_iter()
            .find(|(symbol, _)| text.contains(symbol))
            .ok_or("a claim needs <=, <, >= or >, as in prefix-cost/oracle<=1.05")?;
        let (ratio, bound) = text.split_once(symbol).unwrap_or((text, ""));
        let bound = bound.trim().parse::<f64>().ok().filter(|bound| bound.is_finite());
        let bound = bound.ok_or_else(|| format!("after {symbol} comes a number"))?;
        let (left, over) = match ratio.split_once('/') {
            Some((left, over)) => (left, Some(over)),
            None => (ratio, None),
        };
        let left = term(left, METRIC_DEFAULT)?;
        let over = over.map(|over| term(over, METRICS[left.metric].0)).transpose()?;
        Ok(Self { text: text.to_owned(), left, over, relation, bound })
    }
}

fn term(text: &str, default: &str) -> Result<Term, String> {
    let (policy, metric) = text.trim().split_once('.').unwrap_or_else(|| (text.trim(), default));
    if policy.is_empty() {
        return Err("a claim begins with a policy".to_owned());
    }
    let name = metric.strip_suffix("_s").unwrap_or(metric);
    let metric = METRICS
        .iter()
        .position(|(known, _)| *known == name)
        .ok_or_else(|| format!("no metric `{metric}`, only {}", METRICS.map(|(name, _)| name).join(", ")))?;
    Ok(Term { policy: policy.to_owned(), metric })
}

impl Claim {
    /// Policies it needs the results of.
    pub(super) fn policies(&self) -> impl Iterator<Item = &str> {
        [Some(&self.left), self.over.as_ref()].into_iter().flatten().map(|term| term.policy.as_str())
    }

    /// Whether it holds, and a line that says so. Nothing over nothing holds no claim.
    pub(super) fn check(&self, results: &[Summary]) -> (bool, String) {
        let value = |term: &Term| {
            let of = results.iter().find(|s| s.policy == term.policy);
            of.map_or(f64::NAN, |summary| METRICS[term.metric].1(summary))
        };
        let found = value(&self.left) / self.over.as_ref().map_or(1.0, value);
        let holds = match self.relation {
            Relation::Less => found < self.bound,
            Relation::LessOrEqual => found <= self.bound,
            Relation::Greater => found > self.bound,
            Relation::GreaterOrEqual => found >= self.bound,
        };
        let verdict = if holds { "holds" } else { "does not hold" };
        (holds, format!("{} {verdict}: {found:.4}", self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Vec<Summary> {
        let of = |policy: &str, ttft_mean_s, ttft_p99_s| Summary {
            policy: policy.to_owned(),
            ttft_mean_s,
            ttft_p99_s,
            ..Summary::default()
        };
        vec![of("prefix-cost", 1.0, 6.0), of("oracle", 0.8, 5.0), of("nothing", 0.0, 0.0)]
    }

    #[test]
    fn claims_hold_or_not() {
        for (text, holds) in [
            ("prefix-cost/oracle<=1.25", true),
            ("prefix-cost/oracle<1.25", false),
            ("prefix-cost/oracle <= 1.05", false),
            ("prefix-cost.ttft_p99/oracle<=1.2", true),
            ("prefix-cost.ttft_p99_s/oracle.ttft_mean > 7", true),
            ("oracle>=0.8", true),
            ("nothing/nothing<=1", false),
        ] {
            let claim: Claim = text.parse().unwrap();
            assert_eq!(claim.check(&results()).0, holds, "{text}: {}", claim.check(&results()).1);
        }
    }

    #[test]
    fn what_is_no_claim_is_refused() {
        for text in ["", "prefix-cost", "a/b=1", "a/b<=", "a/b<=x", "<=1", "a.speed<=1", "a/<=1", "a<=inf"] {
            assert!(text.parse::<Claim>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_claim_names_what_it_needs() {
        let claim: Claim = "a.e2e_mean/b<2".parse().unwrap();
        assert_eq!(claim.policies().collect::<Vec<_>>(), ["a", "b"]);
    }
}
