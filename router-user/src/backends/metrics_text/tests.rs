use std::path::Path;

use proptest::prelude::*;
use router_policy::{Nanos, Signal, Why};
use serde_json::{Value, json};

use super::{Engine, Kind, LINE_BYTES_MAX, Parsed, Reader, TEXT_BYTES_MAX, TooLarge, parse};

const AT: Nanos = Nanos(7);

fn read(text: &str) -> Parsed {
    parse(text.as_bytes(), AT)
}

fn file(path: &Path) -> Parsed {
    parse(&std::fs::read(path).unwrap(), AT)
}

fn fixture(name: &str) -> Parsed {
    file(Path::new(&format!("{}/../tests/fixtures/metrics/{name}", env!("CARGO_MANIFEST_DIR"))))
}

fn check(name: &str, p: &Parsed, engine: Engine, running: u32, waiting: u32, kv_tokens: Option<u64>) {
    assert_eq!(p.engine, Some(engine), "{name}");
    assert_eq!(p.report.running, Signal::known(running, AT), "{name}");
    assert_eq!(p.report.waiting, Signal::known(waiting, AT), "{name}");
    assert_eq!(p.report.kv_tokens.value(), kv_tokens, "{name}");
}

#[test]
fn fixtures_give_what_the_engines_held() {
    for (name, engine, running, waiting, kv_tokens) in [
        ("vllm_4running_6waiting.txt", Engine::Vllm, 4, 6, Some(1_048_576)),
        ("vllm_idle.txt", Engine::Vllm, 0, 0, Some(1_048_576)),
        ("vllm_two_engines.txt", Engine::Vllm, 14, 7, Some(2 * 31_250 * 16)),
        ("llamacpp_2running_2deferred.txt", Engine::LlamaCpp, 2, 2, None),
        ("llamacpp_nan.txt", Engine::LlamaCpp, 0, 0, None),
        ("unusual_syntax.txt", Engine::Vllm, 4, 2, Some(1600)),
        ("openmetrics_exemplar.txt", Engine::Vllm, 4, 2, None),
    ] {
        check(name, &fixture(name), engine, running, waiting, kv_tokens);
    }
    assert_eq!(fixture("vllm_idle.txt").process_start_seconds, Some(1.795_992_018_75e9));
}

/// What must come of the texts of the cases; `null` = unknown, which is not zero.
#[test]
fn m01_m02_m03_m07_m09_every_text_of_the_cases_gives_what_is_expected() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/metrics"));
    let expected = std::fs::read(folder.join("expected.json")).unwrap();
    let expected: serde_json::Map<String, Value> = serde_json::from_slice(&expected).unwrap();
    let mut texts = 0;
    for (name, wanted) in expected.iter().filter(|(name, _)| *name != "_comment") {
        let report = file(&folder.join(name)).report;
        let count = |signal: Signal<u32>| signal.value().map_or(Value::Null, Value::from);
        assert_eq!(
            (count(report.running), count(report.waiting)),
            (wanted["running"].clone(), wanted["waiting"].clone()),
            "{name}"
        );
        let kv = report.kv_use.value().map_or(Value::Null, |share| json!((share * 1e9).round() / 1e9));
        let is_right = match &wanted["kv"] {
            Value::Object(choice) => choice["one_of"].as_array().unwrap().contains(&kv),
            only => *only == kv,
        };
        assert!(is_right, "{name}: kv {kv}, not {}", wanted["kv"]);
        texts += 1;
    }
    assert_eq!(texts, 13);
}

