//! The program, started by the command lines that the vLLM production stack documents for its router, with ports and
//! addresses replaced.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;
use router_tests::backend::Backend;
use router_tests::client::{ask, post};
use router_tests::{process, wait};

/// `unlatch serve`, killed with its value.
struct Serve {
    child: Child,
    said: Arc<Mutex<String>>,
}

impl Serve {
    /// With what a test needs beside the documented words.
    fn start(program: PathBuf, line: &str) -> Self {
        let mut command = Command::new(program);
        command.args([
            "serve",
            "--kernel=off",
            "--gossip-dir=off",
            "--workers=1",
            "--admin-listen=127.0.0.1:0",
        ]);
        command.args(line.split_whitespace());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let said = process::hear(&mut child);
        Self { child, said }
    }

    fn said(&self) -> String {
        self.said.lock().clone()
    }

    /// Where it serves.
    fn addr(&mut self) -> SocketAddr {
        let mut addr = None;
        wait::until("the router serves", || {
            assert_eq!(self.child.try_wait().unwrap(), None, "{}", self.said());
            let said = self.said();
            let port = said.split("addr=0.0.0.0:").nth(1).and_then(|rest| rest.split_whitespace().next());
            addr = port.map(|port| SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap())));
            addr.is_some()
        });
        addr.unwrap()
    }

    /// How it ended by itself, and what it said.
    fn ended(&mut self) -> (Option<i32>, String) {
        wait::until("it ends", || self.child.try_wait().unwrap().is_some());
        let status = self.child.wait().unwrap();
        wait::until("its last words are heard", || Arc::strong_count(&self.said) == 1);
        (status.code(), self.said())
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// An engine that answers with the model it was asked for.
fn echo() -> Backend {
    Backend::start(|request, exchange| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        let form = || body.split("name=\"model\"\r\n\r\n").nth(1).and_then(|rest| rest.lines().next());
        let json = serde_json::from_str::<serde_json::Value>(&body).ok();
        let model = json.as_ref().and_then(|json| json["model"].as_str()).or_else(form);
        exchange.answer("200 OK", model.unwrap_or("none"))
    })
}

fn completion(model: &str) -> String {
    post("/v1/completions", &serde_json::json!({"model": model, "prompt": "hello"}).to_string())
}

