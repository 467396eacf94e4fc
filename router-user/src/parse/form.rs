//! The model that a form (`multipart/form-data`) names, as far as its beginning tells; and the one that a query does.

use hyper::HeaderMap;
use hyper::header::CONTENT_TYPE;
use memchr::memmem;

use super::path::decode;

/// A longer text is no model's name.
const MODEL_BYTES_MAX: usize = 256;

/// The value of the field `model` in the first bytes of a form. `None` if the body is no form, or the field does not
/// end within them: such a request is placed like one without a model. O(bytes).
#[must_use]
pub fn form_model(headers: &HeaderMap, begun: &[u8]) -> Option<Box<str>> {
    let separator = format!("--{}", boundary(headers.get(CONTENT_TYPE)?.to_str().ok()?)?);
    let mut rest = begun;
    loop {
        rest = &rest[memmem::find(rest, separator.as_bytes())? + separator.len()..];
        let head = &rest[..memmem::find(rest, b"\r\n\r\n")?];
        let value = &rest[head.len() + 4..];
        if is_model(head) {
            let end = memmem::find(value, b"\r\n")?;
            let is_whole = value[end + 2..].starts_with(separator.as_bytes());
            let name = std::str::from_utf8(&value[..end]).ok()?.trim();
            return (is_whole && !name.is_empty() && end <= MODEL_BYTES_MAX).then(|| name.into());
        }
    }
}

/// The value of `model` in a query, percent-decoded: how a WebSocket names it. O(bytes).
#[must_use]
pub fn query_model(query: &str) -> Option<Box<str>> {
    let mut named = query.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = named.find(|(name, _)| *name == "model")?;
    let name = decode(value.replace('+', " ").as_bytes())?;
    (!name.is_empty() && name.len() <= MODEL_BYTES_MAX).then(|| name.into())
}

/// The boundary of a `multipart/form-data` type.
fn boundary(content_type: &str) -> Option<&str> {
    let mut parts = content_type.split(';').map(str::trim);
    parts.next().filter(|kind| kind.eq_ignore_ascii_case("multipart/form-data"))?;
    let mut named = parts.filter_map(|part| part.split_once('='));
    let (_, value) = named.find(|(name, _)| name.eq_ignore_ascii_case("boundary"))?;
    Some(value.trim_matches('"')).filter(|value| !value.is_empty())
}

/// Whether a part's head says that it is the field `model`.
fn is_model(head: &[u8]) -> bool {
    let lines = head.split(|&b| b == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
    let mut fields = lines.filter_map(|line| line.split_once(':'));
    fields.any(|(name, value)| {
        let is_model = |part: &str| matches!(part.trim(), "name=\"model\"" | "name=model");
        name.trim().eq_ignore_ascii_case("content-disposition") && value.split(';').any(is_model)
    })
}

#[cfg(test)]
mod tests {
    use super::{form_model, query_model};
    use hyper::HeaderMap;
    use hyper::header::{CONTENT_TYPE, HeaderValue};

    fn model(content_type: &'static str, body: &str) -> Option<String> {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(content_type))]);
        form_model(&headers, body.as_bytes()).map(String::from)
    }

    #[test]
    fn a_querys_model_is_decoded() {
        for (query, model) in [
            ("model=m", Some("m")),
            ("a=b&model=org%2Fbig+one&model=x", Some("org/big one")),
            ("model=", None),
            ("model=%f", None),
            ("xmodel=m&model", None),
            ("", None),
        ] {
            assert_eq!(query_model(query).as_deref(), model, "{query}");
        }
        assert_eq!(query_model(&format!("model={}", "m".repeat(257))), None);
    }

    const FORM: &str = "multipart/form-data; boundary=\"xyz\"";

    fn part(head: &str, value: &str) -> String {
        format!("--xyz\r\nContent-Disposition: form-data; {head}\r\n\r\n{value}\r\n")
    }

    #[test]
    fn the_model_is_found_before_and_after_a_file() {
        let model_part = part("name=\"model\"", "whisper-1");
        let file = part("name=\"file\"; filename=\"a.wav\"", "name=\"model\"\r\n\r\nnot this");
        for body in [
            format!("{model_part}{file}--xyz--\r\n"),
            format!("{file}{model_part}--xyz--\r\n"),
            format!("preamble\r\n{file}{model_part}--xyz--\r\n"),
        ] {
            assert_eq!(model(FORM, &body).as_deref(), Some("whisper-1"), "{body}");
            assert_eq!(
                model("multipart/form-data;charset=utf-8;boundary=xyz", &body).as_deref(),
                Some("whisper-1")
            );
        }
    }

    #[test]
    fn what_is_cut_or_no_form_names_no_model() {
        let body = format!("{}--xyz--\r\n", part("name=\"model\"", "whisper-1"));
        let value_ends = body.find("\r\n--xyz--").unwrap();
        for cut in 0..value_ends + 7 {
            assert_eq!(model(FORM, &body[..cut]), None, "cut at {cut}");
        }
        assert_eq!(model("application/json", &body), None);
        assert_eq!(model("multipart/form-data", &body), None);
        assert_eq!(model("multipart/form-data; boundary=other", &body), None);
        assert_eq!(model(FORM, &format!("{}--xyz--", part("name=\"model\"", ""))), None);
        assert_eq!(model(FORM, &format!("{}--xyz--", part("name=\"model\"", &"m".repeat(257)))), None);
        assert_eq!(model(FORM, &format!("{}--xyz--", part("name=\"models\"", "m"))), None);
    }
}