#[test]
fn each_engine_is_known_by_its_names_and_tells_its_pool_where_it_does() {
    for (name, engine, running, waiting, kv_tokens) in [
        ("sglang_single.prom", Engine::Sglang, 5, 2, None),
        ("tgi.prom", Engine::Tgi, 12, 6, None),
        ("trtllm_serve.prom", Engine::TrtLlm, 6, 1, None),
        ("triton_trtllm.prom", Engine::Triton, 33, 9, Some(6239 * 64)),
        ("vllm_v0.prom", Engine::Vllm, 7, 3, Some(27_898 * 16)),
        ("llamacpp_no_kv.prom", Engine::LlamaCpp, 4, 46, None),
    ] {
        check(name, &fixture(name), engine, running, waiting, kv_tokens);
    }
    let trtllm = "trtllm_num_requests_running 1\ntrtllm_num_requests_waiting 0\n\
                  trtllm_kv_cache_max_blocks 100\ntrtllm_kv_cache_tokens_per_block 32\n";
    check("trtllm", &read(trtllm), Engine::TrtLlm, 1, 0, Some(3200));
    let sglang = "sglang:num_running_reqs 1\nsglang:num_queue_reqs 0\nsglang:max_total_num_tokens 5000\n";
    check("sglang", &read(sglang), Engine::Sglang, 1, 0, Some(5000));
}

/// The whole texts of real engines, where they lie beside the checkout.
#[test]
fn whole_texts_of_real_engines_are_read() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/metrics"));
    if !folder.is_dir() {
        println!("skipped: ../shared/metrics is not there");
        return;
    }
    let texts = [
        ("vllm-0.32.0-cpu-idle.txt", Engine::Vllm, 0, 0, Some(1_048_576)),
        ("vllm-0.32.0-cpu-6running.txt", Engine::Vllm, 6, 0, Some(1_048_576)),
        // Not idle yet: as it says itself.
        ("vllm-0.32.0-cpu-after.txt", Engine::Vllm, 6, 0, Some(1_048_576)),
        ("vllm-0.32.0-cpu-4running-6waiting.txt", Engine::Vllm, 4, 6, Some(1_048_576)),
        ("llamacpp-b10605-idle-fresh.txt", Engine::LlamaCpp, 0, 0, None),
        ("llamacpp-b10605-2running-2deferred.txt", Engine::LlamaCpp, 2, 2, None),
        ("llamacpp-b10605-after-compat.txt", Engine::LlamaCpp, 0, 0, None),
        ("llamacpp-b10605-tiny-random.txt", Engine::LlamaCpp, 0, 0, None),
    ];
    let there = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name());
    let there = there.filter(|name| name.to_string_lossy().ends_with(".txt")).count();
    assert_eq!(there, texts.len(), "each text is read");
    for (name, engine, running, waiting, kv_tokens) in texts {
        let p = file(&folder.join(name));
        check(name, &p, engine, running, waiting, kv_tokens);
        assert_eq!(p.awake, (engine == Engine::Vllm).then_some(true), "{name}");
    }
}

#[test]
fn of_two_names_of_one_share_the_new_one_counts() {
    let share = |text: &str| read(text).report.kv_use;
    let (old, new) = ("vllm:gpu_cache_usage_perc 0.1\n", "vllm:kv_cache_usage_perc 0.7\n");
    for text in [format!("{old}{new}"), format!("{new}{old}")] {
        assert_eq!(share(&text), Signal::known(0.7, AT));
    }
    assert_eq!(share(old), Signal::known(0.1, AT));
    assert_eq!(share(&format!("{old}vllm:kv_cache_usage_perc NaN")), Signal::Unknown(Why::Malformed));
    assert_eq!(share("vllm:cpu_cache_usage_perc 0.1"), Signal::Unknown(Why::Missing));
}

/// M03: what lies outside 0 to 1 is unknown.
#[test]
fn m03_a_share_that_is_none_is_unknown() {
    for value in ["+Inf", "-Inf", "-1", "1e400", "87.5", "nan", "-nan", "NaN", "x", ""] {
        let p = read(&format!(
            "llamacpp:kv_cache_usage_ratio {value}\nllamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n"
        ));
        assert_eq!(p.report.kv_use, Signal::Unknown(Why::Malformed), "{value}");
        assert_eq!((p.report.running.value(), p.report.waiting.value()), (Some(0), Some(0)));
    }
}

#[test]
fn swapped_requests_of_old_engines_wait_too() {
    let text = "vllm:num_requests_running 1\nvllm:num_requests_waiting 2\nvllm:num_requests_swapped 4\n";
    assert_eq!(read(text).report.waiting.value(), Some(6));
    let bad = text.replace("swapped 4", "swapped NaN");
    assert_eq!(read(&bad).report.waiting, Signal::Unknown(Why::Malformed));
}

