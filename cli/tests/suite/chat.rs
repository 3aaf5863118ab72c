//! `vattention chat` through pipes, on the model of `models/recall` and on `golden/chat.gguf`.

use std::io::Write;
use std::process::{Output, Stdio};

use crate::world::{QUESTION, World, expect_code, recall};
use serde_json::{Value, json};

const GGUF: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/chat.gguf");

/// Template that joins all messages, which is the prompt that `models/recall` expects.
const JOINED: &str =
    "{{ bos_token }}{% for message in messages %}{{ message.content }} {% endfor %}";

/// Returns a folder with the model `talker`, which answers questions about the text.
fn talker() -> World {
    let world = World::new();
    world.copy_model(&recall(), "talker", json!({}));
    world.write("talker/chat_template.jinja", JOINED);
    world
}

/// Returns a message with the text, and a question about it.
fn first_message(world: &World) -> String {
    let text = std::fs::read_to_string(world.path("context.txt")).unwrap();
    format!("{text}{QUESTION}")
}

fn chat(world: &World, args: &str, lines: &[&str]) -> Output {
    let mut command = world.command(&format!("chat {args}"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let text: String = lines.iter().flat_map(|line| [*line, "\n"]).collect();
    // A command that refuses its options does not read its input.
    let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
    child.wait_with_output().unwrap()
}

/// Returns standard output of a chat that succeeds without notes.
#[track_caller]
fn talk(world: &World, args: &str, lines: &[&str]) -> String {
    let output = chat(world, args, lines);
    assert_eq!(expect_code(&output, 0), "");
    String::from_utf8(output.stdout).unwrap()
}

/// Checks that the line ends the chat with an error.
#[track_caller]
fn refuse(world: &World, args: &str, lines: &[&str], expected: &str) {
    let said = expect_code(&chat(world, args, lines), 2);
    assert!(said.contains(expected), "{said:?} does not say {expected:?}");
}

/// Returns the values of a name in all texts of `/stats`.
fn stats<'t>(said: &'t str, name: &str) -> Vec<&'t str> {
    said.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).collect()
}

fn token_counts(said: &str) -> Vec<usize> {
    let first = |line: &str| line.split(' ').next().unwrap().parse().unwrap();
    stats(said, "tokens").into_iter().map(first).collect()
}

#[test]
fn a_conversation_continues_without_reading_it_again() {
    let world = talker();
    let message = first_message(&world);
    let lines = ["", "/stats", &message, "/stats", QUESTION, "/stats", "/quit", "no"];
    let args = "--model talker --pipeline promised.toml --temperature 0";
    let said = talk(&world, args, &lines);
    assert_eq!(said.lines().filter(|line| *line == "2998500").count(), 2, "{said}");
    assert_eq!(stats(&said, "pipeline"), ["promised"; 3]);
    let tokens = token_counts(&said);
    assert_eq!((tokens[0], tokens[2] - tokens[1]), (0, 26 + 1), "question and answer: {said}");
    assert!((1800..2200).contains(&tokens[1]), "{said}");
    assert!(stats(&said, "tokens")[0].ends_with(" of at most 16384"), "{said}");
    let promises = stats(&said, "promise");
    assert_eq!(promises[0], "-");
    assert!(promises[1].contains(" % of ") && !promises[1].ends_with('-'), "{said}");
    let densities = stats(&said, "density");
    assert_eq!(densities[0], "-");
    assert!(densities[1].ends_with(" %") && densities[1] != "100.0 %", "{said}");
    assert_eq!(stats(&said, "tokens per second").len(), 3);
    assert!(stats(&said, "memory")[0].contains("0 B of keys and values"), "{said}");
}

#[test]
fn a_reset_forgets_the_conversation() {
    let world = talker();
    let message = first_message(&world);
    let lines = [message.as_str(), "/reset", "/stats", QUESTION];
    let said = talk(&world, "--model talker --temperature 0 --tokens 1", &lines);
    assert!(said.starts_with("2998500\n"), "{said}");
    assert_eq!(token_counts(&said), [0]);
    assert!(!said.ends_with("2998500\n"), "the text is forgotten: {said}");
}

