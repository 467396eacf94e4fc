//! `/tokenize`.

use hyper::StatusCode;
use serde_json::{Value, json};

use crate::support::{Client, fast, json_body, post, start};

async fn tokens(client: &mut Client, body: &Value) -> Value {
    json_body(client.send(post("/tokenize", &body.to_string())).await).await
}

#[tokio::test]
async fn the_count_is_what_usage_will_say() {
    let engine = start(fast()).await;
    let mut client = Client::connect(&engine).await;
    let messages =
        json!([{"role": "user", "content": "hello there!"}, {"role": "assistant", "content": null}]);
    let answer = tokens(&mut client, &json!({"model": "m", "messages": messages})).await;
    let chat = json!({"model": "m", "messages": messages, "max_tokens": 1}).to_string();
    let usage = json_body(client.send(post("/v1/chat/completions", &chat)).await).await["usage"].clone();
    assert_eq!(answer["count"], usage["prompt_tokens"]);
    assert_eq!(answer["tokens"].as_array().unwrap().len(), answer["count"].as_u64().unwrap() as usize);
    assert_eq!(answer["max_model_len"], 27_000 * 16);
}

#[tokio::test]
async fn a_prompt_sent_as_its_tokens_is_the_same_prompt() {
    let engine = start(fast()).await;
    let mut client = Client::connect(&engine).await;
    let prompt = "the quick brown fox jumps ".repeat(20);
    let answer = tokens(&mut client, &json!({"prompt": prompt})).await;
    for (prompt, cached) in [(json!(prompt), 0), (answer["tokens"].clone(), 128)] {
        let body = json!({"prompt": prompt, "max_tokens": 1}).to_string();
        let usage = json_body(client.send(post("/v1/completions", &body)).await).await["usage"].clone();
        assert_eq!(usage["prompt_tokens"], 130);
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], cached);
    }
}

#[tokio::test]
async fn what_cannot_be_tokenized_is_refused() {
    let engine = start(fast()).await;
    let mut client = Client::connect(&engine).await;
    for (body, status) in [("", 400), ("{}", 400), (r#"{"model":"o","prompt":"x"}"#, 404)] {
        assert_eq!(client.post("/tokenize", body).await.0.as_u16(), status, "{body}");
    }
    assert_eq!(client.get("/tokenize").await.0, StatusCode::METHOD_NOT_ALLOWED);
}
