//! Paths of the admin plane. Pure.

use hyper::{Method, Uri};
use router_policy::BackendId;

use crate::backends::EngineId;
use crate::observe::status::BackendStatus;

/// What a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route<'a> {
    Page,
    Metrics,
    Status,
    Healthz,
    Readyz,
    Events,
    Reload,
    Backends,
    Backend(Id<'a>, OfBackend<'a>),
}

/// What of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfBackend<'a> {
    Itself,
    Drain,
    Undrain,
    Sleep,
    WakeUp,
    IsSleeping,
    /// A path of the engine's own, with its leading slash.
    Engine(&'a str),
}

/// A backend as a path names it, by its row or its engine's id; not yet looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id<'a>(pub(super) &'a str);

impl Id<'_> {
    /// The row that it is.
    pub(super) fn row(self) -> Option<BackendId> {
        let is_number = !self.0.is_empty() && self.0.len() <= 4 && self.0.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| self.0.parse().ok()).flatten().and_then(BackendId::new)
    }

    /// The engine's id that it is.
    pub(super) fn engine(self) -> Option<EngineId> {
        EngineId::parse(self.0)
    }

    /// Whether it names this one.
    pub(super) fn names(self, backend: &BackendStatus) -> bool {
        match self.row() {
            Some(row) => row == backend.id,
            None => self.engine() == Some(EngineId::of(&backend.url)),
        }
    }
}

/// Every path, for who asks for none of them.
pub(super) const PATHS: &str = "/, /events, /metrics, /status, /healthz, /readyz, /reload, /backends, /backends/ID, and below \
                                /backends/ID: drain, undrain, sleep, wake_up, is_sleeping, engine/PATH";

/// The path of a backend for a call that names its engine in the query, as in the vLLM production stack:
/// `/sleep?id=ENGINE_ID`. `None` for any other call.
pub(super) fn by_engine_id(uri: &Uri) -> Option<Uri> {
    let (path, query) = (uri.path(), uri.query()?);
    if !["/sleep", "/wake_up", "/is_sleeping"].contains(&path) {
        return None;
    }
    let id = query.split('&').find_map(|pair| pair.strip_prefix("id="))?;
    // Anything else would be part of the path.
    let id = if id.bytes().all(|b| b.is_ascii_alphanumeric()) { id } else { "none" };
    let rest: Vec<_> = query.split('&').filter(|pair| !pair.starts_with("id=")).collect();
    let mark = if rest.is_empty() { "" } else { "?" };
    format!("/backends/{id}{path}{mark}{}", rest.join("&")).parse().ok()
}

impl<'a> Route<'a> {
    /// What a path names.
    pub(super) fn of(path: &'a str) -> Option<Self> {
        Some(match path {
            "/" => Self::Page,
            "/metrics" => Self::Metrics,
            "/status" => Self::Status,
            "/healthz" => Self::Healthz,
            "/readyz" => Self::Readyz,
            "/events" => Self::Events,
            "/reload" => Self::Reload,
            "/backends" => Self::Backends,
            _ => {
                let rest = path.strip_prefix("/backends/")?;
                let (id, rest) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
                let of = match rest {
                    "" => OfBackend::Itself,
                    "/drain" => OfBackend::Drain,
                    "/undrain" => OfBackend::Undrain,
                    "/sleep" => OfBackend::Sleep,
                    "/wake_up" => OfBackend::WakeUp,
                    "/is_sleeping" => OfBackend::IsSleeping,
                    _ => OfBackend::Engine(rest.strip_prefix("/engine").filter(|p| p.starts_with('/'))?),
                };
                Self::Backend(Id(id), of)
            }
        })
    }

