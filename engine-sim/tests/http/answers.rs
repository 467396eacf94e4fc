//! What a good request gets.

use http_body_util::BodyExt;
use hyper::StatusCode;
use serde_json::{Value, json};

use crate::support::{Client, chat, events, fast, json_body, post, start, text, wait_until};

#[tokio::test]
async fn a_plain_chat_answer_has_text_reason_and_usage() {
    let engine = start(fast()).await;
    let mut client = Client::connect(&engine).await;
    let answer = json_body(client.send(chat("hello there!", 3, json!({}))).await).await;
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "m");
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["role"]),
        (&json!("length"), &json!("assistant"))
    );
    assert_eq!(choice["message"]["content"].as_str().unwrap().split_whitespace().count(), 3);
    let usage = json!({
        "prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 0},
    });
    assert_eq!(answer["usage"], usage);
}

#[tokio::test]
async fn a_stream_is_a_chunk_a_token_then_usage_then_done() {
    let engine = start(fast()).await;
    let mut client = Client::connect(&engine).await;
    let extra = json!({"stream": true, "stream_options": {"include_usage": true}, "ignore_eos": true});
    let response = client.send(chat("hello", 5, extra)).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
    let (_, body) = text(response).await;
    let events = events(&body);
    assert_eq!(events.len(), 5 + 1 + 1, "{body}");
    assert_eq!(events.last(), Some(&"[DONE]"));
    let chunks: Vec<Value> = events[..6].iter().map(|e| serde_json::from_str(e).unwrap()).collect();
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    for (index, chunk) in chunks[..5].iter().enumerate() {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert!(chunk["choices"][0]["delta"]["content"].is_string());
        let reason = if index == 4 { json!("length") } else { Value::Null };
        assert_eq!(chunk["choices"][0]["finish_reason"], reason, "only the last token ends it");
    }
    assert_eq!(chunks[5]["choices"], json!([]));
    assert_eq!(chunks[5]["usage"]["completion_tokens"], 5);
}

#[tokio::test]
async fn a_stream_has_no_usage_unless_asked_for() {
    let engine = start(fast()).await;
    let mut client = Client::connect(&engine).await;
    let (_, body) = text(client.send(chat("hello", 2, json!({"stream": true}))).await).await;
    assert_eq!(events(&body).len(), 3);
    assert!(!body.contains("usage"));
}

