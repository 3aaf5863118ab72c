//! A GGUF file wherever a model's folder goes, and prompts in a chat template.
//!
//! `golden/chat.gguf` is made by `tools/make_chat_gguf.py`: random weights, a small vocabulary, ChatML.

use std::fs;

use crate::world::{QUESTION, World, recall};
use serde_json::{Value, json};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/chat.gguf");

/// The JSON of an answer of three tokens.
fn generate(world: &World, more: &[&str]) -> Value {
    let common = ["generate", "--model", MODEL, "--pipeline", "dense.toml", "--tokens", "3"];
    world.succeed(&[&common[..], more, &["--json", "out.json"]].concat());
    world.json("out.json")
}

#[test]
fn a_file_answers_as_a_folder_does() {
    let world = World::new();
    let plain = generate(&world, &["--prompt", "Hello world"]);
    let context = plain["tokens"]["context"].as_u64().unwrap();
    assert_eq!(plain["tokens"]["question"], 0);
    let chat = generate(&world, &["--prompt", "Hello world", "--chat"]);
    let counts = |report: &Value, part: &str| report["tokens"][part].as_u64().unwrap();
    assert!(counts(&chat, "context") > context, "what is before the user's text: {chat}");
    assert!(counts(&chat, "question") > 0, "what is behind it: {chat}");
    let asked = generate(&world, &["--prompt", "Hello", "--question", " world", "--chat"]);
    let all = |report: &Value| counts(report, "context") + counts(report, "question");
    assert_eq!(all(&asked), all(&chat), "the same text, cut elsewhere");
    let system = generate(&world, &["--prompt", "Hello world", "--chat", "--system", "Be brief."]);
    assert!(counts(&system, "context") > counts(&chat, "context"));
}

#[test]
fn every_command_takes_a_file() {
    let world = World::new();
    world.succeed(&["check", "dense.toml", "--model", MODEL]);
    let capture = ["capture", "--model", MODEL, "--text", "context.txt", "--tokens", "200"];
    let said = world.succeed(&[&capture[..], &["-o", "trace.safetensors"]].concat());
    assert_eq!(said, "wrote trace.safetensors\n");
    world.succeed(&["compare", "dense.toml", "--trace", "trace.safetensors"]);
    let evaluate = ["evaluate", "--model", MODEL, "--pipelines", "dense.toml", "--cases", "1"];
    let tasks = ["--tasks", "niah_single_1", "--context", "1200", "--results", "kept.jsonl"];
    let evaluate = [&evaluate[..], &tasks].concat();
    let plain = world.succeed(&evaluate);
    let chat = world.succeed(&[&evaluate[..], &["--chat"]].concat());
    let title = |said: &str| said.lines().next().unwrap().to_owned();
    assert!(
        title(&chat).contains(", as a chat, ") && !title(&plain).contains(", as a chat, "),
        "{chat}"
    );
    let kept = fs::read_to_string(world.path("kept.jsonl")).unwrap();
    assert_eq!(kept.lines().count(), 2, "a chat is another prompt");
    world.succeed(&evaluate);
    let again = fs::read_to_string(world.path("kept.jsonl")).unwrap();
    assert_eq!(again, kept, "the same file is the same model");
}

/// What a template says around a text is all that a chat changes.
#[test]
fn a_chat_that_adds_nothing_is_the_plain_prompt() {
    let world = World::new();
    world.copy_model(&recall(), "chatty", json!({}));
    world.write("chatty/chat_template.jinja", "{{ bos_token }}{{ messages[-1]['content'] }}");
    let common = ["generate", "--model", "chatty", "--pipeline", "promised.toml"];
    let texts = ["--context", "context.txt", "--question", QUESTION, "--json", "out.json"];
    let common = [&common[..], &texts].concat();
    world.succeed(&common);
    let plain = world.json("out.json");
    let said = world.succeed(&[&common[..], &["--chat"]].concat());
    let chat = world.json("out.json");
    assert!(said.starts_with("2998500\n"), "{said}");
    assert_eq!((&chat["tokens"], &chat["layers"]), (&plain["tokens"], &plain["layers"]));
    let evaluate = ["evaluate", "--model", "chatty", "--pipelines", "dense.toml", "promised.toml"];
    let tasks = ["--tasks", "niah_single_1,vt", "--context", "400", "--cases", "2"];
    let evaluate = [&evaluate[..], &tasks, &["--json", "out.json"]].concat();
    world.succeed(&evaluate);
    let plain = world.json("out.json");
    world.succeed(&[&evaluate[..], &["--chat"]].concat());
    let chat = world.json("out.json");
    assert_eq!((&plain["chat"], &chat["chat"]), (&json!(false), &json!(true)));
    for (plain, chat) in [(&plain, &chat)].map(|(a, b)| (&a["variants"], &b["variants"])) {
        assert_eq!(plain[0]["accuracy"], chat[0]["accuracy"]);
    }
}

#[test]
fn what_is_wrong_with_a_file_is_said() {
    let world = World::new();
    let refuse = |model: &str, more: &[&str], expected: &str| {
        let common =
            ["generate", "--model", model, "--pipeline", "dense.toml", "--prompt", "Hello"];
        world.refuse(&[&common[..], more].concat(), expected);
    };
    let whole = fs::read(MODEL).unwrap();
    world.write("cut.gguf", &whole[..whole.len() / 2]);
    refuse("cut.gguf", &[], "the file is cut");
    world.write("header.gguf", &whole[..1000]);
    refuse("header.gguf", &[], "header.gguf: not a whole GGUF file");
    refuse("context.txt", &[], "context.txt: not a whole GGUF file");
    refuse(
        "nowhere.gguf",
        &[],
        "expected a folder with config.json, tokenizer.json and safetensors",
    );
    refuse(MODEL, &["--tokens", "3000"], "expected at most `context_length` = 2048");
    refuse(MODEL, &["--system", "Be brief."], "--chat");
    let plain = recall().display().to_string();
    refuse(&plain, &["--chat"], "has no chat template; expected one in chat_template.jinja");
    for (template, expected) in [
        ("{{ raise_exception('no users here') }}", "no users here"),
        ("{% for m in messages %}", "chat_template.jinja: line 1: "),
        ("{{ messages[0]['content'] | upper }}", "the end of the context is not to be found"),
    ] {
        let name = format!("model-{}", template.len());
        world.copy_model(&recall(), &name, json!({}));
        world.write(&format!("{name}/chat_template.jinja"), template);
        refuse(&name, &["--chat"], expected);
    }
}