    /// The methods it takes, as `Allow` lists them.
    pub(super) const fn allow(self) -> &'static str {
        match self {
            Self::Backends => "GET, HEAD, POST, OPTIONS",
            Self::Backend(_, OfBackend::Itself) => "GET, HEAD, DELETE, OPTIONS",
            Self::Backend(_, OfBackend::Engine(_)) => "any method",
            Self::Reload
            | Self::Backend(
                _,
                OfBackend::Drain | OfBackend::Undrain | OfBackend::Sleep | OfBackend::WakeUp,
            ) => "POST, OPTIONS",
            _ => "GET, HEAD, OPTIONS",
        }
    }

    /// Whether it takes a method.
    pub(super) fn takes(self, method: &Method) -> bool {
        matches!(self, Self::Backend(_, OfBackend::Engine(_)))
            || self.allow().split(", ").any(|allowed| allowed == method.as_str())
    }

    /// Whether a call that it takes needs the right to change something. What an engine answers at a path of its own
    /// may hold prompts, and a GET there may change something.
    pub(super) fn needs_right(self, method: &Method) -> bool {
        let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(method);
        !reads || matches!(self, Self::Backend(_, OfBackend::Engine(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::{Id, OfBackend, Route, Uri, by_engine_id};
    use hyper::Method;

    #[test]
    fn paths_name_what_the_documentation_says() {
        let of = |what| Some(Route::Backend(Id("7"), what));
        for (path, route) in [
            ("/", Some(Route::Page)),
            ("/metrics", Some(Route::Metrics)),
            ("/backends", Some(Route::Backends)),
            ("/backends/7", of(OfBackend::Itself)),
            ("/backends/7/drain", of(OfBackend::Drain)),
            ("/backends/7/undrain", of(OfBackend::Undrain)),
            ("/backends/7/sleep", of(OfBackend::Sleep)),
            ("/backends/7/wake_up", of(OfBackend::WakeUp)),
            ("/backends/7/is_sleeping", of(OfBackend::IsSleeping)),
            ("/backends/7/engine/metrics", of(OfBackend::Engine("/metrics"))),
            ("/backends/7/engine/", of(OfBackend::Engine("/"))),
            ("/backends/7/engine/v1/load_lora_adapter", of(OfBackend::Engine("/v1/load_lora_adapter"))),
            ("/backends/7/engine", None),
            ("/backends/7/engines/x", None),
            ("/backends/7/", None),
            ("/backends/7/drain/", None),
            ("/metrics/", None),
            ("/../metrics", None),
            ("", None),
            ("*", None),
        ] {
            assert_eq!(Route::of(path), route, "{path}");
        }
    }

    #[test]
    fn the_documentation_has_every_route_with_its_right() {
        let text = include_str!("../../../../docs/admin.md");
        let mut documented = Vec::new();
        for line in text.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<_> = line.split('|').map(str::trim).collect();
            let (method, path) = cells[1].trim_matches('`').split_once(' ').unwrap();
            let path = path.replace("{id}", "7");
            let route = Route::of(&path).unwrap_or_else(|| panic!("{path} is none"));
            let method: Method = method.parse().unwrap();
            assert!(route.takes(&method), "{method} {path}");
            assert_eq!(route.needs_right(&method), cells[2] == "yes", "{method} {path}");
            documented.push(format!("{route:?}"));
        }
        documented.sort();
        documented.dedup();
        assert_eq!(documented.len(), 8 + 7, "routes without a backend, and what there is of one");
    }

    #[test]
    fn an_engine_may_be_named_in_the_query() {
        let of = |uri: &'static str| by_engine_id(&Uri::from_static(uri)).map(|uri| uri.to_string());
        for (uri, path) in [
            ("/sleep?id=0123456789abcdef", Some("/backends/0123456789abcdef/sleep")),
            ("/sleep?level=1&id=ab&x=2", Some("/backends/ab/sleep?level=1&x=2")),
            ("/is_sleeping?id=a/../b", Some("/backends/none/is_sleeping")),
            ("/sleep?level=1", None),
            ("/reload?id=ab", None),
        ] {
            assert_eq!(of(uri).as_deref(), path, "{uri}");
        }
    }

    #[test]
    fn rows_are_numbers_of_the_table() {
        for (id, row) in [("0", Some(0)), ("255", Some(255)), ("007", Some(7))] {
            assert_eq!(Id(id).row().map(|id| id.index()), row, "{id}");
        }
        for none in ["", "-1", "+1", "1.0", "9999", "00000", "x", "0123456789abcdef", "٣"] {
            assert_eq!(Id(none).row(), None, "{none}");
        }
    }

    #[test]
    fn what_changes_something_needs_the_right_and_reading_does_not() {
        for (method, path, takes, needs) in [
            (Method::GET, "/", true, false),
            (Method::HEAD, "/status", true, false),
            (Method::POST, "/status", false, true),
            (Method::GET, "/backends", true, false),
            (Method::POST, "/backends", true, true),
            (Method::PUT, "/backends", false, true),
            (Method::GET, "/backends/1", true, false),
            (Method::DELETE, "/backends/1", true, true),
            (Method::POST, "/backends/1", false, true),
            (Method::POST, "/backends/1/drain", true, true),
            (Method::GET, "/backends/1/drain", false, false),
            (Method::POST, "/reload", true, true),
            (Method::GET, "/reload", false, false),
            (Method::GET, "/backends/1/is_sleeping", true, false),
            (Method::POST, "/backends/1/sleep", true, true),
            (Method::GET, "/backends/1/engine/metrics", true, true),
            (Method::HEAD, "/backends/1/engine/metrics", true, true),
            (Method::OPTIONS, "/backends/1/engine/metrics", true, true),
            (Method::PATCH, "/backends/1/engine/x", true, true),
        ] {
            let route = Route::of(path).unwrap();
            assert_eq!((route.takes(&method), route.needs_right(&method)), (takes, needs), "{method} {path}");
        }
    }
}
