//! Their words as settings of ours, each with a notice of our name for it.

use super::super::settings::{ConfigError, Key, Setting, Settings, Source};
use super::flags::{FLAGS, Means};
use super::{Given, backends};

/// Settings of ours, and what people are told.
#[derive(Clone, Debug, Default)]
pub struct Translated {
    /// The settings.
    pub settings: Settings,
    /// One line for each of their words, with ours.
    pub notices: Vec<String>,
}

/// Translates. `ours` is what was given in our own words: a flag of ours and one of theirs must not both say the same
/// thing.
///
/// # Errors
/// Their words that have no meaning here, all of them at once; a wrong value; a contradiction.
pub fn translate(given: &Given, ours: &Settings) -> Result<Translated, ConfigError> {
    refuse_lacking(given)?;
    let mut t = Translator { given, ours, out: Translated::default() };
    t.listen()?;
    t.discovery()?;
    t.backends()?;
    t.probes()?;
    t.policy()?;
    t.times()?;
    t.logs()?;
    t.number("max-instance-failover-reroute-attempts", "reroutes-max")?;
    t.no_effects()?;
    Ok(t.out)
}

/// Names every word that is lacking.
fn refuse_lacking(given: &Given) -> Result<(), ConfigError> {
    let lacking = FLAGS.iter().filter_map(|flag| match flag.means {
        Means::Lacking(instead) => given.get(flag.name).map(|setting| (&setting.source, instead)),
        Means::Ours(_) | Means::NoEffect(_) => None,
    });
    let (mut names, mut why) = (Vec::new(), Vec::<&str>::new());
    for (source, instead) in lacking {
        names.push(source.to_string());
        if !why.contains(&instead) {
            why.push(instead);
        }
    }
    if names.is_empty() {
        return Ok(());
    }
    let message = format!("the vLLM production stack's, and not here: {}", why.join("; "));
    Err(ConfigError { at: names.join(", "), message })
}

struct Translator<'a> {
    given: &'a Given,
    ours: &'a Settings,
    out: Translated,
}

