//! A GGUF file instead of a model's folder, and prompts in a chat template.
//!
//! `golden/chat.gguf` is made by `tools/make_chat_gguf.py`: random weights, a small vocabulary,
//! ChatML.

use std::fs;

use crate::world::{QUESTION, World, expect_code, recall};
use serde_json::{Value, json};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/chat.gguf");

/// Generates an answer of three tokens, and returns the JSON.
fn generate(world: &World, more: &[&str]) -> Value {
    let common = ["generate", "--model", MODEL, "--pipeline", "dense.toml", "--tokens", "3"];
    world.succeed(&[&common[..], more, &["--json", "out.json"]].concat());
    world.json("out.json")
}

#[test]
fn generate_takes_a_file() {
    let world = World::new();
    let plain = generate(&world, &["--prompt", "Hello world"]);
    let context = plain["tokens"]["context"].as_u64().unwrap();
    assert_eq!(plain["tokens"]["question"], 0);
    let chat = generate(&world, &["--prompt", "Hello world", "--chat"]);
    let counts = |report: &Value, part: &str| report["tokens"][part].as_u64().unwrap();
    assert!(counts(&chat, "context") > context, "the template's text before the user's: {chat}");
    assert!(counts(&chat, "question") > 0, "the template's text after the user's: {chat}");
    let split = generate(&world, &["--prompt", "Hello", "--question", " world", "--chat"]);
    let all = |report: &Value| counts(report, "context") + counts(report, "question");
    assert_eq!(all(&split), all(&chat), "the same text, split elsewhere");
    let system = generate(&world, &["--prompt", "Hello world", "--chat", "--system", "Be brief."]);
    assert!(counts(&system, "context") > counts(&chat, "context"));
}

/// Copies the parts of the same model, which `tools/make_chat_gguf.py` splits, to a folder.
fn copy_parts(world: &World) {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../runtime/llm/tests/golden/gguf-split");
    fs::create_dir(world.path("parts")).unwrap();
    for entry in fs::read_dir(golden).unwrap() {
        let part = entry.unwrap().path();
        fs::copy(&part, world.path("parts").join(part.file_name().unwrap())).unwrap();
    }
}

#[test]
fn commands_take_the_first_part_of_a_split_file() {
    let world = World::new();
    copy_parts(&world);
    let (first, third) = ("parts/chat-00001-of-00003.gguf", "parts/chat-00003-of-00003.gguf");
    let command = format!("generate --model {first} --pipeline dense.toml --prompt Hello");
    let whole = generate(&world, &["--prompt", "Hello", "--chat"]);
    world.succeed(&format!("{command} --chat --tokens 3 --json split.json"));
    assert_eq!(world.json("split.json")["answer"], whole["answer"]);
    world.refuse(&format!("{command} --json {third}"), third);

    let tasks = "--cases 1 --tasks niah_single_1 --context 1200 --results kept.jsonl";
    let evaluate = format!("evaluate --model {first} --pipelines dense.toml {tasks}");
    let count = || fs::read_to_string(world.path("kept.jsonl")).unwrap().lines().count();
    for (change, expected) in [(0, 1), (0, 1), (1, 2)] {
        let mut bytes = fs::read(world.path(third)).unwrap();
        *bytes.last_mut().unwrap() ^= change;
        world.write(third, bytes);
        world.succeed(&evaluate);
        assert_eq!(count(), expected, "every part belongs to the model");
    }

    let second = first.replace("00001-of", "00002-of");
    let expected = format!("{second}: part 2 of 3; give part 1, {first}");
    world.refuse(&format!("check dense.toml --model {second}"), &expected);
    let expected = format!("name the folder's GGUF file itself: {first}");
    world.refuse("check dense.toml --model parts", &expected);
    fs::remove_file(world.path(third)).unwrap();
    let expected = format!("{third}: no such file; expected part 3 of 3 of {first}");
    world.refuse(&format!("check dense.toml --model {first}"), &expected);
}

