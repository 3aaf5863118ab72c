#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::Value as Metadata;
use chrono::{NaiveDate, NaiveDateTime};
use serde_json::{Map, Value as Json, json};

use super::files::SpecialTexts;
use super::{Chat, ChatMessages, ChatTemplate};

/// Messages of the system and the user.
type Messages = (Option<String>, String);

fn golden(name: &str) -> Json {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chat");
    serde_json::from_str(&fs::read_to_string(folder.join(format!("{name}.json"))).unwrap()).unwrap()
}

/// Time of the golden texts.
fn now() -> NaiveDateTime {
    NaiveDate::from_ymd_opt(2026, 3, 7).unwrap().and_hms_opt(9, 5, 3).unwrap()
}

fn template(source: &str) -> ChatTemplate {
    let texts = SpecialTexts { bos: Some("<s>".into()), eos: Some("</s>".into()) };
    ChatTemplate::with_clock(Path::new("model"), Some("key"), source, texts, now).unwrap()
}

fn chat<'a>(messages: &'a [Json], variables: &'a Map<String, Json>) -> ChatMessages<'a> {
    ChatMessages { messages, tools: None, variables, add_generation_prompt: true }
}

/// Returns the error of messages that a template does not receive.
fn refuse_messages(messages: &Json) -> String {
    let rendered = template("").render_messages(&chat(messages.as_array().unwrap(), &Map::new()));
    rendered.unwrap_err().to_string()
}

fn golden_template(name: &str) -> ChatTemplate {
    template(golden(name)["template"].as_str().unwrap())
}

fn joined(chat: &Chat) -> String {
    [chat.before.as_str(), chat.after.as_str()].concat()
}

#[test]
fn prompts_are_as_transformers_renders_them() {
    let chats: Vec<Messages> = serde_json::from_value(golden("chats")).unwrap();
    for name in ["chatml", "llama3", "mistral", "refuses-system", "qwen"] {
        let case = golden(name);
        let template = template(case["template"].as_str().unwrap());
        for (place, (system, user)) in chats.iter().enumerate() {
            let rendered = template.render(system.as_deref(), user, "");
            if let Some(prompt) = case["prompts"][place].as_str() {
                assert_eq!(rendered.unwrap(), prompt, "{name} {place}");
                let answered = template.render(system.as_deref(), user, " An").unwrap();
                assert_eq!(answered, [prompt, " An"].concat());
            } else {
                let raised = case["prompts"][place]["raises"].as_str().unwrap();
                let message = rendered.unwrap_err().to_string();
                assert!(message.contains(raised), "{name} {place}: {message}");
            }
        }
    }
}

#[test]
fn conversations_are_as_jinja2_renders_them() {
    let golden = golden("environment");
    for family in golden["families"].as_array().unwrap() {
        let template = template(family["template"].as_str().unwrap());
        let texts = family["texts"].as_array().unwrap();
        for (case, expected) in golden["chats"].as_array().unwrap().iter().zip(texts) {
            let mut variables = case.as_object().unwrap().clone();
            let messages = variables.remove("messages").unwrap();
            let tools = variables.remove("tools").unwrap();
            let add_generation_prompt = variables.remove("add_generation_prompt").unwrap();
            let rendered = template.render_messages(&ChatMessages {
                messages: messages.as_array().unwrap(),
                tools: Some(&tools),
                variables: &variables,
                add_generation_prompt: add_generation_prompt.as_bool().unwrap(),
            });
            let what = format!("{}: {messages}", family["family"]);
            match expected {
                _ if messages[0]["content"].is_array() => assert!(rendered.is_err(), "an image"),
                Json::String(expected) => assert_eq!(&rendered.unwrap(), expected, "{what}"),
                _ => {
                    assert!(
                        rendered.unwrap_err().to_string().starts_with("model: `key`"),
                        "{what}"
                    );
                }
            }
        }
    }
}