/// A form as clients send speech.
fn speech(model: &str) -> String {
    let body = format!(
        "--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n--b\r\ncontent-disposition: \
         form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF\r\n--b--\r\n"
    );
    format!(
        "POST /v1/audio/transcriptions HTTP/1.1\r\nhost: h\r\ncontent-type: multipart/form-data; boundary=b\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

const OPT: &str = "facebook/opt-125m";
const LLAMA: &str = "meta-llama/Llama-3.1-8B-Instruct";

/// A request, and the model that the engine must be asked for.
type Asked = (String, &'static str);

/// Command lines with where they are documented, and what is asked of them. `A`, `B` and `C` stand for URLs of engines.
fn documented() -> Vec<(&'static str, String, Vec<Asked>)> {
    let both = || vec![(completion(OPT), OPT), (completion(LLAMA), LLAMA)];
    vec![
        (
            "the router's README, example 1",
            format!(
                "--port 8000 --service-discovery static --static-backends A,B,C --static-models {OPT},{LLAMA},{OPT} \
                 --static-aliases gpt4:{LLAMA} --static-model-types chat,chat,chat --static-backend-health-checks \
                 --engine-stats-interval 10 --log-stats --routing-logic roundrobin"
            ),
            [both(), vec![(completion("gpt4"), LLAMA)]].concat(),
        ),
        (
            "the router's run-router.sh, which gives one flag twice",
            format!(
                "--port 8000 --service-discovery static --static-backends A --static-models {OPT} --static-model-types \
                 chat --log-stats --log-stats-interval 10 --engine-stats-interval 10 --request-stats-window 10 \
                 --request-stats-window 10 --routing-logic roundrobin"
            ),
            vec![(completion(OPT), OPT)],
        ),
        (
            "the same, with sessions",
            format!(
                "--port 8000 --service-discovery static --static-backends A,B --static-models {OPT},{OPT} \
                 --engine-stats-interval 10 --log-stats --routing-logic session --session-key x-user-id"
            ),
            vec![(completion(OPT), OPT)],
        ),
        (
            "the tutorial on transcription by Whisper",
            "--host 0.0.0.0 --port 8000 --service-discovery static --static-backends A --static-models \
             openai/whisper-small --static-model-types transcription --routing-logic roundrobin --log-stats \
             --engine-stats-interval 10 --request-stats-window 10"
                .to_owned(),
            vec![(speech("openai/whisper-small"), "openai/whisper-small")],
        ),
        (
            "the Helm chart's deployment of the router, with static discovery",
            format!(
                "--host 0.0.0.0 --port 8000 --service-discovery static --static-backends A,B --static-models \
                 {OPT},{LLAMA} --routing-logic roundrobin --engine-stats-interval 15 --request-stats-window 60"
            ),
            both(),
        ),
        (
            "the change that added the threshold of prefix-aware routing",
            format!(
                "--port=8000 --service-discovery=static --static-backends=A,B --static-models={OPT},{OPT} \
                 --routing-logic=prefixaware --prefix-min-match-length=4096 \
                 --max-instance-failover-reroute-attempts=1"
            ),
            vec![(completion(OPT), OPT)],
        ),
        (
            "the router's README on dynamic configuration, YAML",
            "--port 8000 --dynamic-config-yaml YAML".to_owned(),
            [both(), vec![(completion("my-alias"), OPT), (completion("my-other-alias"), LLAMA)]].concat(),
        ),
        (
            "the controller of static routes, which writes JSON",
            "--port 8000 --dynamic-config-json JSON --service-discovery static --routing-logic roundrobin"
                .to_owned(),
            [both(), vec![(completion("my-alias"), LLAMA)]].concat(),
        ),
    ]
}

fn yaml(engines: &[String; 3]) -> String {
    let [a, b, c] = engines;
    format!(
        "service_discovery: static\nrouting_logic: roundrobin\nstatic_models:\n    {OPT}:\n        static_backends:\n\
         \x20           - {a}\n            - {c}\n        static_model_type: completion\n    {LLAMA}:\n        \
         static_backends:\n            - {b}\n        static_model_type: chat\nstatic_aliases:\n    \"my-alias\": \
         \"{OPT}\"\n    \"my-other-alias\": \"{LLAMA}\"\n"
    )
}

fn json(engines: &[String; 3]) -> String {
    serde_json::json!({
        "service_discovery": "static",
        "routing_logic": "roundrobin",
        "static_backends": engines.join(","),
        "static_models": format!("{OPT},{LLAMA},{OPT}"),
        "static_model_types": "completion,chat,completion",
        "static_aliases": format!("my-alias:{LLAMA},my-other-alias:{LLAMA}"),
    })
    .to_string()
}

#[test]
fn documented_command_lines_serve_requests() {
    let program = match process::program() {
        Ok(program) => program,
        Err(why) => return println!("SKIP documented_command_lines_serve_requests: {why}"),
    };
    let dir = tempfile::tempdir().unwrap();
    for (source, line, asked) in documented() {
        let engines = [echo(), echo(), echo()];
        let urls = engines.each_ref().map(|engine| format!("http://{}", engine.addr()));
        let (yaml_path, json_path) = (dir.path().join("c.yaml"), dir.path().join("c.json"));
        std::fs::write(&yaml_path, yaml(&urls)).unwrap();
        std::fs::write(&json_path, json(&urls)).unwrap();
        let mut line = line.replace("8000", "0").replace("YAML", yaml_path.to_str().unwrap());
        line = line.replace("JSON", json_path.to_str().unwrap());
        for (letter, url) in ["A", "B", "C"].iter().zip(&urls) {
            let of_list = |text: &str| text == *letter;
            line = line
                .split(' ')
                .map(|word| {
                    let (flag, list) = word.split_once('=').map_or(("", word), |(flag, list)| (flag, list));
                    let list: Vec<_> = list
                        .split(',')
                        .map(|entry| if of_list(entry) { url.as_str() } else { entry })
                        .collect();
                    let equals = if flag.is_empty() { "" } else { "=" };
                    format!("{flag}{equals}{}", list.join(","))
                })
                .collect::<Vec<_>>()
                .join(" ");
        }
        let mut router = Serve::start(program.clone(), &line);
        let addr = router.addr();
        for (request, model) in asked {
            let answer = ask(addr, request);
            assert_eq!((answer.status, &*answer.text()), (200, model), "{source}: {line}\n{}", router.said());
        }
        assert!(router.said().contains("is --listen 0.0.0.0:0 here"), "{source}: {}", router.said());
    }
}

#[test]
fn documented_command_lines_of_what_is_not_here_end_with_64_and_say_what() {
    let program = match process::program() {
        Ok(program) => program,
        Err(why) => {
            return println!(
                "SKIP documented_command_lines_of_what_is_not_here_end_with_64_and_say_what: {why}"
            );
        }
    };
    for (source, line, named) in [
        (
            "the tutorial on disaggregated prefill",
            "--port 0 --service-discovery static --static-backends http://localhost:8100,http://localhost:8200 \
             --static-models m,m --static-model-labels llama-prefill,llama-decode --log-stats --log-stats-interval 10 \
             --routing-logic disaggregated_prefill --prefill-model-labels llama-prefill --decode-model-labels \
             llama-decode",
            &["--prefill-model-labels", "--decode-model-labels"][..],
        ),
        (
            "the router's run-router.sh, with Kubernetes",
            "--port 0 --service-discovery k8s --k8s-label-selector release=test --k8s-namespace default --routing-logic \
             session --session-key x-user-id --engine-stats-interval 10 --log-stats",
            &["--k8s-label-selector", "--k8s-namespace", "--static-backends"],
        ),
        (
            "the router's README on the semantic cache",
            "--port 0 --service-discovery static --static-backends http://localhost:8000 --static-models m \
             --routing-logic roundrobin --feature-gates=SemanticCache=true --semantic-cache-model x \
             --semantic-cache-dir y --semantic-cache-threshold 0.95",
            &[
                "--feature-gates",
                "--semantic-cache-model",
                "--semantic-cache-dir",
                "--semantic-cache-threshold",
            ],
        ),
        ("a word that is neither's", "--port 0 --no-such-flag", &["--no-such-flag"]),
    ] {
        let (code, said) = Serve::start(program.clone(), line).ended();
        assert_eq!(code, Some(64), "{source}: {said}");
        for name in named {
            assert!(said.contains(name), "{source}: {name} is not named: {said}");
        }
    }
}

#[test]
fn a_dynamic_configuration_is_followed() {
    let program = match process::program() {
        Ok(program) => program,
        Err(why) => return println!("SKIP a_dynamic_configuration_is_followed: {why}"),
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.json");
    let [a, b, c] = [echo(), echo(), echo()];
    let one = |engine: &Backend, alias: &str| {
        let url = format!("http://{}", engine.addr());
        serde_json::json!({
            "service_discovery": "static",
            "routing_logic": "roundrobin",
            "static_backends": url,
            "static_models": OPT,
            "static_aliases": format!("{alias}:{OPT}"),
        })
        .to_string()
    };
    std::fs::write(&path, one(&a, "old")).unwrap();
    let mut router = Serve::start(program, &format!("--port 0 --dynamic-config-json {}", path.display()));
    let addr = router.addr();
    assert_eq!(ask(addr, completion("old")).text(), OPT);
    std::fs::write(&path, "{\"routing_logic\": 1, \"k8s_port\": 1}").unwrap();
    wait::until("a bad file is said", || router.said().contains("configuration not reloaded"));
    assert_eq!((ask(addr, completion("old")).status, a.received().len()), (200, 2), "and changes nothing");
    std::fs::write(&path, one(&b, "new")).unwrap();
    // Who is replaced serves until the other is ready; by turns, two requests tell who is there.
    wait::until("the new engine alone serves", || {
        let before = b.received().len();
        [(); 2].map(|()| ask(addr, completion("new")).status) == [200; 2] && b.received().len() == before + 2
    });
    let before = a.received().len();
    assert_eq!(ask(addr, completion("old")).status, 404);
    assert_eq!(ask(addr, completion("new")).status, 200);
    assert_eq!((a.received().len(), c.received().len()), (before, 0));
}