#[test]
fn every_command_takes_a_file() {
    let world = World::new();
    world.succeed(&format!("check dense.toml --model {MODEL}"));
    let capture = "--text context.txt --tokens 200 -o trace.safetensors";
    let said = world.succeed(&format!("capture --model {MODEL} {capture}"));
    assert_eq!(said, "wrote trace.safetensors\n");
    world.succeed("compare dense.toml --trace trace.safetensors");
    let tasks = "--cases 1 --tasks niah_single_1 --context 1200 --results kept.jsonl";
    let evaluate = format!("evaluate --model {MODEL} --pipelines dense.toml {tasks}");
    let plain = world.succeed(&evaluate);
    let chat = world.succeed(&format!("{evaluate} --chat"));
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
    world.succeed(&format!("{evaluate} --chat --system Briefly!"));
    let with_system = fs::read_to_string(world.path("kept.jsonl")).unwrap();
    assert_eq!(with_system.lines().count(), 3, "a system message makes another prompt");
}

/// A chat differs from a plain prompt only by the template's text.
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
    let tasks = "--tasks niah_single_1,vt --context 400 --cases 2 --json out.json";
    let evaluate = format!("evaluate --model chatty --pipelines dense.toml promised.toml {tasks}");
    world.succeed(&evaluate);
    let plain = world.json("out.json");
    world.succeed(&format!("{evaluate} --chat"));
    let chat = world.json("out.json");
    assert_eq!((&plain["chat"], &chat["chat"]), (&json!(false), &json!(true)));
    for (plain, chat) in [(&plain, &chat)].map(|(a, b)| (&a["variants"], &b["variants"])) {
        assert_eq!(plain[0]["accuracy"], chat[0]["accuracy"]);
    }
}

#[test]
fn bad_files_and_templates_are_refused() {
    let world = World::new();
    let refuse = |options: &str, expected: &str| {
        let common = "generate --pipeline dense.toml --prompt Hello --model";
        world.refuse(&format!("{common} {options}"), expected);
    };
    let whole = fs::read(MODEL).unwrap();
    world.write("cut.gguf", &whole[..whole.len() / 2]);
    world.write("header.gguf", &whole[..1000]);
    let plain = format!("{} --chat", recall().display());
    let long = format!("{MODEL} --tokens 3000");
    for (options, expected) in [
        ("cut.gguf", "the file is cut"),
        ("header.gguf", "header.gguf: not a whole GGUF file"),
        ("context.txt", "context.txt: not a GGUF file: it begins with"),
        ("nowhere.gguf", "expected a folder with config.json, tokenizer.json and safetensors"),
        (&long, "chat.gguf: context: the sequence would have"),
        (&long, "expected at most `llama.context_length` = 2048"),
        (&format!("{MODEL} --system brief"), "--chat"),
        (&plain, "has no chat template; expected one in chat_template.jinja"),
    ] {
        refuse(options, expected);
    }
    let options = "--pipelines dense.toml --context 3000 --tasks niah_single_1";
    let expected = "chat.gguf: context: the sequence would have 3000 tokens";
    world.refuse(&format!("evaluate --model {MODEL} {options}"), expected);
    for (template, expected) in [
        ("{{ raise_exception('no users here') }}", "no users here"),
        ("{% for m in messages %}", "chat_template.jinja: line 1: "),
        ("{{ messages[0]['content'] | upper }}", "the end of the context cannot be found"),
    ] {
        let name = format!("model-{}", template.len());
        world.copy_model(&recall(), &name, json!({}));
        world.write(&format!("{name}/chat_template.jinja"), template);
        refuse(&format!("{name} --chat --question Who? --setup b"), expected);
        let tasks = "--context 400 --tasks niah_single_1 --cases 1 --chat --setup b";
        let evaluate = format!("evaluate --model {name} --pipelines dense.toml {tasks}");
        world.refuse(&evaluate, expected);
    }
}

/// The answer is complete even if `--tokens` ends it inside a character.
#[test]
fn the_stream_is_the_answer() {
    let world = World::new();
    let mut cut = 0;
    for tokens in ["1", "2", "3", "5", "8", "13", "21"] {
        for prompt in ["Hello world", "\u{1F44B}\u{1F3FD}"] {
            let common = ["generate", "--model", MODEL, "--pipeline", "dense.toml"];
            let more = ["--prompt", prompt, "--tokens", tokens, "--ignore-eos", "--json", "o.json"];
            let said = world.succeed(&[&common[..], &more].concat());
            let report = world.json("o.json");
            let answer = report["answer"].as_str().unwrap();
            assert!(said.starts_with(&format!("{answer}\n\n")), "{answer:?} is not in {said:?}");
            cut += usize::from(answer.ends_with('\u{FFFD}'));
        }
    }
    assert!(cut > 0, "no answer ends inside a character");
}

