use std::io;
use std::path::Path;

use super::super::BackendConfig;
use super::{BackendsFile, parse};

fn read(path: &Path) -> io::Result<String> {
    match path.to_str() {
        Some("key") => Ok("sk-secret\n".to_owned()),
        _ => Err(io::Error::from(io::ErrorKind::NotFound)),
    }
}

fn list(name: &str, text: &str) -> Vec<BackendConfig> {
    parse(Path::new(name), text, &read).unwrap_or_else(|e| panic!("{e}"))
}

fn error(name: &str, text: &str) -> String {
    parse(Path::new(name), text, &read).unwrap_err().to_string()
}

const TOML: &str = r#"
backends = ["http://10.0.0.1:8000,model=m,alias=a,max-in-flight=9"]
"#;

const TOML_TABLES: &str = r#"
[[backends]]
url = "http://10.0.0.1:8000"
model = "m"
alias = "a"
max-in-flight = 9

[[backends]]
url = "srv+http://_http._tcp.engines.example/base"
weight = 0.5
labels = { zone = "a", tier = "b" }
api-key-file = "key"
engine = "vllm"
metrics-port = 8002
"#;

const JSON: &str = r#"[
  {"url": "http://10.0.0.1:8000", "model": "m", "alias": ["a"], "max-in-flight": 9},
  {"url": "srv+http://_http._tcp.engines.example/base", "weight": 0.5, "labels": {"zone": "a", "tier": "b"},
   "api-key-file": "key", "engine": "vllm", "metrics-port": 8002}
]"#;

const YAML: &str = "
# engines
backends:
- http://10.0.0.1:8000,model=m,alias=a,max-in-flight=9
- url: srv+http://_http._tcp.engines.example/base
  weight: 0.5
  labels: zone:a;tier:b
  api-key-file: key
  engine: vllm
  metrics-port: 8002
";

#[test]
fn all_notations_say_the_same() {
    let wanted = list("b.toml", TOML_TABLES);
    assert_eq!(wanted.len(), 2);
    assert_eq!(wanted[0].spec.aliases, ["a"]);
    assert_eq!(wanted[1].api_key.as_ref().unwrap().reveal(), "sk-secret");
    let sorted = |mut all: Vec<BackendConfig>| {
        all.iter_mut().for_each(|b| b.labels.sort());
        all
    };
    let wanted = sorted(wanted);
    assert_eq!(sorted(list("b.json", JSON)), wanted);
    assert_eq!(sorted(list("b.yaml", YAML)), wanted);
    assert_eq!(sorted(list("b.json", &format!("{{\"backends\": {JSON}}}"))), wanted);
    // YAML is read where JSON stands, too.
    assert_eq!(sorted(list("b.yml", JSON)), wanted);
    assert_eq!(list("b.toml", TOML), wanted[..1]);
}

#[test]
fn an_empty_list_is_said_so() {
    for (name, text) in
        [("b.toml", "backends = []"), ("b.json", "[]"), ("b.yaml", "backends: []"), ("b.yml", "[]")]
    {
        assert!(list(name, text).is_empty());
    }
    for name in ["b.toml", "b.json", "b.yaml"] {
        assert!(error(name, " \n").starts_with(&format!("{name}: the file is empty")), "{name}");
    }
}

#[test]
fn errors_name_file_line_entry_and_key() {
    for (name, text, message) in [
        ("b.toml", "x = 1\n", "b.toml:1: x: no such key; only `backends`"),
        ("b.toml", "# nothing\n", "b.toml:1: there must be one list `backends`"),
        ("b.toml", "backends = 1\n", "b.toml:1: a list of backends is wanted, not a number"),
        ("b.toml", "backends = [\n", "b.toml:1: "),
        (
            "b.toml",
            "backends = [\n\"http://a\",\n\"h\"]\n",
            "b.toml:3: entry 2: `h` is no URL like http://host:port",
        ),
        ("b.toml", "[[backends]]\nmodel = \"m\"\n", "b.toml:1: entry 1: there must be one `url`"),
        (
            "b.toml",
            "[[backends]]\nurl = \"http://a\"\n\nmodel = 1.10\n",
            "b.toml:4: entry 1: model: 1.10 is a number; write it in quotes",
        ),
        ("b.json", "[1]", "b.json: entry 1: an URL or a table is wanted, not a number"),
        ("b.json", "[\n{]", "b.json:2: "),
        ("b.json", r#"[{"url": "http://a", "url": "http://b"}]"#, "b.json: entry 1: there must be one `url`"),
        (
            "b.json",
            r#"[{"url": "http://a", "model": "m", "model": "n"}]"#,
            "b.json: entry 1: model: given twice",
        ),
        (
            "b.json",
            r#"[{"url": "http://a", "model": true}]"#,
            "b.json: entry 1: model: a truth value is not allowed here",
        ),
        ("b.json", r#"{"backends": [], "backends": []}"#, "b.json: there must be one list `backends`"),
        ("b.json", "null", "b.json: a list of backends is wanted, not nothing"),
        (
            "b.yaml",
            "- url: http://a\n  weight: 1\n  max-inflight: 4\n",
            "b.yaml:3: entry 1: max-inflight: no such option",
        ),
        ("b.yaml", "- url: http://a\n  alias: [x]\n", "b.yaml:1: entry 1: alias needs model"),
        ("b.yaml", "- url: http://a\n  model:\n", "b.yaml:2: entry 1: model: nothing is not allowed here"),
        ("b.yaml", "- url: http://a\n  model: ''\n", "b.yaml:2: entry 1: model: there is no value"),
        ("b.yaml", "- http://a\n- http://a/v2\n", "b.yaml:2: entry 2: http://a/v2 is given twice"),
        (
            "b.yaml",
            "- url: http://a\n  labels:\n    k: [v]\n",
            "b.yaml:3: entry 1: labels: a list is not allowed here",
        ),
        (
            "b.yaml",
            "- url: http://a\n  api-key-file: none\n",
            "b.yaml:2: entry 1: api-key-file: cannot read none",
        ),
        ("b.yaml", "- url: http://u:sk-p@a\n", "b.yaml:1: entry 1: the URL holds credentials"),
    ] {
        let got = error(name, text);
        assert!(got.starts_with(message), "{text:?}: {got}");
    }
}

#[test]
fn more_backends_than_there_are_rows_are_refused() {
    let text: String = (1..=257).map(|port| format!("- http://h:{port}\n")).collect();
    assert_eq!(error("b.yaml", &text), "b.yaml:257: entry 257: more than 256 backends");
}

#[test]
fn a_file_without_a_known_notation_is_refused() {
    assert!(BackendsFile::new("/etc/b.txt".into()).is_err());
    assert!(BackendsFile::new("/etc/b.yaml".into()).is_ok());
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(500))]
    #[test]
    fn no_text_panics(
        text in "(- |\\[|\\]|\\{|\\}|:|,|\n|  |url|model|alias|labels|weight|backends|=|\"|http://a|:1|srv\\+|k:v|0.5|\\PC){0,40}",
    ) {
        for name in ["b.toml", "b.json", "b.yaml"] {
            let _any = parse(Path::new(name), &text, &read);
        }
    }
}
