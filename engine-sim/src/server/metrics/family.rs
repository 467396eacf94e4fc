//! Metric families before they are text, and the text they become.

use std::fmt::Write;

/// What `# TYPE` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Gauge,
    Counter,
}

/// The series of one name.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Family {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
    pub(super) samples: Vec<Sample>,
}

/// One series and its value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    /// As between the braces, already escaped; empty for none.
    pub(super) labels: String,
    pub(super) value: f64,
}

impl Family {
    pub(super) fn gauge(name: &str, help: &'static str, labels: &str, value: impl Into<f64>) -> Self {
        Self::one(Kind::Gauge, name, help, labels, value.into())
    }

    pub(super) fn counter(name: &str, help: &'static str, labels: &str, value: u64) -> Self {
        Self::one(Kind::Counter, name, help, labels, value as f64)
    }

    /// A series for each of these labels, beside the common ones.
    pub(super) fn each(
        kind: Kind,
        name: &str,
        help: &'static str,
        labels: &str,
        series: &[(&str, u64)],
    ) -> Self {
        let sample = |(label, value): &(&str, u64)| Sample {
            labels: format!("{labels},{label}"),
            value: *value as f64,
        };
        Self { name: name.to_owned(), kind, help, samples: series.iter().map(sample).collect() }
    }

    fn one(kind: Kind, name: &str, help: &'static str, labels: &str, value: f64) -> Self {
        let samples = vec![Sample { labels: labels.to_owned(), value }];
        Self { name: name.to_owned(), kind, help, samples }
    }
}

/// The text exposition.
pub(super) fn render(families: &[Family]) -> String {
    let mut text = String::with_capacity(4096);
    for Family { name, kind, help, samples } in families {
        let kind = match kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        };
        push_line(&mut text, format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
        for Sample { labels, value } in samples {
            match labels.as_str() {
                "" => push_line(&mut text, format_args!("{name} {value}")),
                labels => push_line(&mut text, format_args!("{name}{{{labels}}} {value}")),
            }
        }
    }
    text
}

/// A label value as the format wants it.
pub(super) fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn push_line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("invariant: writing to a string cannot fail");
}
