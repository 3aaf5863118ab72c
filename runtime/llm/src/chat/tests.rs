#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::Value as Metadata;
use serde_json::{Value as Json, json};

use super::{Chat, ChatTemplate};

/// Messages of the system and the user.
type Messages = (Option<String>, String);

fn golden(name: &str) -> Json {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chat");
    serde_json::from_str(&fs::read_to_string(folder.join(format!("{name}.json"))).unwrap()).unwrap()
}

fn template(source: &str) -> ChatTemplate {
    let (bos, eos) = (Some("<s>".to_owned()), Some("</s>".to_owned()));
    ChatTemplate::new(Path::new("model"), Some("key"), source.to_owned(), bos, eos).unwrap()
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
        ChatTemplate::new(Path::new("model"), Some("key"), source.into(), None, None)
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
    let template = template("{{ strftime_now('%Y') | int > 2024 }}");
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