#[test]
fn ranks_that_tell_of_the_same_requests_count_once() {
    let line = |name: &str, tp: u32, dp: &str, n: u32| format!("sglang:{name}{{tp_rank=\"{tp}\"{dp}}} {n}\n");
    let both = |tp, dp, running, waiting| {
        line("num_running_reqs", tp, dp, running) + &line("num_queue_reqs", tp, dp, waiting)
    };
    let counts = |text: &str| (read(text).report.running.value(), read(text).report.waiting.value());
    let one_rank = both(0, "", 5, 2) + &both(1, "", 5, 2) + &both(2, "", 4, 2);
    assert_eq!(counts(&one_rank), (Some(5), Some(2)));
    let (d0, d1) = (",dp_rank=\"0\"", ",dp_rank=\"1\"");
    let two_ranks = both(0, d0, 5, 2) + &both(1, d0, 5, 2) + &both(2, d1, 3, 0) + &both(3, d1, 3, 0);
    assert_eq!(counts(&two_ranks), (Some(8), Some(2)));
    let many: String =
        (0..1025).map(|n| line("num_running_reqs", 0, &format!(",dp_rank=\"{n}\""), 1)).collect();
    assert_eq!(read(&many).report.running, Signal::Unknown(Why::Malformed), "ranks are bounded");
}

#[test]
fn an_engine_sleeps_if_any_behind_the_address_is_not_awake() {
    let state = |engine: u32, name: &str, value: u32| {
        format!("vllm:engine_sleep_state{{engine=\"{engine}\",sleep_state=\"{name}\"}} {value}\n")
    };
    assert_eq!(read("vllm:num_requests_running 1").awake, None, "older ones do not tell");
    assert_eq!(read(&state(0, "weights_offloaded", 1)).awake, None);
    assert_eq!(read(&state(0, "awake", 1)).awake, Some(true));
    let one = state(0, "awake", 1) + &state(1, "awake", 0) + &state(1, "discard_all", 1);
    assert_eq!(read(&one).awake, Some(false));
    assert_eq!(read(&(state(0, "awake", 0) + &state(1, "awake", 1))).awake, Some(false));
}

#[test]
fn only_the_configured_engine_counts() {
    let text = b"sglang:num_running_reqs 1\nsglang:num_queue_reqs 2\nvllm:num_requests_running 3\n";
    let as_of = |engine| {
        let mut reader = Reader::new(false);
        reader.feed(text).unwrap();
        let p = reader.finish(AT, engine);
        (p.engine, p.report.running.value())
    };
    assert_eq!(as_of(None), (Some(Engine::Sglang), Some(1)), "of two the one whose gauges are both there");
    assert_eq!(as_of(Some(Engine::Vllm)), (Some(Engine::Vllm), Some(3)));
    assert_eq!(as_of(Some(Engine::Tgi)), (None, None));
}

#[test]
fn what_is_missing_is_unknown_and_not_zero() {
    for (text, kind) in [
        ("", Kind::Empty),
        ("\n \n", Kind::Empty),
        ("<html><body>vllm:num_requests_running 4</body></html>", Kind::Html),
        ("\n <!doctype html>\nvllm:num_requests_running 0\nvllm:num_requests_waiting 0\n", Kind::Html),
        ("[]", Kind::Json),
        ("{\"error\":\"no\"}\nvllm:num_requests_running 0\nvllm:num_requests_waiting 0\n", Kind::Json),
        ("# vllm:num_requests_running 4", Kind::Text),
    ] {
        let p = read(text);
        assert_eq!((p.engine, p.kind), (None, kind), "{text}");
        assert_eq!(p.report.running, Signal::Unknown(Why::Missing), "{text}");
        assert_eq!(p.report.waiting, Signal::Unknown(Why::Missing), "{text}");
        assert_eq!(p.report.kv_tokens, Signal::Unknown(Why::Missing), "{text}");
    }
    let near = "vllm:num_requests_running_total 4\nvllm:num_requests_waiting_by_reason{reason=\"x\"} 3\n";
    let p = read(near);
    assert_eq!((p.engine, p.report.running.why()), (Some(Engine::Vllm), Some(Why::Missing)));
    let half = read("vllm:num_requests_running 4\n");
    assert_eq!((half.report.running.value(), half.report.waiting), (Some(4), Signal::Unknown(Why::Missing)));
}