#[test]
fn errors_for_missing_models_explain_how_to_get_them() {
    let world = World::new();
    let refuse = |model: &str, expected: &str| {
        let common = "--pipeline dense.toml --prompt Hello";
        world.refuse(&format!("generate --model {model} {common}"), expected);
        world.refuse(&format!("check dense.toml --model {model}"), expected);
    };
    fs::create_dir(world.path("folder")).unwrap();
    refuse("folder", "folder: no config.json; expected a folder with config.json");
    world.write("folder/model.gguf", fs::read(MODEL).unwrap());
    let itself = "folder: no config.json; name the folder's GGUF file itself: folder/model.gguf";
    refuse("folder", itself);
    let hub = "--model Qwen/Qwen3-0.6B: no such file or folder; expected a folder with \
               config.json, tokenizer.json and safetensors, or a GGUF file. Nothing is \
               downloaded; for a model of the Hugging Face Hub, run `hf download \
               Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B` and give `--model Qwen3-0.6B`";
    refuse("Qwen/Qwen3-0.6B", hub);
    for path in ["none", "folder/none", "none/none.gguf", "./none/none", "none/none/none"] {
        let said = expect_code(&world.run(&format!("check dense.toml --model {path}")), 2);
        assert!(said.contains("no such file or folder") && !said.contains("Hub"), "{said}");
    }
}

#[test]
fn a_chat_template_may_change_texts_that_are_not_split() {
    let world = World::new();
    world.copy_model(&recall(), "loud", json!({}));
    world.write("loud/chat_template.jinja", "{{ messages[-1]['content'] | upper }}");
    let common = ["generate", "--model", "loud", "--pipeline", "dense.toml", "--tokens", "1"];
    let common = [&common[..], &["--prompt", "Hello", "--chat", "--json", "out.json"]].concat();
    for more in [&["--setup", "b"][..], &["--question", " Who?", "--setup", "a"]] {
        world.succeed(&[&common[..], more].concat());
        let tokens = &world.json("out.json")["tokens"];
        assert!(tokens["context"].as_u64().unwrap() > 0, "{tokens}");
        assert_eq!(tokens["question"], 0, "the prompt is not split: {tokens}");
    }
    let tasks = "--context 400 --tasks niah_single_1 --cases 1 --chat --setup a";
    world.succeed(&format!("evaluate --model loud --pipelines dense.toml {tasks}"));
}

/// Returns the file with other bytes, `skip` bytes after the end of the text `after`.
fn patched(after: &str, skip: usize, bytes: &[u8]) -> Vec<u8> {
    let mut file = fs::read(MODEL).unwrap();
    let found = file.windows(after.len()).position(|window| window == after.as_bytes()).unwrap();
    let begin = found + after.len() + skip;
    file[begin..begin + bytes.len()].copy_from_slice(bytes);
    file
}

/// Wrong architectures, tensors and vocabularies in the header are refused before any computation.
/// A tensor's name is followed by the number of its dimensions, the dimensions, and its type.
#[test]
fn every_command_refuses_a_wrong_header() {
    let world = World::new();
    for (name, file, expected) in [
        (
            "architecture.gguf",
            patched("general.architecture", 4 + 8, b"gemma"),
            "architecture.gguf: `general.architecture` is \"gemma\"; expected one of llama, \
             llama4",
        ),
        (
            "type.gguf",
            patched("blk.0.ffn_gate.weight", 4 + 16, &18_u32.to_le_bytes()),
            "type.gguf: tensor `blk.0.ffn_gate.weight` is IQ3_XXS; expected F32, F16, BF16",
        ),
        (
            "size.gguf",
            patched("blk.0.ffn_gate.weight", 4 + 8, &80_u64.to_le_bytes()),
            "size.gguf: tensor `blk.0.ffn_gate.weight` has shape [80",
        ),
        (
            "vocabulary.gguf",
            patched("token_embd.weight", 4 + 8, &100_u64.to_le_bytes()),
            "vocabulary.gguf: tensor `token_embd.weight` has shape [100",
        ),
    ] {
        world.write(name, &file);
        for command in [
            "generate --prompt Hello --pipeline dense.toml",
            "evaluate --pipelines dense.toml --context 500 --tasks niah_single_1 --cases 1",
            "capture --text context.txt --tokens 100 -o never.safetensors",
        ] {
            world.refuse(&format!("{command} --model {name}"), expected);
        }
    }
}
