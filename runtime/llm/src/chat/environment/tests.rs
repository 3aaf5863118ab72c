#![allow(clippy::unwrap_used)]

use std::path::Path;

use chrono::{NaiveDate, NaiveDateTime};
use minijinja::{Error, Value};
use proptest::prelude::*;
use serde::Deserialize;

use super::{new, rewrite, with_deep_stack};

#[derive(Deserialize)]
struct Golden {
    now: String,
    context: Value,
    cases: Vec<Case>,
    chats: Vec<Value>,
    families: Vec<Family>,
}

#[derive(Deserialize)]
struct Case {
    template: String,
    text: Option<String>,
}

#[derive(Deserialize)]
struct Family {
    #[serde(rename = "family")]
    name: String,
    template: String,
    texts: Vec<Option<String>>,
}

fn golden() -> Golden {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chat");
    let text = std::fs::read_to_string(folder.join("environment.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn now() -> NaiveDateTime {
    NaiveDate::from_ymd_opt(2026, 3, 7).unwrap().and_hms_opt(9, 5, 3).unwrap()
}

fn render(source: &str, context: &Value) -> Result<String, Error> {
    let mut environment = new(now)?;
    environment.add_template_owned("template", rewrite(source))?;
    with_deep_stack(|| environment.get_template("template")?.render(context.clone())).unwrap()
}

#[test]
fn expressions_have_the_results_of_jinja2() {
    let golden = golden();
    assert_eq!(golden.now, now().format("%Y-%m-%dT%H:%M:%S").to_string());
    assert!(golden.cases.len() > 300);
    let mut wrong = Vec::new();
    for case in &golden.cases {
        let rendered = render(&case.template, &golden.context);
        let is_equal = match (&rendered, &case.text) {
            (Ok(text), Some(expected)) => text == expected,
            (Err(_), None) => true,
            _ => false,
        };
        if !is_equal {
            wrong.push(format!("{}: {rendered:?}, expected {:?}", case.template, case.text));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn templates_of_model_families_render_as_in_jinja2() {
    let golden = golden();
    assert!(golden.families.len() >= 10);
    for Family { name, template, texts } in &golden.families {
        assert_eq!(texts.len(), golden.chats.len());
        assert!(texts.iter().flatten().count() >= 4, "{name}");
        for (place, (chat, expected)) in golden.chats.iter().zip(texts).enumerate() {
            let rendered = render(template, chat);
            match expected {
                Some(expected) => assert_eq!(&rendered.unwrap(), expected, "{name} {place}"),
                None => assert!(rendered.is_err(), "{name} {place}: {rendered:?}"),
            }
        }
    }
}

#[test]
fn values_that_are_nested_too_deep_are_refused() {
    let nest = "{% set ns = namespace(x=[]) %}{% for i in range(500) %}\
                {% set ns.x = [ns.x] %}{% endfor %}";
    for end in ["{{ ns.x }}", "{{ ns.x | tojson }}", "{{ [ns.x] | join }}"] {
        let message = render(&[nest, end].concat(), &Value::from(())).unwrap_err().to_string();
        assert!(message.contains("nested too deep"), "{message}");
    }
}

#[test]
fn the_deepest_values_are_compared() {
    let nest = "{% set ns = namespace(x=[]) %}{% for i in range(60000) %}\
                {% set ns.x = [ns.x] %}{% endfor %}{{ ns.x == [ns.x] }}";
    assert_eq!(render(nest, &Value::from(())).unwrap(), "False");
}

#[test]
fn large_results_are_refused() {
    for source in [
        "{{ [1] | tojson(indent=10 ** 9) }}",
        "{{ range(10 ** 9) }}",
        "{{ range(99999) | join('a' * 99999) }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}\
         {% endfor %}{{ ns.x }}",
    ] {
        assert!(render(source, &Value::from(())).is_err(), "{source}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_template_causes_a_panic(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "{{", "}}", "{%", "%}", "{#", "#}", "-", "+", "%", "~", "<", ">=", "==", "in",
                "not", "is", "is string", "(", ")", "[", "]", "{", "}", "'a'", "'", "\"", "\\", "é",
                "1", "1.5", "1e", "x", ".items", ".", "|", "|length", "|tojson", ",", ":", "=",
                "if", "else", "for", "for x in", "set", "set x =", "endfor", "endif", "raw",
                "endraw", "generation", "endgeneration", "macro m(a)", "endmacro", " ", " ", "\n",
                "\r", "**", "range(3)", ".split(", ".format(", "'%s'",
            ]),
            0..24,
        )
    ) {
        let _ = render(&parts.concat(), &Value::from(()));
        let _ = render(&["{{ ", &parts.join(" "), " }}"].concat(), &Value::from(()));
    }
}