impl Translator<'_> {
    fn listen(&mut self) -> Result<(), ConfigError> {
        let (host, port) = (self.given.get("host"), self.given.get("port"));
        let Some(setting) = port.or(host) else { return Ok(()) };
        let ip = match host.map(|h| h.text.as_str()) {
            None | Some("") => "0.0.0.0",
            Some("localhost") => "127.0.0.1",
            Some(host) => host,
        };
        let Ok(ip) = ip.trim_matches(['[', ']']).parse::<std::net::IpAddr>() else {
            return Err(ConfigError::at(
                &host.unwrap_or(setting).source,
                format!("`{ip}` is no address like 0.0.0.0 or ::"),
            ));
        };
        let port = match port {
            None => 8001,
            Some(p) => p.text.parse().map_err(|_| {
                ConfigError::at(&p.source, format!("`{}` is no port from 0 to 65535", p.text))
            })?,
        };
        let addr = std::net::SocketAddr::from((ip, port)).to_string();
        self.set("listen", addr.clone(), setting)?;
        for name in ["host", "port"] {
            self.notice(name, &format!("--listen {addr}"));
        }
        Ok(())
    }

    fn discovery(&self) -> Result<(), ConfigError> {
        match self.given.get("service-discovery") {
            None => Ok(()),
            Some(s) if s.text == "static" => Ok(()),
            Some(s) => Err(ConfigError::at(
                &s.source,
                format!(
                    "`{}` is the vLLM production stack's, and not here: name the engines by --static-backends, or by \
                     a DNS name in --backend",
                    s.text
                ),
            )),
        }
    }

    fn backends(&mut self) -> Result<(), ConfigError> {
        let given = self.given;
        let texts = backends::backends(given)?;
        if let Some(setting) = given.get("static-backends") {
            for text in texts {
                self.set("backend", text, setting)?;
            }
        }
        for pair in backends::aliases(given)? {
            let setting = given.get("static-aliases").unwrap_or_else(|| unreachable!("it has the pairs"));
            self.set("model-alias", pair, setting)?;
        }
        for (name, here) in [
            ("static-backends", "--backend URL, once an engine"),
            ("static-models", "model= in --backend"),
            ("static-model-types", "types= in --backend"),
            ("static-model-labels", "labels=model:… in --backend"),
            ("static-aliases", "--model-alias ALIAS:MODEL, once an alias"),
        ] {
            self.notice(name, here);
        }
        Ok(())
    }

    /// Asking engines for a token: on or off, how often, and how long to wait.
    fn probes(&mut self) -> Result<(), ConfigError> {
        let given = self.given;
        let interval = given.get("static-backend-health-check-interval");
        if given.is_on("static-backend-health-checks")
            && let Some(setting) = given.get("static-backend-health-checks")
        {
            if given.get("static-model-types").is_none() {
                let message = "needs --static-model-types, by which engines are asked";
                return Err(ConfigError::at(&setting.source, message));
            }
            let every = interval.map_or_else(|| Ok("60s".to_owned()), seconds)?;
            self.notice("static-backend-health-checks", &format!("--inference-probe {every}"));
            self.set("inference-probe", every, interval.unwrap_or(setting))?;
        }
        self.notice("static-backend-health-check-interval", "--inference-probe, where that is on,");
        for name in ["backend-health-check-timeout-seconds", "static-backend-health-check-timeout-seconds"] {
            if let Some(setting) = given.get(name) {
                let timeout = seconds(setting)?;
                self.notice(name, &format!("--inference-probe-timeout {timeout}"));
                self.set("inference-probe-timeout", timeout, setting)?;
            }
        }
        Ok(())
    }

    fn policy(&mut self) -> Result<(), ConfigError> {
        if let Some(setting) = self.given.get("routing-logic") {
            let policy = match setting.text.as_str() {
                "roundrobin" => "round-robin",
                "session" => "session",
                "prefixaware" => "prefix-threshold",
                other => return Err(ConfigError::at(&setting.source, other_logic(other))),
            };
            let has_key = self.given.get("session-key").is_some() || !self.ours.all("session-key").is_empty();
            if policy == "session" && !has_key {
                let message = "`session` needs --session-key, the header that names the session";
                return Err(ConfigError::at(&setting.source, message));
            }
            self.set("policy", policy.to_owned(), setting)?;
            let below = " (below --prefix-min-match by --fallback, least-in-flight unless it is given)";
            let more = if policy == "prefix-threshold" { below } else { "" };
            self.notice("routing-logic", &format!("--policy {policy}{more}"));
        }
        if let Some(setting) = self.given.get("session-key") {
            self.set("session-key", setting.text.clone(), setting)?;
        }
        self.number("prefix-min-match-length", "prefix-min-match")?;
        if let Some(setting) = self.given.get("prefixaware-fallback") {
            let fallback = match setting.text.as_str() {
                "qps" => "lowest-qps",
                "leastinflight" => "least-in-flight",
                other => {
                    let message = format!("`{other}` is none of qps, leastinflight");
                    return Err(ConfigError::at(&setting.source, message));
                }
            };
            self.set("fallback", fallback.to_owned(), setting)?;
            self.notice("prefixaware-fallback", &format!("--fallback {fallback}"));
        }
        Ok(())
    }

    fn times(&mut self) -> Result<(), ConfigError> {
        for (theirs, ours) in
            [("engine-stats-interval", "scrape-interval"), ("request-stats-window", "request-stats-window")]
        {
            let Some(setting) = self.given.get(theirs) else { continue };
            let text = seconds(setting)?;
            self.notice(theirs, &format!("--{ours} {text}"));
            self.set(ours, text, setting)?;
        }
        Ok(())
    }

    fn logs(&mut self) -> Result<(), ConfigError> {
        if let Some(setting) = self.given.get("log-level") {
            let level = match setting.text.as_str() {
                "critical" => "error",
                "warning" => "warn",
                same => same,
            };
            self.set("log-level", level.to_owned(), setting)?;
            if level != setting.text {
                self.notice("log-level", &format!("--log-level {level}"));
            }
        }
        match self.given.get("log-format") {
            Some(setting) => self.set("log-format", setting.text.clone(), setting),
            None => Ok(()),
        }
    }

    fn no_effects(&mut self) -> Result<(), ConfigError> {
        if let Some(setting) = self.given.get("request-rewriter").filter(|s| s.text != "noop") {
            let message = format!("`{}` is not here: bodies are passed on as they came", setting.text);
            return Err(ConfigError::at(&setting.source, message));
        }
        for flag in &FLAGS {
            if let Means::NoEffect(why) = flag.means
                && self.given.get(flag.name).is_some()
            {
                self.out.notices.push(format!("--{} has no effect here: {why}", flag.name));
            }
        }
        for name in ["dynamic-config-json", "dynamic-config-yaml"] {
            self.notice(name, "--config FILE, a TOML file of our keys");
        }
        Ok(())
    }

    /// A whole number, taken as it is: our key has the bounds.
    fn number(&mut self, theirs: &str, ours: &'static str) -> Result<(), ConfigError> {
        let Some(setting) = self.given.get(theirs) else { return Ok(()) };
        if setting.text.parse::<u64>().is_err() {
            let message = format!("`{}` is no whole number from 0 on", setting.text);
            return Err(ConfigError::at(&setting.source, message));
        }
        self.set(ours, setting.text.clone(), setting)?;
        self.notice(theirs, &format!("--{ours} {}", setting.text));
        Ok(())
    }

    /// Adds a setting of ours, unless a flag of ours says the same.
    fn set(&mut self, name: &'static str, text: String, from: &Setting) -> Result<(), ConfigError> {
        let key = Key::find(name).unwrap_or_else(|| unreachable!("invariant: `{name}` is a key"));
        if self.ours.all(name).iter().any(|s| matches!(s.source, Source::Flag(_))) {
            return Err(ConfigError::at(&from.source, format!("--{name} is given too, which says the same")));
        }
        self.out.settings.add(key, text, from.source.clone());
        Ok(())
    }

    fn notice(&mut self, name: &str, here: &str) {
        if self.given.get(name).is_some() {
            self.out.notices.push(format!("--{name} is {here} here"));
        }
    }
}

/// A number of seconds without a unit, with ours; fractions too, as some of its versions take them.
fn seconds(setting: &Setting) -> Result<String, ConfigError> {
    let text = setting.text.as_str();
    if text.parse::<f64>().is_ok_and(|n| n.is_finite() && n > 0.0) {
        return Ok(format!("{text}s"));
    }
    Err(ConfigError::at(&setting.source, format!("`{text}` is no number of seconds above 0")))
}

fn other_logic(name: &str) -> String {
    let instead = match name {
        "kvaware" => "--policy prefix-cost knows what was placed where, without LMCache's controller",
        "disaggregated_prefill" | "disaggregated_prefill_orchestrated" => {
            "prefill and decode are not placed apart"
        }
        "priority" | "loadaware" | "leastloaded" => "--policy least-in-flight is the nearest",
        _ => "there are roundrobin, session and prefixaware, and those of --policy",
    };
    format!("`{name}` is the vLLM production stack's, and not here: {instead}")
}