#[test]
fn any_character_may_stand_in_a_label() {
    for label in ["}", "{", "\\\"", "\\\\", "\\n", "#", ",", "=", "é 漢 \u{1F600}", "\t", "a} 9 "] {
        let text = format!(
            "vllm:num_requests_running{{model_name=\"{label}\",engine=\"0\"}} 4\nvllm:num_requests_waiting{{x=\"{label}\"}} 1\n"
        );
        assert_eq!(
            (read(&text).report.running.value(), read(&text).report.waiting.value()),
            (Some(4), Some(1)),
            "{label}"
        );
    }
    let bytes = b"vllm:num_requests_running{model_name=\"\xff\xfe\"} 4\r\nvllm:num_requests_waiting 1\r\n";
    let p = parse(bytes, AT);
    assert_eq!((p.report.running.value(), p.report.waiting.value()), (Some(4), Some(1)), "not even UTF-8");
}

#[test]
fn equal_texts_have_equal_fingerprints_and_what_is_not_the_engines_has_no_say() {
    let print = |text: &str| read(text).report.fingerprint;
    let text = "vllm:num_requests_running 1\nvllm:x_bucket{le=\"1\"} 5\n";
    assert!(print(text).is_some());
    assert_eq!(
        print(text),
        print(&format!("# HELP a\nprocess_cpu_seconds_total 7\n{text}http_requests_total 9\n"))
    );
    assert_ne!(print(text), print(&text.replace("} 5", "} 6")));
    assert_eq!(print("up 1\n"), None);
}

#[test]
fn a_text_beyond_the_limit_is_given_up_and_takes_no_memory() {
    let mut reader = Reader::new(true);
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..TEXT_BYTES_MAX >> 20 {
        reader.feed(&piece).unwrap();
        assert!(reader.carry.capacity() <= 2 * LINE_BYTES_MAX, "one line is kept, and not all of it");
    }
    assert_eq!(reader.feed(b"x"), Err(TooLarge));
}

#[test]
fn what_is_no_count_is_malformed() {
    for value in
        ["NaN", "nan", "-nan", "+Inf", "-Inf", "inf", "-1", "1e400", "0.5", "x", "", "4294967296", "0x4"]
    {
        let p = read(&format!("vllm:num_requests_running{{a=\"b\"}} {value}\nvllm:num_requests_waiting 1\n"));
        assert_eq!(p.report.running, Signal::Unknown(Why::Malformed), "{value}");
        assert_eq!(p.report.waiting.value(), Some(1), "another gauge is not touched by {value}");
    }
}

#[test]
fn lines_of_several_engines_add_up_in_any_order_and_one_bad_line_spoils_the_sum() {
    let (a, b) =
        ("vllm:num_requests_running{engine=\"0\"} 11.0", "vllm:num_requests_running{engine=\"1\"} 3");
    assert_eq!(read(&format!("{a}\n{b}")).report.running.value(), Some(14));
    assert_eq!(read(&format!("{b}\n{a}\n")).report.running.value(), Some(14));
    let bad = "vllm:num_requests_running{engine=\"2\"} NaN";
    for text in [format!("{bad}\n{a}\n{b}"), format!("{a}\n{b}\n{bad}")] {
        assert_eq!(read(&text).report.running, Signal::Unknown(Why::Malformed));
    }
}

