#![allow(clippy::unwrap_used)]

use std::path::Path;

use chrono::{NaiveDate, NaiveDateTime};
use minijinja::{Error, Value};
use proptest::prelude::*;
use serde::Deserialize;

use super::{new, rewrite, with_deep_stack};

/// Templates whose results differ from jinja2's, and the reason.
const EXCEPTIONS: [(&str, &str); 13] = [
    ("{{ '{!r}'.format('x') }}", "`!r` in `str.format` is refused"),
    ("{{ 'abc'.encode() is string }}", "methods of bytes are refused"),
    ("{{ n.bit_length() }}", "methods of numbers are refused"),
    ("{{ f.is_integer() }}", "methods of numbers are refused"),
    ("{{ 'a b c d' | wordwrap(3) }}", "filters of web pages are refused"),
    ("{{ 'a-b some text' | wordwrap(4, wrapstring='/') }}", "filters of web pages are refused"),
    ("{{ 'see www.x.org' | urlize }}", "filters of web pages are refused"),
    ("{{ {'a': 'x', 'b': none} | xmlattr }}", "filters of web pages are refused"),
    ("{{ lipsum(1) is string }}", "random text is refused"),
    ("{{ d['b', 'a'] }}", "a tuple as a key, without parentheses, is refused"),
    (
        "{% macro m(a) %}[{{ a }}{{ varargs }}{{ kwargs }}]{% endmacro %}{{ m(1, 2, k=3) }}",
        "arguments that a macro does not name are refused",
    ),
    ("{% set loop = 1 %}{{ loop }}", "a variable with the name `loop` is refused"),
    ("{{ self is defined }}", "`self`, which has the blocks of a template, is not defined"),
];

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
    assert!(golden.cases.len() > 800);
    let mut wrong = Vec::new();
    for case in &golden.cases {
        let rendered = render(&case.template, &golden.context);
        let is_equal = match (&rendered, &case.text) {
            (Ok(text), Some(expected)) => text == expected,
            (Err(_), None) => true,
            _ => false,
        };
        let is_exception = EXCEPTIONS.iter().any(|(template, _)| *template == case.template);
        if is_equal == is_exception {
            wrong.push(format!("{}: {rendered:?}, expected {:?}", case.template, case.text));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_exception_is_a_case() {
    let golden = golden();
    for (template, reason) in EXCEPTIONS {
        assert!(golden.cases.iter().any(|case| case.template == template), "{template}: {reason}");
    }
}

#[test]
fn templates_of_model_families_make_the_prompts_of_jinja2() {
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
fn rewritten_templates_keep_their_lines() {
    let source = "{{\n '%s'\n % (1,\n 2) }}\n{% if 1 <\n 2 %}{% endif %}\n{# % #}\n~";
    let rewritten = rewrite(source);
    assert_eq!(rewritten.matches('\n').count(), source.matches('\n').count());
    let said = render("\n\n{{ 'a' < 1 }}", &Value::from(())).unwrap_err();
    assert_eq!(said.line(), Some(3));
}

#[test]
fn values_that_are_nested_too_deep_are_refused() {
    let nest = "{% set ns = namespace(x=[]) %}{% for i in range(500) %}\
                {% set ns.x = [ns.x] %}{% endfor %}";
    for end in ["{{ ns.x }}", "{{ ns.x | tojson }}", "{{ '%r' % ns.x }}", "{{ ns.x < [ns.x] }}"] {
        let said = render(&[nest, end].concat(), &Value::from(())).unwrap_err().to_string();
        assert!(said.contains("nested too deep"), "{said}");
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
        "{{ 'a'.center(10 ** 12) }}",
        "{{ '%*d' % (10 ** 12, 1) }}",
        "{{ '%.999999999999d' % 1 }}",
        "{{ [1] | tojson(indent=10 ** 9) }}",
        "{{ range(10 ** 9) }}",
        "{% for i in range(99) %}{{ range(99999) | length }}{% endfor %}",
        "{{ 'a' | indent(10 ** 12) }}",
        "{{ '\t'.expandtabs(10 ** 12) }}",
        "{{ ('\t' * 9999).expandtabs(10 ** 6) }}",
        "{{ range(99999) | join('a' * 99999) }}",
        "{{ ('a' * 99999).join('b' * 99999) }}",
        "{{ ('b\n' * 99999) | indent('a' * 99999) }}",
        "{{ ('%65000d' * 5000) % ((1,) * 5000) }}",
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
                "{{", "}}", "{%", "%}", "{#", "#}", "-", "+", "%", "~", "<", ">=", "==", "in", "not",
                "is", "is string", "(", ")", "[", "]", "{", "}", "'a'", "'", "\"", "\\", "é", "1",
                "1.5", "1e", "x", ".items", ".", "|", "|length", "|tojson", ",", ":", "=", "if",
                "else", "for", "for x in", "set", "set x =", "endfor", "endif", "raw", "endraw",
                "generation", "endgeneration", "macro m(a)", "endmacro", " ", " ", "\n", "\r",
                "**", "range(3)", ".split(", ".format(", "'%s'",
            ]),
            0..24,
        )
    ) {
        let _ = render(&parts.concat(), &Value::from(()));
        let _ = render(&["{{ ", &parts.join(" "), " }}"].concat(), &Value::from(()));
    }
}
