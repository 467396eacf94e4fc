//! What a person sees and does on the status page.

use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use router_policy::BackendId;
use router_tests::backend::Backend;
use router_tests::client::{ask, chat};
use router_tests::router::{config, start};
use router_tests::wait;
use router_user::app::RunningRouter;
use router_user::config::Config;
use serde_json::{Value, json};

use crate::chromium::Page;

const TOKEN: &str = "correct-horse-battery";
/// What of a picture is how common: the number of colours, and the share of the commonest.
const COLOURS: &str = "(async url => {
    const image = new Image(); image.src = url; await image.decode();
    const canvas = new OffscreenCanvas(image.width, image.height), context = canvas.getContext('2d');
    context.drawImage(image, 0, 0);
    const pixels = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer), seen = new Map();
    for (const pixel of pixels) seen.set(pixel, (seen.get(pixel) || 0) + 1);
    return [seen.size, Math.max(...seen.values()) / pixels.length];
})";

/// A router over three engines, whose admin plane has a token.
fn router(engines: &[Backend]) -> (RunningRouter, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let mut config = config(&engines.iter().map(Backend::addr).collect::<Vec<_>>());
    config.backends[2].spec.model = Some("other".to_owned());
    (start(Config { admin_token_file: Some(file), ..config }), dir)
}

/// Shows the page and waits until it has its rows.
fn show(page: &mut Page, router: &RunningRouter) -> String {
    let origin = format!("http://{}", router.admin_addr());
    page.ask("Page.navigate", json!({"url": format!("{origin}/")}));
    page.wait("the rows are there", "document.querySelectorAll('#rows tr').length === 3");
    origin
}

/// The rows as they are shown, by their numbers.
fn order(page: &mut Page) -> Value {
    page.eval("[...document.querySelectorAll('#rows tr')].map(tr => Number(tr.dataset.row))")
}

fn cell(row: usize, key: &str) -> String {
    format!("document.querySelector('tr[data-row=\"{row}\"] td[data-key={key}]').textContent")
}

#[test]
fn the_page_shows_sorts_opens_and_drains() {
    let Some(mut page) = Page::open("the_page_shows_sorts_opens_and_drains") else { return };
    let engines = [Backend::ok(), Backend::ok(), Backend::ok()];
    let (router, _token) = router(&engines);
    let began = Instant::now();
    let origin = show(&mut page, &router);
    println!("rows after {:.1} s", began.elapsed().as_secs_f64());
    assert_eq!(page.eval("document.getElementById('link').textContent"), "live");
    assert_eq!(page.eval("document.getElementById('ready').textContent"), "ready");
    assert_eq!(order(&mut page), json!([0, 1, 2]));
    assert_eq!(page.eval(&cell(0, "reported")), "unknown", "nobody reported, and that is no zero");
    assert_eq!(page.eval(&cell(0, "kernel")), "unknown");
    assert_eq!(page.eval(&cell(0, "inflight")), "0", "what the router counts is known");

    for _ in 0..5 {
        assert_eq!(ask(router.addr(), chat()).status, 200);
    }
    page.wait("decisions and first bytes are shown", "/5/.test(document.getElementById('ttft').textContent) \
        && /≈/.test(document.getElementById('ttft').textContent) && !/none/.test(document.getElementById('decisions').textContent)");

    page.click("th[data-key=url] button");
    let urls = "[...document.querySelectorAll('td[data-key=url]')].map(td => td.textContent)";
    let up: Vec<String> = serde_json::from_value(page.eval(urls)).unwrap();
    assert!(up.is_sorted(), "{up:?}");
    page.click("th[data-key=url] button");
    let down: Vec<String> = serde_json::from_value(page.eval(urls)).unwrap();
    assert!(down.iter().rev().eq(&up), "{down:?}");
    assert_eq!(
        page.eval("document.querySelector('th[data-key=url]').getAttribute('aria-sort')"),
        "descending"
    );

    page.click("tr[data-row='1'] td[data-key=state]");
    page.wait("details are there", "/chars per token/.test(document.getElementById('members').textContent)");
    assert_eq!(
        page.eval("document.getElementById('which').textContent"),
        format!("http://{}", engines[1].addr())
    );

    // A wrong token first: it is asked for again.
    for (token, said) in [("wrong-wrong-wrong-wrong", "token"), (TOKEN, "accepted")] {
        page.click("#drain");
        page.wait("the token is asked for", "document.getElementById('ask').open");
        page.click("#token");
        page.type_in(token);
        page.click("#use");
        page.wait(
            "it is answered",
            &format!("document.getElementById('said').textContent.includes({said:?})"),
        );
    }
    assert!(router.ledger().snapshot(BackendId::new(1).unwrap()).unwrap().draining);
    page.wait("the drain is shown", &format!("{} === 'draining'", cell(1, "state")));
    page.click("#undrain");
    page.wait("it is taken back", &format!("{} === 'ready'", cell(1, "state")));
    let kept = page.eval("[document.cookie, localStorage.length, sessionStorage.length, document.getElementById('token').value]");
    assert_eq!(kept, json!(["", 0, 0, ""]), "the token is in the page's memory only");

    let asked: HashSet<String> = page
        .events("Network.requestWillBeSent")
        .iter()
        .map(|event| event["request"]["url"].as_str().unwrap().to_owned())
        .collect();
    assert!(asked.len() >= 4, "{asked:?}");
    for url in asked {
        assert!(url.starts_with(&origin) || url == "data:,", "it asks {url}");
    }
    let complaints = page.complaints();
    // A browser writes down the refusal of the wrong token.
    let others: Vec<_> = complaints.iter().filter(|text| !text.contains("status of 401")).collect();
    assert!(others.is_empty() && complaints.len() <= 1, "{complaints:?}");
    pictures(&mut page);
}

