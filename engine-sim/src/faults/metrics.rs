//! What can be wrong with `/metrics`, and whose names it has.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Everything wrong with `/metrics`. Names are those of whole families, as in `vllm:num_requests_running`.
///
/// JSON, which `trtllm-serve` has there, has no families: only `delay_ms` and `page` spoil it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsFaults {
    /// Another dialect than the engine was started with.
    pub dialect: Option<Dialect>,
    /// Time until it answers.
    pub delay_ms: u64,
    /// Something else than metrics.
    pub page: Option<Page>,
    /// Left out.
    pub missing: Vec<String>,
    /// From the right name to the one written.
    pub renamed: BTreeMap<String, String>,
    /// Stay at the values they had when this was set.
    pub frozen: Vec<String>,
    /// `NaN`.
    pub nan: Vec<String>,
    /// Every value is 0.
    pub all_zero: bool,
}

/// What comes in place of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Page {
    /// 200 with a page for people, as of a proxy in between.
    Html,
    /// 401.
    Unauthorized,
    /// 500.
    Error,
    /// 200 without a byte.
    Empty,
}

/// Whose names `/metrics` has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// vLLM 0.9 and later.
    #[default]
    Vllm,
    /// SGLang.
    Sglang,
    /// Hugging Face's text-generation-inference.
    Tgi,
    /// llama.cpp's server with `--metrics`; it has `/slots` too.
    LlamaCpp,
    /// `trtllm-serve`: JSON at `/metrics`, text at `/prometheus/metrics`.
    TrtLlm,
}

impl Dialect {
    /// Every dialect by the name that flags and JSON take.
    pub const ALL: [(&'static str, Self); 5] = [
        ("vllm", Self::Vllm),
        ("sglang", Self::Sglang),
        ("tgi", Self::Tgi),
        ("llamacpp", Self::LlamaCpp),
        ("trtllm", Self::TrtLlm),
    ];
}

/// No dialect has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown dialect '{0}', use one of vllm, sglang, tgi, llamacpp, trtllm")]
pub struct UnknownDialect(String);

impl FromStr for Dialect {
    type Err = UnknownDialect;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, dialect)| dialect).ok_or_else(|| UnknownDialect(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dialect_has_one_name_in_flags_and_json() {
        for (name, dialect) in Dialect::ALL {
            assert_eq!(name.parse(), Ok(dialect));
            assert_eq!(serde_json::to_value(dialect).unwrap(), name);
        }
        let error = "triton".parse::<Dialect>().unwrap_err().to_string();
        assert!(Dialect::ALL.iter().all(|(name, _)| error.contains(name)), "{error}");
    }
}
