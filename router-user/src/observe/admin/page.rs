//! The status page: one file, whose script and style alone run, by a nonce that each answer has anew.
//!
//! No other origin is asked for anything, and no engine's answer can bring a script to this one: what has no nonce
//! does not run.

use std::fmt::Write as _;

use hyper::StatusCode;
use hyper::header::{CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY};
use rand::TryRng;
use rand::rngs::SysRng;

use super::answer::{Answer, answer, error};

const PAGE: &str = include_str!("page.html");
/// Stands in the page where the nonce goes.
const MARK: &str = "{nonce}";

/// The page.
pub(super) fn page() -> Answer {
    let mut random = [0_u8; 16];
    if SysRng.try_fill_bytes(&mut random).is_err() {
        return error(StatusCode::INTERNAL_SERVER_ERROR, "no_random", "the system gives no random bytes");
    }
    let mut nonce = String::with_capacity(32);
    for byte in random {
        let _ = write!(nonce, "{byte:02x}");
    }
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let mut page = answer(StatusCode::OK, "text/html; charset=utf-8", PAGE.replace(MARK, &nonce));
    let headers = page.headers_mut();
    let policy = HeaderValue::try_from(policy).expect("invariant: the policy is ASCII");
    headers.insert(CONTENT_SECURITY_POLICY, policy);
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    let opener = HeaderName::from_static("cross-origin-opener-policy");
    headers.insert(opener, HeaderValue::from_static("same-origin"));
    page
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::{MARK, PAGE, page};

    #[tokio::test]
    async fn only_what_has_the_nonce_runs_and_it_is_new_each_time() {
        let (one, other) = (page(), page());
        let policy =
            |page: &super::Answer| page.headers()["content-security-policy"].to_str().unwrap().to_owned();
        assert_ne!(policy(&one), policy(&other));
        let said = policy(&one);
        assert!(said.starts_with("default-src 'none'; ") && !said.contains("unsafe"), "{said}");
        let nonce = said.split("'nonce-").nth(1).unwrap().split('\'').next().unwrap().to_owned();
        let text = one.into_body().collect().await.unwrap().to_bytes();
        let text = std::str::from_utf8(&text).unwrap();
        assert!(nonce.len() == 32 && text.contains(&format!("<script nonce=\"{nonce}\">")));
        assert!(!text.contains(MARK));
    }

    #[test]
    fn the_page_asks_nobody_else_and_has_no_handler_in_its_markup() {
        let lower = PAGE.to_ascii_lowercase();
        for outside in [
            "http://",
            "https://",
            "src=",
            "@import",
            "url(",
            "javascript:",
            "<iframe",
            "style=\"",
            "innerhtml",
        ] {
            // The namespace of SVG is a name, not an address.
            let found = lower.replace("http://www.w3.org/2000/svg", "");
            assert!(!found.contains(outside), "{outside}");
        }
        for tag in lower.split('<').skip(1).map(|tag| tag.split('>').next().unwrap_or_default()) {
            let is_markup = tag.starts_with(|c: char| c.is_ascii_alphabetic());
            assert!(!(is_markup && tag.contains(" on")), "a handler in <{tag}>");
        }
        assert!(lower.contains("<noscript>"));
    }
}