/// Takes a picture in either scheme, looks whether there is something on it, and keeps the last.
fn pictures(page: &mut Page) {
    page.click("#close");
    let mut backs = Vec::new();
    for scheme in ["dark", "light"] {
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        page.ask("Emulation.setEmulatedMedia", media);
        let picture = page.picture();
        let colours = page.eval(&format!("{COLOURS}({picture:?})"));
        let (count, commonest) = (colours[0].as_u64().unwrap(), colours[1].as_f64().unwrap());
        assert!(count > 50 && commonest < 0.98, "a picture of nothing: {count} colours, {commonest}");
        backs.push(page.eval("getComputedStyle(document.body).backgroundColor"));
        let bytes = page.eval(&format!(
            "[...atob({:?})].map(c => c.charCodeAt(0))",
            picture.split(',').next_back().unwrap()
        ));
        let bytes: Vec<u8> = serde_json::from_value(bytes).unwrap();
        let file = std::env::temp_dir().join(format!("unlatch-status-page-{scheme}.png"));
        std::fs::write(file, bytes).unwrap();
    }
    assert_ne!(backs[0], backs[1], "dark is not light");
}

#[test]
fn the_page_says_when_it_is_stale_and_keeps_up_with_512_backends() {
    let Some(mut page) = Page::open("the_page_says_when_it_is_stale_and_keeps_up_with_512_backends") else {
        return;
    };
    let engines = [Backend::ok(), Backend::ok(), Backend::ok()];
    let (router, _token) = router(&engines);
    show(&mut page, &router);
    drop(router);
    page.wait("it is stale", "/^stale since /.test(document.getElementById('link').textContent)");
    assert_eq!(page.eval("document.querySelectorAll('#rows tr').length"), 3, "what was last known stays");
    // Many more than there may be: what comes is laid out, sorted by what changes, and filtered.
    let took = page.eval(
        "(() => {
            const one = structuredClone(last.backends[0]), times = [];
            sort = { key: 'inflight', up: false };
            for (let turn = 0; turn < 5; turn++) {
                const now = structuredClone(last);
                now.uptime_seconds += 1;
                now.backends = Array.from({ length: 512 }, (_, row) => ({ ...one, row, url: 'http://b' + row, own: (row * 7 + turn * 13) % 97 }));
                const began = performance.now();
                take(now);
                document.body.offsetHeight;
                times.push(performance.now() - began);
            }
            return times;
        })()",
    );
    println!("512 backends, ms a snapshot: {took}");
    let times: Vec<f64> = serde_json::from_value(took).unwrap();
    assert_eq!(page.eval("document.querySelectorAll('#rows tr').length"), 512);
    assert!(times[1..].iter().any(|ms| *ms < 500.0), "a snapshot comes every second: {times:?}");
    page.click("#filter");
    page.type_in("B51");
    wait::until("it filters", || order(&mut page).as_array().unwrap().len() == 3);
    let first = page.eval("document.querySelector('#rows td[data-key=url]').textContent");
    assert!(first.as_str().unwrap().starts_with("http://b51"), "{first}");
}

#[test]
fn without_scripts_the_page_says_where_to_look() {
    let Some(mut page) = Page::open("without_scripts_the_page_says_where_to_look") else { return };
    let engines = [Backend::ok(), Backend::ok(), Backend::ok()];
    let (router, _token) = router(&engines);
    page.ask("Emulation.setScriptExecutionDisabled", json!({"value": true}));
    page.ask("Page.navigate", json!({"url": format!("http://{}/", router.admin_addr())}));
    let mut text = String::new();
    wait::until("it says so", || {
        let tree = page.ask("DOM.getDocument", json!({"depth": -1}));
        text = tree.to_string();
        text.contains("This page needs JavaScript")
    });
    assert!(text.contains("\"status\""), "it names where: {text}");
}