#[tokio::test]
async fn plain_and_streamed_answers_say_the_same() {
    let mut texts = Vec::new();
    for is_stream in [false, true] {
        let engine = start(fast()).await;
        let mut client = Client::connect(&engine).await;
        let response = client.send(chat("hello", 8, json!({"stream": is_stream}))).await;
        texts.push(if is_stream {
            let (_, body) = text(response).await;
            let events = events(&body);
            let word = |e: &&str| {
                let chunk: Value = serde_json::from_str(e).unwrap();
                chunk["choices"][0]["delta"]["content"].as_str().unwrap().to_owned()
            };
            events[..8].iter().map(word).collect()
        } else {
            json_body(response).await["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
        });
    }
    assert_eq!(texts[0], texts[1], "the same seed and request");
}

#[tokio::test]
async fn completions_are_answered_in_their_own_form() {
    let engine = start(fast()).await;
    let mut client = Client::connect(&engine).await;
    let plain =
        json_body(client.send(post("/v1/completions", r#"{"prompt":"12345678","max_tokens":2}"#)).await)
            .await;
    assert_eq!(plain["object"], "text_completion");
    assert_eq!(plain["usage"]["prompt_tokens"], 2);
    let text_of_plain = plain["choices"][0]["text"].as_str().unwrap();
    assert_eq!(text_of_plain.split_whitespace().count(), 2);
    let (_, body) = client.post("/v1/completions", r#"{"prompt":"x","stream":true}"#).await;
    let events = events(&body);
    assert_eq!(events.len(), 17, "16 tokens unless the request says otherwise, and the end");
    let first: Value = serde_json::from_str(events[0]).unwrap();
    assert!(first["choices"][0]["text"].is_string());
}

#[tokio::test]
async fn a_repeated_prompt_comes_from_the_cache_and_usage_says_so() {
    let engine = start(fast()).await;
    let mut client = Client::connect(&engine).await;
    let prompt = "x".repeat(1000);
    // Of 251 tokens, 15 whole blocks of 16.
    for cached in [0, 240] {
        let answer = json_body(client.send(chat(&prompt, 1, json!({}))).await).await;
        assert_eq!(answer["usage"]["prompt_tokens"], 251);
        assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], cached);
    }
    assert_eq!(engine.stats().cache_hit_tokens, 240);
}

#[tokio::test]
async fn the_header_comes_with_the_first_token_and_each_token_in_its_own_chunk() {
    let mut config = fast();
    // A prefill of 8,000 tokens takes 175 ms here, and each token after it 7 ms.
    config.time_scale = 1.0;
    let engine = start(config).await;
    let mut client = Client::connect(&engine).await;
    let began = tokio::time::Instant::now();
    let response = client.send(chat(&"y".repeat(32_000), 50_000, json!({"stream": true}))).await;
    let header_after = began.elapsed();
    assert!(
        header_after.as_millis() >= 170,
        "no header before the prefill ended, but after {header_after:?}"
    );
    let mut body = response.into_body();
    for _ in 0..5 {
        let chunk = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(events(std::str::from_utf8(&chunk).unwrap()).len(), 1, "one token in a chunk");
    }
    assert_eq!(engine.stats().served, 0, "the first tokens came while the others are still to come");
}

#[tokio::test]
async fn the_seat_is_free_when_the_last_token_arrives() {
    let engine = start(fast()).await;
    let mut client = Client::connect(&engine).await;
    for _ in 0..20 {
        let mut body = client.send(chat("hello", 3, json!({"stream": true}))).await.into_body();
        let mut tokens = String::new();
        while !tokens.contains(r#""finish_reason":"length""#) {
            let data = body.frame().await.unwrap().unwrap().into_data().unwrap();
            tokens.push_str(std::str::from_utf8(&data).unwrap());
        }
        assert_eq!((engine.stats().live(), engine.stats().used_blocks), (0, 0));
        body.collect().await.unwrap();
    }
    assert_eq!((engine.stats().served, engine.stats().aborted), (20, 0));
}

#[tokio::test]
async fn a_slow_reader_does_not_hold_its_seat() {
    let engine = start(fast()).await;
    let mut client = Client::connect(&engine).await;
    let unread = client.send(chat("hello", 20_000, json!({"stream": true}))).await;
    wait_until(&engine, "served although nobody reads", |s| s.served == 1).await;
    let (_, body) = text(unread).await;
    assert_eq!(events(&body).len(), 20_001, "and every token is still delivered");
}

#[tokio::test]
async fn request_id_and_engine_name_are_on_every_answer() {
    let engine = start(fast()).await;
    let mut client = Client::connect(&engine).await;
    for path in ["/v1/chat/completions", "/nowhere"] {
        let mut request = chat("hello", 1, json!({}));
        *request.uri_mut() = path.parse().unwrap();
        request.headers_mut().insert("x-request-id", "abc-1".parse().unwrap());
        let response = client.send(request).await;
        assert_eq!(response.headers()["x-request-id"], "abc-1");
        assert_eq!(response.headers()["x-engine-name"], "e1");
        text(response).await;
    }
}

#[tokio::test]
async fn models_and_health_answer_at_once() {
    let engine = start(fast()).await;
    let mut client = Client::connect(&engine).await;
    assert_eq!(client.get("/health").await, (StatusCode::OK, String::new()));
    let (status, models) = client.get("/v1/models").await;
    let models: Value = serde_json::from_str(&models).unwrap();
    assert_eq!((status, &models["data"][0]["id"]), (StatusCode::OK, &json!("m")));
    assert_eq!(models["data"][0]["max_model_len"], 27_000 * 16);
}
