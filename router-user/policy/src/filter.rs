//! Which backends may get a request at all.

use crate::backend::{BackendSpec, Models};
use crate::decision::PickError;

/// What the filter looks at, per backend of the model's pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gate {
    pub(crate) tier: Tier,
    pub(crate) was_tried: bool,
    pub(crate) requests: u32,
    pub(crate) max_in_flight: u32,
}

/// How good a backend is to have, before anything of the request is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    /// It gets nothing: nobody is there, or it cannot serve.
    Out,
    /// Better than no answer at all.
    LastResort,
    /// If nobody better is left.
    Suspect,
    /// Good.
    Good,
}

/// How far a backend gets; the furthest of all decides the error when none gets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    OtherModel,
    OtherTask,
    NotReady,
    LastResort,
    Full,
    Tried,
    Suspect,
    Candidate,
}

/// Whether a backend serves a model: by configuration (name or alias), else by its list; unknown matches any.
/// A request that names no model is served by all.
#[must_use]
pub(crate) fn serves(spec: &BackendSpec, models: &Models, model: Option<&str>) -> bool {
    let Some(model) = model else { return true };
    if let Some(configured) = &spec.model {
        return configured == model || spec.aliases.iter().any(|a| a == model);
    }
    match models {
        Models::Unknown => true,
        Models::Listed(listed, _) => {
            listed.iter().any(|m| m == model) || spec.aliases.iter().any(|a| a == model)
        }
    }
}

/// The verdict on one backend that serves the model.
#[must_use]
pub(crate) const fn judge(gate: Gate) -> Verdict {
    let is_full = gate.requests >= gate.max_in_flight;
    match gate.tier {
        Tier::Out => Verdict::NotReady,
        // Where somebody better serves the model, tried or full, this one is no choice at all.
        Tier::LastResort if gate.was_tried || is_full => Verdict::NotReady,
        Tier::LastResort => Verdict::LastResort,
        Tier::Suspect | Tier::Good if gate.was_tried => Verdict::Tried,
        Tier::Suspect | Tier::Good if is_full => Verdict::Full,
        Tier::Suspect => Verdict::Suspect,
        Tier::Good => Verdict::Candidate,
    }
}

/// The error when no backend got further than `furthest` (`None` = there is no backend).
#[must_use]
pub(crate) const fn refusal(furthest: Option<Verdict>) -> PickError {
    match furthest {
        None => PickError::NoBackend,
        Some(Verdict::OtherModel) => PickError::UnknownModel,
        Some(Verdict::OtherTask) => PickError::OtherTask,
        Some(Verdict::NotReady | Verdict::LastResort) => PickError::NoneReady,
        Some(Verdict::Full) => PickError::AllFull,
        Some(Verdict::Tried | Verdict::Suspect | Verdict::Candidate) => PickError::AllTried,
    }
}

#[cfg(test)]
mod tests {
    use super::{BackendSpec, Gate, Models, Tier, Verdict, judge, serves};
    use crate::time::Nanos;

    #[test]
    fn a_model_is_matched_by_configuration_then_by_list_and_unknown_matches_any() {
        let configured =
            BackendSpec { model: Some("a".into()), aliases: vec!["b".into()], ..BackendSpec::default() };
        let plain = BackendSpec::default();
        let listed = Models::Listed(vec!["x".into()], Nanos(0));
        for (spec, models, model, expected) in [
            (&configured, &Models::Unknown, Some("a"), true),
            (&configured, &listed, Some("b"), true),
            (&configured, &listed, Some("x"), false),
            (&plain, &Models::Unknown, Some("whatever"), true),
            (&plain, &listed, Some("x"), true),
            (&plain, &listed, Some("y"), false),
            (&plain, &listed, None, true),
        ] {
            assert_eq!(serves(spec, models, model), expected, "{spec:?} {models:?} {model:?}");
        }
    }

    #[test]
    fn the_limit_and_earlier_tries_exclude() {
        use Tier::{Good, LastResort, Out, Suspect};
        let gate = |requests, tier, was_tried| Gate { tier, was_tried, requests, max_in_flight: 2 };
        assert_eq!(judge(gate(1, Good, false)), Verdict::Candidate);
        assert_eq!(judge(gate(2, Good, false)), Verdict::Full);
        assert_eq!(judge(gate(0, Good, true)), Verdict::Tried);
        assert_eq!(judge(gate(0, Out, false)), Verdict::NotReady);
        assert_eq!(judge(gate(1, Suspect, false)), Verdict::Suspect);
        assert_eq!(judge(gate(2, Suspect, false)), Verdict::Full);
        assert_eq!(judge(gate(0, Suspect, true)), Verdict::Tried);
        assert_eq!(judge(gate(1, LastResort, false)), Verdict::LastResort);
        assert_eq!(judge(gate(2, LastResort, false)), Verdict::NotReady);
        assert_eq!(judge(gate(0, LastResort, true)), Verdict::NotReady);
    }
}