#[test]
fn another_pipeline_reads_the_conversation_again() {
    let world = talker();
    world.write("edges.toml", "[[selectors]]\ntype = \"sink\"\nsize = 16\n");
    let message = first_message(&world);
    let lines = [
        message.as_str(),
        "/stats",
        "/pipeline edges.toml",
        "/stats",
        QUESTION,
        "/stats",
        "/pipeline promised.toml",
        QUESTION,
        "/stats",
    ];
    let said = talk(&world, "--model talker --temperature 0 --tokens 1", &lines);
    assert_eq!(stats(&said, "pipeline"), ["dense", "edges", "edges", "promised"]);
    let tokens = token_counts(&said);
    assert_eq!((tokens[1], tokens[2], tokens[3]), (0, tokens[0] + 27, tokens[0] + 54), "{said}");
    refuse(&world, "--model talker", &["/pipeline none.toml"], "none.toml");
    world.write("far.toml", "dense_layers = [77]\n");
    refuse(&world, "--model talker", &["/pipeline far.toml"], "far.toml: dense_layers[0]");
}

#[test]
fn a_template_that_changes_earlier_messages_is_noted() {
    let world = talker();
    world.write("last.jinja", "{{ bos_token }}{{ messages | length }} {{ messages[-1].content }}");
    let args = "--model talker --template last.jinja --temperature 0 --tokens 2";
    let output = chat(&world, args, &["The grass is green.", "The sky is blue."]);
    let said = expect_code(&output, 0);
    assert!(said.starts_with("note: the conversation in its template differs"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn texts_that_tokenize_differently_continue() {
    let world = World::new();
    // Random weights write tokens that no tokenizer would choose for the same text.
    let lines = ["Hello", "world", "/stats", "and more", "/stats"];
    let said = talk(&world, &format!("--model {GGUF} --tokens 9"), &lines);
    let tokens = token_counts(&said);
    assert!(tokens[1] > tokens[0] + 9, "{said}");
}

#[test]
fn equal_seeds_give_equal_conversations() {
    let world = World::new();
    let run = |more: &str| {
        let args = format!("--model {GGUF} --tokens 8 --context-size 500 {more}");
        let output = chat(&world, &args, &["Hello", "world"]);
        expect_code(&output, 0);
        String::from_utf8(output.stdout).unwrap()
    };
    let first = run("--seed 5");
    assert_eq!(first, run("--seed 5"));
    assert_ne!(first, run("--seed 6"));
    assert_eq!(run("--temperature 0 --seed 5"), run("--temperature 0 --seed 6"));
}

#[test]
fn a_line_that_ends_in_a_backslash_continues() {
    let world = World::new();
    let args = format!("--model {GGUF} --tokens 5 --seed 3");
    let said = talk(&world, &args, &["Hello\\", "\\", "world"]);
    let message = json!([{"role": "user", "content": "Hello\n\nworld"}]);
    world.write("lines.json", message.to_string());
    assert_eq!(said, talk(&world, &format!("{args} --messages lines.json"), &[]));
}

#[test]
fn a_full_context_ends_the_answer_or_refuses_the_message() {
    let world = World::new();
    let args = format!("--model {GGUF} --context-size 60 --temperature 0");
    let output = chat(&world, &args, &["Hello", "/stats"]);
    let said = expect_code(&output, 0);
    assert!(said.contains("note: the context of 60 tokens is full, so the answer ends"), "{said}");
    assert_eq!(token_counts(&String::from_utf8(output.stdout).unwrap()), [60]);
    let expected = "the context is full: the conversation would have ";
    refuse(&world, &args, &["Hello", "world"], expected);
    refuse(&world, &args, &["Hello world ".repeat(30).as_str()], expected);
    let expected = "--context-size: ";
    refuse(&world, &format!("--model {GGUF} --context-size 5000"), &[], expected);
}

#[test]
fn the_last_message_of_a_file_is_answered() {
    let world = talker();
    let question = json!({"role": "user", "content": first_message(&world)});
    world.write("list.json", json!([question]).to_string());
    let args = "--model talker --pipeline promised.toml --temperature 0 --messages";
    assert_eq!(talk(&world, &format!("{args} list.json"), &["not read"]), "2998500\n");
    let object = json!({
        "messages": [question, {"role": "assistant", "content": "2998500"},
                     {"role": "user", "content": [{"type": "text", "text": QUESTION}]}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "chat_template_kwargs": {"shown": "green"},
    });
    world.write("object.json", object.to_string());
    let said = talk(&world, &format!("{args} object.json --json out.json"), &[]);
    let report = world.json("out.json");
    assert_eq!(said, "2998500\n");
    assert_eq!((&report["answer"], &report["stop"]), (&json!("2998500"), &json!("end")));
    assert_eq!((&report["tokens"]["answer"], &report["setup"]), (&json!(1), &json!("a")));
    assert_eq!(report["prefill_density"], 1.0);
    assert!(report["layers"][0]["held"].is_f64() && report["run"]["backend"] == "cpu");
    let inputs = report["run"]["inputs"].as_object().unwrap();
    assert!(inputs.contains_key("object.json"), "{inputs:?}");
    let printed = talk(&world, &format!("{args} object.json --json -"), &[]);
    let printed: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(printed["tokens"], report["tokens"]);
}

/// Compares answers with those of `generate` with the same seed.
#[test]
fn one_message_is_the_prompt_of_generate() {
    let world = World::new();
    world.write("list.json", r#"[{"role": "user", "content": "Hello world"}]"#);
    let sampling = "--temperature 0.8 --top-k 40 --top-p 0.95 --min-p 0.05 --seed 7 --tokens 12";
    let generate = world.run(
        &[
            &["generate", "--model", GGUF, "--pipeline", "dense", "--prompt", "Hello world"][..],
            &["--chat", "--setup", "dense-prompt", "--quiet"],
            &sampling.split(' ').collect::<Vec<_>>(),
        ]
        .concat(),
    );
    expect_code(&generate, 0);
    let chat =
        chat(&world, &format!("--model {GGUF} --seed 7 --tokens 12 --messages list.json"), &[]);
    expect_code(&chat, 0);
    let texts = [generate, chat].map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    assert_eq!(texts[0], texts[1]);
}

#[test]
fn variables_and_a_system_message_reach_the_template() {
    let world = World::new();
    let template = "{% if not shown %}{{ raise_exception('hidden') }}{% endif %}\
                    {{ messages[0].role }}{{ messages[0].content }}{{ messages | length }}";
    world.write("strict.jinja", template);
    let args = format!("--model {GGUF} --template strict.jinja --tokens 1");
    refuse(&world, &args, &["Hello"], "strict.jinja: line 1: ");
    let shown = r#"--chat-template-kwargs {"shown":1}"#;
    talk(&world, &format!("{args} {shown} --system Brief"), &["Hello"]);
    refuse(&world, &format!("{args} --chat-template-kwargs [1]"), &[], "expected a JSON object");
    refuse(
        &world,
        &format!(r#"{args} --chat-template-kwargs {{"messages":1}}"#),
        &["Hello"],
        "variables: `messages` is no further variable",
    );
    let prompt = format!("generate --model {GGUF} --pipeline dense --prompt Hello --tokens 1");
    world.refuse(&format!("{prompt} --template strict.jinja"), "--chat");
    world.refuse(&format!("{prompt} --chat --template strict.jinja"), "strict.jinja: line 1: ");
    world.write("open.jinja", "{{ bos_token }}{{ messages[0].content }}!");
    world.succeed(&format!("{prompt} --chat --template open.jinja --json out.json"));
    let inputs = world.json("out.json")["run"]["inputs"].clone();
    assert!(inputs.get("open.jinja").is_some(), "{inputs}");
}

#[test]
fn malformed_files_are_refused_by_entry_and_key() {
    let world = World::new();
    let user = r#"{"role": "user", "content": "Hi"}"#;
    let cases = [
        ("", "empty; expected a text"),
        ("[", "EOF while parsing a list at line 1 column 1"),
        ("5", "expected a list of messages, or an object with `messages`"),
        ("[]", "there are no messages; expected at least one"),
        ("{}", "there are no messages; expected at least one"),
        (r#"{"messages": 5}"#, "`messages`: expected a list"),
        (r#"{"messages": [], "tools": 5}"#, "`tools`: expected a list"),
        (r#"{"chat_template_kwargs": []}"#, "`chat_template_kwargs`: expected an object"),
        (r#"{"model": "x"}"#, "unknown key `model`; expected `messages`, `tools` or"),
        ("[5]", "messages: `[0]` is a number; expected an object"),
        (r#"[{"content": "Hi"}]"#, "messages: `[0].role` is missing; expected a text"),
        (r#"[{"role": "user", "content": 5}]"#, "messages: `[0].content` is a number; expected"),
        (r#"[USER, {"role": "assistant"}]"#, "`messages[1].role` is \"assistant\"; expected"),
    ];
    let args = format!("--model {GGUF} --messages bad.json");
    for (text, expected) in cases {
        world.write("bad.json", text.replace("USER", user));
        refuse(&world, &args, &[], &format!("error: --messages bad.json: {expected}"));
    }
    refuse(&world, &args.replace("bad", "no"), &[], "--messages no.json: No such file");
    world.write("bad.json", format!("[{user}]"));
    refuse(&world, &format!("{args} --json bad.json"), &[], "expected another file than an input");
    refuse(&world, &format!("{args} --system Hi"), &[], "--system");
    refuse(&world, &format!("--model {GGUF} --json out.json"), &[], "--messages");
}

#[test]
fn wrong_options_and_commands_end_the_program() {
    let world = World::new();
    let recall = recall().display().to_string();
    refuse(&world, &format!("--model {recall}"), &["Hi"], "has no chat template; expected one in");
    let model = format!("--model {GGUF}");
    refuse(&world, &model, &["/stop"], "unknown command `/stop`; expected /pipeline FILE, /reset");
    refuse(&world, &model, &["/pipeline"], "/pipeline: expected a file or a name");
    refuse(&world, &format!("{model} --tokens 0"), &[], "expected at least 1");
    refuse(&world, &format!("{model} --context-size 0"), &[], "expected at least 1");
    refuse(&world, &format!("{model} --temperature -1"), &["Hi"], "--temperature: ");
    refuse(&world, &format!("{model} --pipeline none.toml"), &[], "none.toml");
    let said = talk(&world, &model, &["/help"]);
    assert!(said.contains("/pipeline FILE  answer with another pipeline"), "{said}");
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_answer_and_not_the_program() {
    use std::io::Read;
    use std::process::Command;

    let world = talker();
    world.copy_model(&world.path("talker"), "endless", json!({"eos_token_id": null}));
    let mut command = world.command("chat --model endless --temperature 0");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut said = Vec::new();
    for line in [first_message(&world), QUESTION.to_owned()] {
        writeln!(input, "{line}").unwrap();
        let mut byte = [0];
        out.read_exact(&mut byte).unwrap();
        said.extend(byte);
        let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(kill.success());
        writeln!(input, "/stats").unwrap();
        while !said.ends_with(b"indexes\n") {
            out.read_exact(&mut byte).unwrap();
            said.extend(byte);
        }
    }
    writeln!(input, "/quit").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let said = String::from_utf8(said).unwrap();
    let tokens = token_counts(&said);
    assert!(tokens.last().is_some_and(|&count| count < 16384), "{said}");
    let mut notes = Vec::new();
    child.stderr.take().unwrap().read_to_end(&mut notes).unwrap();
    let notes = String::from_utf8_lossy(&notes);
    assert!(!notes.contains("note: ") && !notes.contains("error: "), "{notes}");
}
