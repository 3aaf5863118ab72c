//! Tests with random changes of valid bodies, which must not cause a panic or an error 500.

use serde_json::{Value, json};
use vattention_serve::ServerOptions;

use crate::common::{CHAT, COMPLETIONS, TestServer, chat, completion, engine_options, with};

/// Generator of pseudo-random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }

    fn choose<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// Returns valid bodies, which together contain all fields.
fn seeds() -> Vec<(&'static str, Value)> {
    let sampling = json!({"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "n": 2,
        "repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": -0.5,
        "logit_bias": {"5": 1, "6": -1}, "stop": ["a", "b"], "stop_token_ids": [4, 5],
        "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true},
        "vattention": {"dense_prefix": 1, "reports": true}, "user": "u", "metadata": {"a": "b"}});
    let echo = json!({"echo": true, "logprobs": 3, "prompt": [[1, 2], [3]], "stream": null});
    let schema = json!({"type": "json_schema", "json_schema": {"name": "n", "strict": true,
        "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}});
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
    let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let messages = json!([{"role": "system", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}], "name": "c"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "d"}]);
    let talk = json!({"messages": messages, "tools": [tool], "tool_choice": "auto",
        "logprobs": true, "top_logprobs": 2, "response_format": schema, "max_tokens": null,
        "max_completion_tokens": 3, "chat_template_kwargs": {"enable_thinking": false}});
    vec![
        (COMPLETIONS, with(&completion(), sampling.clone())),
        (COMPLETIONS, with(&completion(), echo)),
        (CHAT, with(&chat(), sampling)),
        (CHAT, with(&chat(), talk.clone())),
        ("/tokenize", json!({"prompt": "The sky", "add_special_tokens": false, "model": "recall"})),
        ("/tokenize", json!({"messages": talk["messages"], "add_generation_prompt": true})),
        ("/detokenize", json!({"tokens": [1, 2, 3]})),
    ]
}

/// Returns the number of values within a JSON value, itself included.
fn count_values(value: &Value) -> usize {
    1 + match value {
        Value::Array(values) => values.iter().map(count_values).sum(),
        Value::Object(values) => values.values().map(count_values).sum(),
        _ => 0,
    }
}

/// Returns value `number` within a JSON value, in depth-first order; number 0 is the value itself.
fn find_value(value: &mut Value, number: usize) -> &mut Value {
    if number == 0 {
        return value;
    }
    let mut rest = number - 1;
    let within: Vec<&mut Value> = match value {
        Value::Array(values) => values.iter_mut().collect(),
        Value::Object(values) => values.values_mut().collect(),
        _ => Vec::new(),
    };
    for value in within {
        let count = count_values(value);
        if rest < count {
            return find_value(value, rest);
        }
        rest -= count;
    }
    unreachable!("the number is less than the number of values")
}

fn change_value(body: &mut Value, random: &mut Random) {
    let other = [
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(1),
        json!(2_i64.pow(40)),
        json!(1e308),
        json!(-0.0),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(""),
        json!("\u{0}\u{10FFFF}"),
        json!("a"),
        json!([]),
        json!({}),
        json!([[[]]]),
        json!({"": {"": []}}),
        json!("5"),
        json!([1, "a", null]),
    ];
    let number = random.below(count_values(body));
    let place = find_value(body, number);
    match random.below(3) {
        0 => *place = random.choose(&other).clone(),
        1 => {
            if let Value::Object(values) = place {
                let names: Vec<String> = values.keys().cloned().chain(["x".into()]).collect();
                let value = random.choose(&other).clone();
                values.insert(random.choose(&names).clone(), value);
            } else {
                *place = json!([place.take()]);
            }
        }
        _ => {
            let name = match place {
                Value::Object(values) => values.keys().next().cloned(),
                _ => None,
            };
            match (name, place) {
                (Some(name), Value::Object(values)) => drop(values.remove(&name)),
                (_, place) => *place = random.choose(&other).clone(),
            }
        }
    }
}

fn change_bytes(body: &mut Vec<u8>, random: &mut Random) {
    let place = random.below(body.len() + 1);
    match random.below(4) {
        0 => body.truncate(place),
        1 => body.insert(place, *random.choose(b"{}[]\",:0919eE-+.\\u\x00\xff ntf")),
        2 if place < body.len() => drop(body.remove(place)),
        _ if place < body.len() => body[place] = random.below(256) as u8,
        _ => {}
    }
}

fn change_body(body: &Value, random: &mut Random) -> Vec<u8> {
    let mut changed = body.clone();
    for _ in 0..random.below(4) {
        change_value(&mut changed, random);
    }
    let mut bytes = changed.to_string().into_bytes();
    for _ in 0..random.below(3) {
        change_bytes(&mut bytes, random);
    }
    bytes
}

async fn send_changed(server: &TestServer, count: usize, seed: u64) -> [usize; 600] {
    let (seeds, mut random, mut statuses) = (seeds(), Random(seed), [0; 600]);
    for _ in 0..count {
        let (path, body) = random.choose(&seeds).clone();
        let bytes = change_body(&body, &mut random);
        let shown = String::from_utf8_lossy(&bytes).into_owned();
        let reply = server.post_text(path, bytes).await;
        let status = usize::from(reply.status.as_u16());
        assert!(status < 500, "{path}: {shown}: {}", reply.text);
        statuses[status] += 1;
    }
    statuses
}

#[tokio::test]
async fn a_hundred_thousand_changed_bodies_are_read() {
    let mut engine = engine_options();
    // The queue refuses valid requests, so no job runs.
    engine.max_queue = 0;
    let server = TestServer::with(engine, ServerOptions::default());
    let statuses = send_changed(&server, 100_000, 1).await;
    for status in [200, 400, 404, 429] {
        assert!(statuses[status] > 100, "{status}: {}", statuses[status]);
    }
}

#[tokio::test]
async fn changed_bodies_run() {
    let mut engine = engine_options();
    // The engine refuses longer texts.
    engine.sequence_bytes = 128 * 1024;
    let server = TestServer::with(engine, ServerOptions::default());
    let statuses = send_changed(&server, 2_000, 2).await;
    assert!(statuses[200] > 100 && statuses[400] > 100);
}
