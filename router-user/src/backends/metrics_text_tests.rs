use std::path::Path;

use proptest::prelude::*;
use router_policy::{Nanos, Signal, Why};

use super::{Engine, LINE_BYTES_MAX, Parsed, parse};

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
    assert_eq!(p.engine, engine, "{name}");
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

/// The whole texts of real engines, where they lie beside the checkout.
#[test]
fn whole_texts_of_real_engines_are_read() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/metrics"));
    if !folder.is_dir() {
        println!("skipped: ../shared/metrics is not there");
        return;
    }
    for (name, engine, running, waiting, kv_tokens) in [
        ("vllm-0.32.0-cpu-idle.txt", Engine::Vllm, 0, 0, Some(1_048_576)),
        ("vllm-0.32.0-cpu-6running.txt", Engine::Vllm, 6, 0, Some(1_048_576)),
        ("vllm-0.32.0-cpu-4running-6waiting.txt", Engine::Vllm, 4, 6, Some(1_048_576)),
        ("llamacpp-b10605-idle-fresh.txt", Engine::LlamaCpp, 0, 0, None),
        ("llamacpp-b10605-2running-2deferred.txt", Engine::LlamaCpp, 2, 2, None),
    ] {
        check(name, &file(&folder.join(name)), engine, running, waiting, kv_tokens);
    }
    let cases = folder.join("../cases/metrics");
    for (name, engine, running, waiting) in [
        ("vllm_v0.prom", Engine::Vllm, 7, 3),
        ("vllm_v1_both_names.prom", Engine::Vllm, 7, 3),
        ("vllm_v1_new_name_only.prom", Engine::Vllm, 7, 3),
        ("vllm_v1_dp2.prom", Engine::Vllm, 14, 7),
        ("llamacpp_idle_nan.prom", Engine::LlamaCpp, 0, 0),
        ("llamacpp_no_kv.prom", Engine::LlamaCpp, 4, 46),
        ("syntax_legal.prom", Engine::Vllm, 4, 2),
        ("no_final_newline.prom", Engine::Vllm, 4, 2),
        ("openmetrics_exemplar.prom", Engine::Vllm, 4, 2),
    ] {
        let p = file(&cases.join(name));
        assert_eq!(
            (p.engine, p.report.running.value(), p.report.waiting.value()),
            (engine, Some(running), Some(waiting)),
            "{name}"
        );
    }
    for name in ["sglang_single.prom", "tgi.prom", "triton_trtllm.prom", "trtllm_serve.prom"] {
        assert_eq!(file(&cases.join(name)).report.running, Signal::Unknown(Why::Missing), "{name}");
    }
}

#[test]
fn what_is_missing_is_unknown_and_not_zero() {
    for text in [
        "",
        "\n\n",
        "<html><body>vllm:num_requests_running 4</body></html>",
        "# vllm:num_requests_running 4",
        "vllm:num_requests_running_total 4\nvllm:num_requests_waiting_by_reason{reason=\"x\"} 3\n",
    ] {
        let p = read(text);
        assert_eq!(p.engine, Engine::Unknown, "{text}");
        assert_eq!(p.report.running, Signal::Unknown(Why::Missing), "{text}");
        assert_eq!(p.report.waiting, Signal::Unknown(Why::Missing), "{text}");
        assert_eq!(p.report.kv_tokens, Signal::Unknown(Why::Missing), "{text}");
    }
    let half = read("vllm:num_requests_running 4\n");
    assert_eq!((half.report.running.value(), half.report.waiting), (Some(4), Signal::Unknown(Why::Missing)));
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
        for name in ["vllm:num_requests_running", "vllm:cache_config_info", "process_start_time_seconds"] {
            let mut text = name.as_bytes().to_vec();
            text.extend_from_slice(braces.as_bytes());
            text.extend_from_slice(&tail);
            let _ = parse(&text, AT);
        }
    }
}
