//! What a path is to the router: an inference path, one to pass on, one to answer, or none.
//!
//! Decided on the path as an engine would read it: percent-decoded once. A path that could be read in two ways
//! (empty or dot segments, backslashes, control bytes, half an escape) is refused, so that no spelling of an
//! administration path gets through.

use hyper::Method;
use router_policy::Task;

use super::PathKind;

/// Paths whose POST bodies are JSON with a model and a prompt. Those of `/v1/audio` and `/v1/images` that take
/// forms (transcriptions, translations, edits, variations) are not among them: placed by load alone.
const INFERENCE: [&str; 13] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/rerank",
    "/rerank",
    "/v1/score",
    "/score",
    "/tokenize",
    "/detokenize",
    "/v1/audio/speech",
    "/v1/images/generations",
];

/// Engine administration, in vLLM's, SGLang's and llama.cpp's words: refused at the root and below `/v1` alike.
const ADMINISTRATION: [&str; 29] = [
    "abort_request",
    "collective_rpc",
    "configure_logging",
    "flush_cache",
    "get_server_info",
    "init_weights_update_group",
    "is_paused",
    "is_sleeping",
    "load_lora_adapter",
    "lora-adapters",
    "metrics",
    "pause",
    "props",
    "release_memory_occupation",
    "reset_encoder_cache",
    "reset_mm_cache",
    "reset_prefix_cache",
    "resume",
    "resume_memory_occupation",
    "scale_elastic_ep",
    "server_info",
    "sleep",
    "slots",
    "start_profile",
    "stop_profile",
    "unload_lora_adapter",
    "update_weights",
    "update_weights_from_disk",
    "wake_up",
];

/// Classifies a request by method and path (without query). `proxy_paths` are prefixes of further paths that are
/// passed on; they end at a segment's end. An administration path is passed on only if a prefix names it itself,
/// not merely something above it.
#[must_use]
pub fn classify(method: &Method, path: &str, proxy_paths: &[String]) -> PathKind {
    // Spelled as it stands here, as nearly always: what follows would find the same.
    if method == Method::POST && INFERENCE.contains(&path) {
        return PathKind::Inference;
    }
    let Some(path) = normal(path) else { return PathKind::Refused };
    let path = path.as_str();
    let is_named = |p: &String| is_below(path, p) && (!is_administration(path) || is_administration(p));
    match path {
        "/health" | "/version" => PathKind::Own,
        "/v1/models" if [Method::GET, Method::HEAD].contains(method) => PathKind::Own,
        _ if INFERENCE.contains(&path) && method == Method::POST => PathKind::Inference,
        _ if INFERENCE.contains(&path) => PathKind::Other,
        _ if path.starts_with("/v1/") && !is_administration(path) => PathKind::Other,
        _ if proxy_paths.iter().any(is_named) => PathKind::Other,
        _ => PathKind::Refused,
    }
}

/// The work that a path asks for, as it is nearly always spelled; any other spelling tells nothing.
#[must_use]
pub fn task(path: &str) -> Task {
    match path {
        "/v1/chat/completions" | "/v1/completions" | "/v1/responses" | "/v1/messages" => Task::Generate,
        "/v1/embeddings" => Task::Embed,
        "/v1/rerank" | "/rerank" | "/v1/score" | "/score" => Task::Score,
        "/v1/audio/transcriptions" | "/v1/audio/translations" => Task::Transcribe,
        _ => Task::Any,
    }
}

/// The path percent-decoded once and without a slash at the end; `None` if it could be read in two ways.
fn normal(path: &str) -> Option<String> {
    let decoded = decode(path.as_bytes())?;
    let below_root = decoded.strip_prefix('/')?;
    let below_root = below_root.strip_suffix('/').unwrap_or(below_root);
    let odd = |segment: &str| matches!(segment, "" | "." | "..");
    if below_root.split('/').any(odd) || decoded.contains(|c: char| c == '\\' || c.is_control()) {
        return None;
    }
    Some(format!("/{below_root}"))
}

