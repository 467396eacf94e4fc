//! A headless Chromium, driven by its DevTools protocol over a pair of pipes: no port, no other program.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use router_tests::wait::{self, DEADLINE};
use serde_json::{Value, json};

/// The program, or why the test that wants it is skipped.
fn program() -> Result<PathBuf, String> {
    if let Some(named) = std::env::var_os("UNLATCH_CHROMIUM") {
        return Ok(named.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join("chromium")).find(|file| file.is_file());
    found.ok_or_else(|| "no chromium on the path; cargo xtask setup installs it where it may".to_owned())
}

/// A browser with one page.
pub(crate) struct Page {
    browser: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    session: String,
    last_id: u64,
    /// What came that was no answer, oldest first.
    events: VecDeque<Value>,
    /// Its profile; gone with it.
    _profile: tempfile::TempDir,
}

impl Page {
    /// Opens an empty page; `None` where there is no browser, which is said.
    #[track_caller]
    pub(crate) fn open(test: &str) -> Option<Self> {
        let program = match program() {
            Ok(program) => program,
            Err(why) => {
                println!("SKIP {test}: {why}");
                return None;
            }
        };
        let profile = tempfile::tempdir().unwrap();
        // The protocol is spoken over descriptors 3 and 4, which only a shell can name without unsafe code.
        let script = r#"exec "$@" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null"#;
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(program).args([
            "--headless=new",
            "--remote-debugging-pipe",
            // It is run by root in CI, where its sandbox cannot be; what it loads is ours.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-extensions",
            "--no-first-run",
            "--window-size=1280,900",
        ]);
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        let mut browser = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, stdout) = (browser.stdin.take().unwrap(), browser.stdout.take().unwrap());
        let (heard, from) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(stdout).split(0) {
                let Ok(message) = message else { break };
                if heard.send(serde_json::from_slice(&message).unwrap()).is_err() {
                    break;
                }
            }
        });
        let (session, last_id, events) = Default::default();
        let mut page = Self { browser, to, from, session, last_id, events, _profile: profile };
        let target = page.ask("Target.createTarget", json!({"url": "about:blank"}))["targetId"].take();
        let attached = page.ask("Target.attachToTarget", json!({"targetId": target, "flatten": true}));
        page.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            page.ask(&format!("{domain}.enable"), json!({}));
        }
        Some(page)
    }

    /// Asks and waits for the answer.
    #[track_caller]
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let id = self.last_id;
        let mut message = json!({"id": id, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        let end = Instant::now() + DEADLINE * 3;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let mut message = self.from.recv_timeout(left).unwrap_or_else(|e| panic!("{method}: {e}"));
            if message["id"] == id {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].take();
            }
            self.events.push_back(message);
        }
    }

    /// What an expression is in the page; promises are waited for.
    #[track_caller]
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut answer = self.ask("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{expression:.300}: {answer}");
        answer["result"]["value"].take()
    }

    /// Waits until an expression is true in the page.
    #[track_caller]
    pub(crate) fn wait(&mut self, rule: &str, expression: &str) {
        wait::until(rule, || self.eval(expression) == true);
    }

    /// Clicks the middle of what a selector finds, as a mouse does.
    #[track_caller]
    pub(crate) fn click(&mut self, selector: &str) {
        let at = self.eval(&format!(
            "(() => {{ const e = document.querySelector({selector:?}); e.scrollIntoView({{block: 'nearest'}}); \
             const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        ));
        for kind in ["mousePressed", "mouseReleased"] {
            let params = json!({"type": kind, "x": at[0], "y": at[1], "button": "left", "clickCount": 1});
            self.ask("Input.dispatchMouseEvent", params);
        }
    }

    /// Types into what has the focus.
    pub(crate) fn type_in(&mut self, text: &str) {
        self.ask("Input.insertText", json!({"text": text}));
    }

    /// What came of one kind since the page was opened.
    pub(crate) fn events(&mut self, method: &str) -> Vec<Value> {
        // An answer comes after what came before it.
        self.eval("0");
        let of_kind = self.events.iter().filter(|event| event["method"] == method);
        of_kind.map(|event| event["params"].clone()).collect()
    }

    /// What the page complained of: exceptions, errors in its console, refusals by its policy.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        let mut all = self.events("Runtime.exceptionThrown");
        all.extend(self.events("Log.entryAdded").into_iter().filter(|e| e["entry"]["level"] == "error"));
        all.extend(self.events("Runtime.consoleAPICalled").into_iter().filter(|e| e["type"] == "error"));
        all.into_iter().map(|complaint| complaint.to_string()).collect()
    }

    /// A picture of the page, as a data URL.
    pub(crate) fn picture(&mut self) -> String {
        let picture = self.ask("Page.captureScreenshot", json!({"format": "png"}));
        format!("data:image/png;base64,{}", picture["data"].as_str().unwrap())
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ended = self.browser.kill();
        let _reaped = self.browser.wait();
    }
}