#[test]
fn the_pool_is_blocks_times_their_size() {
    let pool = |labels: &str| read(&format!("vllm:cache_config_info{{{labels}}} 1.0\n")).report.kv_tokens;
    assert_eq!(pool(r#"block_size="16",num_gpu_blocks="100""#), Signal::known(1600, AT));
    assert_eq!(
        pool(r#"x="}\",block_size=\"9\"",effective_block_size="8",block_size="16",num_gpu_blocks="2""#),
        Signal::known(32, AT)
    );
    for labels in [
        "",
        r#"block_size="16""#,
        r#"block_size="16",num_gpu_blocks="None""#,
        r#"block_size="0",num_gpu_blocks="5""#,
        r#"block_size="16",num_gpu_blocks="99999999999999999999""#,
        r#"block_size="16,num_gpu_blocks=5"#,
        "=,=,",
    ] {
        assert_eq!(pool(labels), Signal::Unknown(Why::Malformed), "{labels}");
    }
}

#[test]
fn a_line_without_end_is_malformed() {
    let long = "y".repeat(LINE_BYTES_MAX);
    let p = read(&format!("vllm:num_requests_running{{x=\"{long}\"}} 4\nvllm:num_requests_waiting 2"));
    assert_eq!(p.report.running, Signal::Unknown(Why::Malformed));
    assert_eq!(p.report.waiting.value(), Some(2));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes_behind_a_wanted_name_never_panic(tail in prop::collection::vec(any::<u8>(), 0..80), braces in "[{}\"\\\\,= a1.]{0,30}") {
        for name in ["vllm:num_requests_running", "vllm:cache_config_info", "nv_trt_llm_request_metrics", "process_start_time_seconds"] {
            let mut text = name.as_bytes().to_vec();
            text.extend_from_slice(braces.as_bytes());
            text.extend_from_slice(&tail);
            let _ = parse(&text, AT);
        }
    }

    /// A text says the same wherever it is cut.
    #[test]
    fn pieces_make_no_difference(lines in prop::collection::vec(line(), 0..12), cuts in prop::collection::vec(1_usize..40, 0..20), last in any::<bool>()) {
        let text = lines.join("\n") + if last { "\n" } else { "" };
        let mut reader = Reader::new(false);
        let (mut rest, mut cuts) = (text.as_bytes(), cuts.into_iter().cycle());
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(cuts.next().unwrap_or(rest.len()).min(rest.len()));
            reader.feed(piece).unwrap();
            rest = after;
        }
        prop_assert_eq!(format!("{:?}", reader.finish(AT, None)), format!("{:?}", read(&text)));
    }

    /// No text makes an engine idle unless both of its gauges are there, and zero.
    #[test]
    fn nothing_but_zeros_is_idle(lines in prop::collection::vec(line(), 0..12)) {
        let report = read(&lines.join("\n")).report;
        if (report.running.value(), report.waiting.value()) == (Some(0), Some(0)) {
            let has_zero = |name: &str, label: &str| lines.iter().any(|line| {
                let Some(rest) = line.trim_start().strip_prefix(name) else { return false };
                let value = rest.rsplit(['}', ' ']).find(|part| !part.is_empty());
                rest.starts_with([' ', '{']) && rest.contains(label) && value.is_some_and(|v| v.parse() == Ok(0.0))
            });
            let idle = |e: Engine| match e {
                Engine::Triton => has_zero(e.running_name(), "scheduled") && has_zero(e.waiting_name(), "waiting"),
                _ => has_zero(e.running_name(), "") && has_zero(e.waiting_name(), ""),
            };
            prop_assert!(Engine::ALL.into_iter().any(idle), "{:?}", lines);
        }
    }
}

/// Lines that are, or nearly are, what is read.
fn line() -> impl Strategy<Value = String> {
    let names = Engine::ALL.into_iter().flat_map(|e| [e.running_name(), e.waiting_name()]);
    let names: Vec<&str> =
        names.chain(["vllm:num_requests_swapped", "vllm:cache_config_info", "up"]).collect();
    let name = (prop::sample::select(names), prop::sample::select(vec!["", "", "", "_total", "x"]));
    let labels = prop::sample::select(vec![
        "",
        "{}",
        "{a=\"b\"}",
        "{request_type=\"scheduled\"}",
        "{request_type=\"waiting\"}",
        "{dp_rank=\"1\"}",
        "{a=\"}\"",
        "{",
    ]);
    let value = prop::sample::select(vec!["0", "0.0", "-0", "1", "NaN", "", "1e400", "-1", "0x0", "#"]);
    let start = prop::sample::select(vec!["", "", "", "# ", " ", "<"]);
    (start, name, labels, value)
        .prop_map(|(start, (name, end), labels, value)| format!("{start}{name}{end}{labels} {value}"))
}
