//! Whether an engine serves, by a single round of questions: how it does, and what models it lists.
//!
//! It is there and does not serve while it loads; and another service may answer at its address after a reboot, which
//! must never be sent a prompt. What follows from a row of rounds is [`super::watch`]'s.

use hyper::StatusCode;

use super::probe::{Answer, AskError, Prober};
use super::scrape::listed;
use super::{HealthAt, Target};
use crate::error::is_local;

/// Bytes of a list of models at most.
const MODELS_BYTES_MAX: usize = 1 << 20;

/// Bytes of what an engine says of how it does at most.
const HEALTH_BYTES_MAX: usize = 64 << 10;

/// What an engine that is there does wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    /// What, for people.
    pub(super) why: String,
    /// It looks like another service.
    pub(super) is_foreign: bool,
}

/// What the questions say of an engine.
#[derive(Debug)]
pub(super) enum Life {
    /// It serves; the models it lists, or `None` if it does not tell (it wants a key we lack, or has no such list).
    Serves(Option<Vec<String>>),
    /// It is there and does not serve: it loads its model, or something else answers at its address.
    DoesNotServe(Wrong),
    /// It is there and did not answer in time, as a busy engine does.
    Busy,
    /// Something takes the connection and breaks it off.
    Breaks(AskError),
    /// It is not there.
    NotThere(AskError),
    /// It was not asked: this process lacks what that takes.
    Unasked,
}

/// Asks how it does, and then for its models.
pub(super) async fn ask(prober: &mut Prober, target: &Target) -> Life {
    if let Some(path) = &target.health.path {
        match prober.ask(path, HEALTH_BYTES_MAX).await {
            Ok(answer) => {
                if let Err(wrong) = judge_health(&answer, &target.health) {
                    return Life::DoesNotServe(wrong);
                }
            }
            Err(error) => return of_error(error),
        }
    }
    match prober.ask("/v1/models", MODELS_BYTES_MAX).await {
        Ok(answer) => judge_models(&answer).map_or_else(Life::DoesNotServe, Life::Serves),
        Err(error) => of_error(error),
    }
}

fn of_error(error: AskError) -> Life {
    match error {
        AskError::Timeout => Life::Busy,
        AskError::Connect(ref source) if is_local(source) => Life::Unasked,
        AskError::Connect(_) => Life::NotThere(error),
        AskError::Broken(_) => Life::Breaks(error),
        AskError::TooLarge | AskError::Unreadable(_) => {
            Life::DoesNotServe(Wrong { why: error.to_string(), is_foreign: true })
        }
    }
}

fn judge_health(answer: &Answer, at: &HealthAt) -> Result<(), Wrong> {
    let status = answer.status;
    // An engine without that path is no sick one, as long as nobody said that it has it.
    let is_absent = matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED);
    if is_absent && at.is_usual {
        return Ok(());
    }
    let path = at.path.as_deref().unwrap_or_default();
    let wrong = |is_foreign, why| Err(Wrong { why, is_foreign });
    if !at.statuses.contains(&status.as_u16()) {
        let hint = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ": the probe is refused (api-key-file)",
            _ if status.is_redirection() => ": redirects are not followed",
            _ => "",
        };
        return wrong(status.is_redirection(), format!("{path}: status {}{hint}", status.as_u16()));
    }
    if answer.body.trim_ascii_start().starts_with(b"<") {
        return wrong(true, format!("{path}: a page for people"));
    }
    Ok(())
}

fn judge_models(answer: &Answer) -> Result<Option<Vec<String>>, Wrong> {
    let wrong = |is_foreign, why: &str| Err(Wrong { why: why.to_owned(), is_foreign });
    match answer.status {
        StatusCode::OK => match listed(&answer.body) {
            Some(models) if models.is_empty() => wrong(false, "it lists no model"),
            Some(models) => Ok(Some(models)),
            None => wrong(true, "the answer is no list of models"),
        },
        StatusCode::UNAUTHORIZED
        | StatusCode::FORBIDDEN
        | StatusCode::NOT_FOUND
        | StatusCode::METHOD_NOT_ALLOWED => Ok(None),
        status => wrong(status.is_redirection(), &format!("status {}", status.as_u16())),
    }
}

#[cfg(test)]
mod tests {
    use super::{Answer, HealthAt, Wrong, judge_health, judge_models};
    use hyper::StatusCode;

    fn answer(status: u16, body: &'static str) -> Answer {
        Answer { status: StatusCode::from_u16(status).unwrap(), body: body.into() }
    }

    #[test]
    fn only_an_engine_that_serves_is_taken_for_one() {
        let models = |status, body| judge_models(&answer(status, body));
        assert_eq!(models(200, r#"{"data":[{"id":"m"}]}"#), Ok(Some(vec!["m".to_owned()])));
        for status in [401, 403, 404] {
            assert_eq!(models(status, ""), Ok(None), "{status}: it is there, and does not tell");
        }
        for (status, body, is_foreign) in [
            (503, "{}", false),
            (200, r#"{"data":[]}"#, false),
            (200, "<html>", true),
            (200, "", true),
            (204, "", false),
            (301, "", true),
            (302, "", true),
            (500, "", false),
        ] {
            let wrong = models(status, body).unwrap_err();
            assert_eq!(wrong.is_foreign, is_foreign, "{status} {body}: {wrong:?}");
        }
    }

    /// H06.
    #[test]
    fn h06_only_configured_statuses_are_healthy() {
        let usual = HealthAt::default();
        let health = |at: &HealthAt, status, body| judge_health(&answer(status, body), at);
        for body in ["", r#"{"status":"ok"}"#, "OK"] {
            assert_eq!(health(&usual, 200, body), Ok(()));
        }
        for (status, body, part, is_foreign) in [
            (503, "{}", "status 503", false),
            (200, "\n<!doctype html>", "a page for people", true),
            (301, "", "redirects are not followed", true),
            (401, "", "api-key-file", false),
            (204, "", "status 204", false),
        ] {
            let Wrong { why, is_foreign: is } = health(&usual, status, body).unwrap_err();
            assert!(why.contains(part) && is == is_foreign, "{status}: {why}");
        }
        let other = HealthAt { path: Some("/live".into()), statuses: vec![204, 418], is_usual: false };
        assert_eq!((health(&other, 204, ""), health(&other, 418, "")), (Ok(()), Ok(())));
        assert!(health(&other, 200, "").is_err());
        assert_eq!(health(&usual, 404, ""), Ok(()), "engines may lack the usual path");
        assert!(health(&other, 404, "").is_err(), "and not the one that was named");
    }
}
