//! Reference of the JSON that commands write, generated from the types of their results.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value};

type Object = Map<String, Value>;

/// Page of Markdown that lists commands, types and their fields.
pub(crate) struct JsonFields {
    generator: SchemaGenerator,
    page: String,
}

impl JsonFields {
    /// Begins a page with an introduction, in Markdown.
    pub(crate) fn new(introduction: &str) -> Self {
        let generator = SchemaSettings::default().for_serialize().into_generator();
        Self { generator, page: introduction.to_owned() }
    }

    /// Adds a command whose JSON is a `T`.
    pub(crate) fn add_command<T: JsonSchema>(&mut self, command: &str) {
        let schema = T::json_schema(&mut self.generator).to_value();
        let _ = write!(self.page, "\n## `vattention {command}`\n\n");
        self.page += &fields(schema.as_object().expect("a result is an object"));
    }

    /// Returns the page, with all types that the commands refer to.
    pub(crate) fn finish(mut self) -> String {
        let definitions: BTreeMap<_, _> = self.generator.take_definitions(true).into_iter().collect();
        self.page += "\n## Types\n";
        for (name, schema) in &definitions {
            let _ = write!(self.page, "\n### {name}\n\n");
            let Some(schema) = schema.as_object() else { continue };
            if let Some(text) = description(schema) {
                let _ = write!(self.page, "{text}\n\n");
            }
            self.page += &definition(schema);
        }
        self.page
    }
}

/// Returns the body of a section: a table of fields, or a list of alternatives.
fn definition(schema: &Object) -> String {
    if schema.contains_key("properties") {
        return fields(schema);
    }
    if let Some(alternatives) = schema.get("oneOf").and_then(Value::as_array) {
        return alternatives.iter().filter_map(Value::as_object).map(alternative).collect();
    }
    format!("{}\n", type_name(schema))
}

/// Returns one alternative of an enum as an item of a list.
fn alternative(schema: &Object) -> String {
    let text = description(schema).map_or_else(String::new, |text| format!(": {text}"));
    format!("- {}{text}\n", type_name(schema))
}

/// Returns the table of an object's fields, in the order in which they are written.
fn fields(schema: &Object) -> String {
    let mut table = "| field | type | meaning |\n|---|---|---|\n".to_owned();
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, field) in properties.into_iter().flatten() {
        let field = field.as_object().cloned().unwrap_or_default();
        let text = description(&field).unwrap_or_default();
        let _ = writeln!(table, "| `{name}` | {} | {} |", type_name(&field), text.replace('|', "\\|"));
    }
    table
}

/// Returns a type in words, with links to the sections of named types.
fn type_name(schema: &Object) -> String {
    let list = |key: &str| schema.get(key).and_then(Value::as_array);
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        let name = reference.rsplit('/').next().unwrap_or_default();
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(value) = schema.get("const") {
        return format!("`{}`", value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    }
    if let Some(values) = list("enum") {
        let values: Vec<String> =
            values.iter().map(|value| format!("`{}`", value.as_str().unwrap_or("null"))).collect();
        return values.join(", ");
    }
    if let Some(alternatives) = list("anyOf").or_else(|| list("oneOf")) {
        let names: Vec<String> = alternatives.iter().map(type_of_value).collect();
        return names.join(" or ");
    }
    match schema.get("type") {
        Some(Value::Array(types)) => {
            let mut names = Vec::new();
            for name in types.iter().filter_map(Value::as_str) {
                names.push(simple_type(name, schema));
            }
            names.join(" or ")
        }
        Some(Value::String(name)) => simple_type(name, schema),
        _ => "any".into(),
    }
}

fn type_of_value(schema: &Value) -> String {
    schema.as_object().map_or_else(|| "any".into(), type_name)
}

/// Returns a type that JSON Schema has a name for.
fn simple_type(name: &str, schema: &Object) -> String {
    match name {
        "array" => {
            if let Some(items) = schema.get("prefixItems").and_then(Value::as_array) {
                let items: Vec<String> = items.iter().map(type_of_value).collect();
                return format!("list of {}", items.join(", "));
            }
            format!("list of {}", schema.get("items").map_or_else(|| "any".into(), type_of_value))
        }
        "object" => match (schema.get("properties"), schema.get("additionalProperties")) {
            (Some(Value::Object(fields)), _) => {
                let fields: Vec<String> = fields
                    .iter()
                    .map(|(name, field)| format!("`{name}`: {}", type_of_value(field)))
                    .collect();
                format!("object of {}", fields.join(", "))
            }
            (_, Some(values @ Value::Object(_))) => format!("map to {}", type_of_value(values)),
            _ => "object".into(),
        },
        name => name.into(),
    }
}

/// Returns the first paragraph of the description; links to items of Rust become code.
fn description(schema: &Object) -> Option<String> {
    let text = schema.get("description")?.as_str()?;
    let paragraph = text.split("\n\n").next()?.replace('\n', " ");
    let mut plain = String::new();
    let mut rest = &*paragraph;
    while let Some((before, after)) = rest.split_once('[') {
        let Some((label, after)) = after.split_once(']') else { break };
        plain += before;
        let target = after.strip_prefix('(').and_then(|after| after.split_once(')'));
        if let Some((_, after)) = target.filter(|(target, _)| !target.contains("://")) {
            plain += label;
            rest = after;
        } else if label.starts_with('`') {
            plain += label;
            rest = after;
        } else {
            let _ = write!(plain, "[{label}]");
            rest = after;
        }
    }
    Some(plain + rest)
}