pub(super) fn decode(path: &[u8]) -> Option<String> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path.iter();
    while let Some(&b) = rest.next() {
        out.push(match b {
            b'%' => {
                let mut digit = || char::from(*rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            b => b,
        });
    }
    String::from_utf8(out).ok()
}

fn is_administration(path: &str) -> bool {
    let name = path.strip_prefix("/v1/").or_else(|| path.strip_prefix('/')).unwrap_or(path);
    let first = name.split(['/', ';']).next().unwrap_or(name);
    ADMINISTRATION.iter().any(|a| a.eq_ignore_ascii_case(first))
}

/// Whether `path` is `prefix` or lies below it.
fn is_below(path: &str, prefix: &str) -> bool {
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::{PathKind, classify};
    use hyper::Method;

    fn check(method: &Method, path: &str, expected: PathKind) {
        assert_eq!(classify(method, path, &[]), expected, "{method} {path}");
    }

    #[test]
    fn inference_paths_get_a_shape_when_posted_to() {
        for path in
            ["/v1/chat/completions", "/v1/completions", "/rerank", "/tokenize", "/v1/images/generations"]
        {
            check(&Method::POST, path, PathKind::Inference);
            check(&Method::OPTIONS, path, PathKind::Other);
        }
    }

    #[test]
    fn other_paths_below_v1_are_passed_on_whatever_the_method() {
        for path in
            ["/v1/pooling", "/v1/audio/transcriptions", "/v1/images/edits", "/v1/models/%E6%A8%A1%E5%9E%8B"]
        {
            check(&Method::POST, path, PathKind::Other);
            check(&Method::DELETE, path, PathKind::Other);
        }
        check(&Method::GET, "/v1/models/org%2Fname", PathKind::Other);
        check(&Method::POST, "/v1/models", PathKind::Other);
    }

    #[test]
    fn own_paths_are_answered_here() {
        for path in ["/v1/models", "/v1/models/", "/health", "/version"] {
            check(&Method::GET, path, PathKind::Own);
            check(&Method::HEAD, path, PathKind::Own);
        }
    }

    #[test]
    fn no_spelling_of_an_administration_path_gets_through() {
        for path in [
            "/sleep",
            "/wake_up",
            "/metrics",
            "/slots",
            "/props",
            "/v1/load_lora_adapter",
            "/v1/unload_lora_adapter",
            "/v1/load_lora_adapter/",
            "/v1/LOAD_lora_adapter",
            "/v1/load%5Flora_adapter",
            "/v1//load_lora_adapter",
            "//v1/load_lora_adapter",
            "/v1/x/../load_lora_adapter",
            "/v1/x/%2e%2e/load_lora_adapter",
            "/v1/../sleep",
            "/v1/./load_lora_adapter",
            "/v1/%2e%2e/sleep",
            "/v1/%2e%2e%2fsleep",
            "/v1/..%5csleep",
            "/v1%2fmetrics",
            "/v1/load_lora_adapter;x=1",
            "/v1/load_lora_adapter%00",
            "/v1/slots/0",
            "/v1/chat/..",
            "/v1/%",
            "/v1/%zz",
            "/v1/%ff",
            "/v1",
            "/",
            "",
            "*",
            "v1/models",
            "/inference/v1/generate",
            "/v1/a//",
        ] {
            check(&Method::POST, path, PathKind::Refused);
            check(&Method::GET, path, PathKind::Refused);
        }
    }

    #[test]
    fn prefixes_of_the_configuration_are_passed_on_at_segment_ends() {
        let named = ["/pooling".to_owned(), "/inference/".to_owned(), "/v1/load_lora_adapter".to_owned()];
        let kind = |path| classify(&Method::POST, path, &named);
        assert_eq!(kind("/pooling"), PathKind::Other);
        assert_eq!(kind("/pooling/x"), PathKind::Other);
        assert_eq!(kind("/poolings"), PathKind::Refused);
        assert_eq!(kind("/inference/v1/generate"), PathKind::Other);
        assert_eq!(kind("/v1/load_lora_adapter"), PathKind::Other);
        assert_eq!(kind("/v1/unload_lora_adapter"), PathKind::Refused);
        assert_eq!(kind("/v1/chat/completions"), PathKind::Inference, "a prefix elsewhere changes nothing");
        assert_eq!(kind("/pooling/../sleep"), PathKind::Refused);
    }

    #[test]
    fn a_prefix_above_an_administration_path_does_not_name_it() {
        let all = ["/".to_owned()];
        assert_eq!(classify(&Method::GET, "/anything", &all), PathKind::Other);
        assert_eq!(classify(&Method::POST, "/v1/completions", &all), PathKind::Inference);
        assert_eq!(classify(&Method::POST, "/sleep", &all), PathKind::Refused);
        assert_eq!(classify(&Method::POST, "/sleep", &["/sleep".to_owned()]), PathKind::Other);
    }
}