#[test]
fn messages_of_clients_get_the_form_of_templates() {
    let source = "{% for m in messages %}{{ m.role }}={{ m.content }};\
                  {% for call in m.tool_calls or [] %}{{ call.function.arguments | tojson }};\
                  {% endfor %}{% endfor %}\
                  {{ tools is none }}{{ add_generation_prompt }}{{ thinks }}";
    let call = |arguments: &str| json!({"function": {"name": "f", "arguments": arguments}});
    let part = |text: &str| json!({"type": "text", "text": text});
    let calls = [call(r#"{"z": 1, "a": [2]}"#), call("")];
    let messages = [
        json!({"role": "user", "content": [part("a"), part("b")]}),
        json!({"role": "assistant", "content": null, "tool_calls": calls}),
        json!({"role": "tool", "content": "c", "tool_calls": null}),
        json!({"role": "odd"}),
    ];
    let variables = Map::from_iter([("thinks".to_owned(), json!(false))]);
    let rendered = template(source).render_messages(&ChatMessages {
        tools: Some(&json!([])),
        add_generation_prompt: false,
        ..chat(&messages, &variables)
    });
    let expected = "user=a\nb;assistant=None;{\"z\": 1, \"a\": [2]};{};tool=c;odd=;TrueFalseFalse";
    assert_eq!(rendered.unwrap(), expected);
}

#[test]
fn malformed_messages_are_refused_by_place_and_key() {
    let user = json!({"role": "user", "content": "a"});
    let part = |part: Json| json!([user, {"role": "user", "content": [part]}]);
    let arguments = |text: &str| {
        let call = json!({"function": {"arguments": text}});
        json!([{"role": "assistant", "tool_calls": [call]}])
    };
    for (messages, expected) in [
        (json!([]), "there are none; expected at least one"),
        (json!([user, 5]), "`[1]` is a number; expected an object with `role` and `content`"),
        (json!([{"content": "a"}]), "`[0].role` is missing; expected a text"),
        (json!([{"role": null}]), "`[0].role` is null; expected a text"),
        (
            json!([{"role": "user", "content": {}}]),
            "`[0].content` is an object; expected a text or a list of parts",
        ),
        (part(json!("a")), "`[1].content[0].type` is missing; expected \"text\""),
        (
            part(json!({"type": "image_url"})),
            "`[1].content[0].type` is \"image_url\"; expected \"text\"",
        ),
        (part(json!({"type": "text"})), "`[1].content[0].text` is missing; expected a text"),
        (json!([{"role": "a", "tool_calls": true}]), "`[0].tool_calls` is a truth value"),
        (arguments("{"), "`[0].tool_calls[0].function.arguments` is no JSON: EOF"),
        (arguments("[]"), "`[0].tool_calls[0].function.arguments` is the text of a list; expected"),
    ] {
        let message = refuse_messages(&messages);
        assert!(message.starts_with(&format!("messages: {expected}")), "{message}");
    }
}

#[test]
fn tools_and_variables_of_other_kinds_are_refused() {
    let (messages, none) = ([json!({"role": "user", "content": "a"})], Map::new());
    let refuse =
        |request: &ChatMessages<'_>| template("").render_messages(request).unwrap_err().to_string();
    let message = refuse(&ChatMessages { tools: Some(&json!("f")), ..chat(&messages, &none) });
    assert_eq!(message, "tools: found a text; expected a list");
    for name in ["messages", "tools", "add_generation_prompt"] {
        let variables = Map::from_iter([(name.to_owned(), json!(true))]);
        let message = refuse(&chat(&messages, &variables));
        assert!(message.starts_with(&format!("variables: `{name}`")), "{message}");
    }
}

#[test]
fn prompts_are_split_after_the_context() {
    let systems = [None, Some("Once upon a time."), Some("")];
    let cases = [
        ("Once upon a time.", " Who?"),
        ("\n Once upon a time. \n", "\n\n Who? "),
        ("user", "\n"),
        ("a", ""),
        ("trailing  ", "  "),
        ("", "Who?"),
        ("", "  Who?"),
        (" \n", " Who?"),
        ("{{ x }} <|im_end|> \u{E000}\u{E001}", "\u{E000} 你好"),
    ];
    for name in ["chatml", "llama3", "mistral", "qwen"] {
        let template = golden_template(name);
        for system in systems {
            for (context, question) in cases {
                let chat = template.split(system, context, question, "Answer: ").unwrap();
                let user = [context, question].concat();
                let whole = template.render(system, &user, "Answer: ").unwrap();
                assert_eq!(joined(&chat), whole);
                let (before, after) = (&chat.before, &chat.after);
                assert!(before.trim_end().ends_with(context.trim()), "{name} {before:?}");
                let question = question.trim();
                // The question follows the context immediately, apart from white space.
                assert!(after.trim_start().starts_with(question), "{name} {after:?}");
                assert!(after.ends_with("Answer: "));
                // The cut is in the user's text, even if the same text occurs before it.
                assert_eq!(before.matches("INST] ").count(), usize::from(name == "mistral"));
                if name == "llama3" {
                    assert!(before.contains("<|start_header_id|>user"), "{before:?}");
                } else if name != "mistral" {
                    assert!(before.contains("<|im_start|>user"), "{before:?}");
                }
            }
        }
    }
}

#[test]
fn a_context_that_the_prompt_does_not_show_is_refused() {
    for source in [
        "no user",
        "{% for message in messages %}{{ message.content }}{{ message.content }}{% endfor %}",
        "{{ messages[0].content | length }}",
        "{{ messages[0].content | reverse }}",
    ] {
        let message = template(source).split(None, "a context", "?", "").unwrap_err().to_string();
        assert!(message.starts_with("model: `key`: the end of the context"), "{message}");
    }
}

#[test]
fn errors_of_templates_name_the_line() {
    let new = |source: &str| {
        ChatTemplate::new(Path::new("model"), Some("key"), source, SpecialTexts::default())
            .and_then(|template| template.render(None, "", ""))
            .unwrap_err()
            .to_string()
    };
    let message = new("\n\n{{ raise_exception('not like this') }}");
    assert!(
        message.starts_with("model: `key`, line 3: ") && message.contains("not like this"),
        "{message}"
    );
    let message = new("\n{% if messages %}");
    assert!(message.starts_with("model: `key`, line 2: "), "{message}");
    let message = new("{{ messages[0].nothing.at_all }}");
    assert!(message.starts_with("model: `key`, line 1: undefined"), "{message}");
    let message = new("{% include 'other' %}");
    assert!(message.starts_with("model: `key`, line 1: "), "{message}");
}

#[test]
fn a_template_without_end_is_stopped() {
    let endless = [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}x\
         {% endfor %}{% endfor %}{% endfor %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ];
    for source in endless {
        let message = template(source).render(None, "", "").unwrap_err().to_string();
        assert!(message.starts_with("model: `key`, line 1: "), "{message}");
    }
}

#[test]
fn templates_read_the_clock() {
    let source = "{{ strftime_now('%Y') | int > 2024 }}";
    let template =
        ChatTemplate::new(Path::new("model"), None, source, SpecialTexts::default()).unwrap();
    assert_eq!(template.render(None, "", "").unwrap(), "True");
}

#[test]
fn prompts_that_change_the_text_are_returned_whole() {
    let (context, question) = ("a \"b\"\n", "c?");
    for (source, prompt) in [
        ("<{{ messages[0].content | tojson }}>", "<\"a \\\"b\\\"\\nc?\">"),
        ("{{ messages[0].content | replace('b', 'x') | upper }}", "A \"X\"\nC?"),
    ] {
        let template = template(source);
        assert!(template.split(None, context, question, "!").is_err());
        let chat = template.split_if_shown(None, context, question, "!").unwrap();
        assert_eq!(chat, Chat { before: [prompt, "!"].concat(), after: String::new() });
    }
    let shown = golden_template("chatml");
    let chat = shown.split_if_shown(None, context, question, "!").unwrap();
    assert_eq!(chat, shown.split(None, context, question, "!").unwrap());
    assert!(template("{{ nothing() }}").split_if_shown(None, "a", "b", "").is_err());
}

/// Creates a directory with some files.
fn directory(files: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let path = folder.path().to_owned();
    (folder, path)
}

fn render_directory(files: &[(&str, &str)]) -> Option<String> {
    let (_folder, path) = directory(files);
    let template = ChatTemplate::open(&path).unwrap()?;
    Some(template.render(Some("S"), "U", "A").unwrap())
}

const SOURCE: &str = "{{ bos_token }}{{ messages | length }}{{ eos_token }}|";

#[test]
fn templates_of_directories_are_in_one_of_three_places() {
    let config = |template: Json, bos: Json| {
        json!({"chat_template": template, "bos_token": bos, "eos_token": null}).to_string()
    };
    assert_eq!(render_directory(&[]), None);
    assert_eq!(render_directory(&[("tokenizer_config.json", "{}")]), None);
    let text = config(json!(SOURCE), json!("<b>"));
    assert_eq!(render_directory(&[("tokenizer_config.json", &text)]).unwrap(), "<b>2|A");
    let named = json!([{"name": "rag", "template": "?"}, {"name": "default", "template": SOURCE}]);
    let text = config(named, json!({"content": "<b>", "special": true}));
    assert_eq!(render_directory(&[("tokenizer_config.json", &text)]).unwrap(), "<b>2|A");
    let jinja = ("chat_template.jinja", "jinja{{ bos_token }}");
    assert_eq!(render_directory(&[("tokenizer_config.json", &text), jinja]).unwrap(), "jinja<b>A");
    assert_eq!(render_directory(&[jinja]).unwrap(), "jinjaA");
}

#[test]
fn a_file_replaces_the_template_of_a_model() {
    let config = json!({"chat_template": "{{", "bos_token": "<b>", "eos_token": "<e>"}).to_string();
    let (_folder, path) =
        directory(&[("tokenizer_config.json", &config), ("own", SOURCE), ("bad", "\n\n{% oh %}")]);
    let template = ChatTemplate::open_file(&path.join("own"), &path).unwrap();
    assert_eq!(template.render(None, "U", "A").unwrap(), "<b>1<e>|A");
    let (_plain, without) = directory(&[]);
    let template = ChatTemplate::open_file(&path.join("own"), &without).unwrap();
    assert_eq!(template.render(None, "U", "A").unwrap(), "1|A");
    for (name, expected) in [("bad", "line 3: "), ("none", "No such file")] {
        let file = path.join(name);
        let message = ChatTemplate::open_file(&file, &path).unwrap_err().to_string();
        assert!(message.starts_with(&format!("{}: {expected}", file.display())), "{message}");
    }
}

#[test]
fn files_with_invalid_templates_are_refused() {
    for (name, text, expected) in [
        ("tokenizer_config.json", "{", "EOF"),
        ("tokenizer_config.json", r#"{"chat_template": 5}"#, "`chat_template` is no template"),
        ("tokenizer_config.json", r#"{"chat_template": [{"name": "rag"}]}"#, "\"default\""),
        ("tokenizer_config.json", r#"{"chat_template": "{{"}"#, "`chat_template`, line 1"),
        ("tokenizer_config.json", r#"{"bos_token": 5}"#, "`bos_token` is no token"),
        ("chat_template.jinja", "\n{% oh %}", "line 2"),
    ] {
        let (_folder, path) = directory(&[(name, text)]);
        let message = ChatTemplate::open(&path).unwrap_err().to_string();
        assert!(message.starts_with(&path.join(name).display().to_string()), "{message}");
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn metadata_of_gguf_has_the_template_and_its_tokens() {
    let text = |text: &str| Metadata::String(text.into());
    let mut metadata = HashMap::from([
        ("tokenizer.ggml.tokens".into(), Metadata::Array(vec![text("x"), text("<b>")])),
        ("tokenizer.ggml.bos_token_id".into(), Metadata::U32(1)),
    ]);
    let path = Path::new("a.gguf");
    assert!(ChatTemplate::from_metadata(path, &metadata).unwrap().is_none());
    metadata.insert("tokenizer.chat_template".into(), text(SOURCE));
    let template = ChatTemplate::from_metadata(path, &metadata).unwrap().unwrap();
    assert_eq!(template.render(None, "U", "A").unwrap(), "<b>1|A");
    metadata.insert("tokenizer.ggml.eos_token_id".into(), Metadata::U32(2));
    let message = ChatTemplate::from_metadata(path, &metadata).unwrap_err().to_string();
    assert!(
        message.starts_with("a.gguf: `tokenizer.ggml.eos_token_id` is 2 of type u32"),
        "{message}"
    );
    metadata.insert("tokenizer.chat_template".into(), Metadata::Bool(true));
    let message = ChatTemplate::from_metadata(path, &metadata).unwrap_err().to_string();
    assert!(message.starts_with("a.gguf: `tokenizer.chat_template` is true"), "{message}");
}
