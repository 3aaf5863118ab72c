//! Components that pipeline files may name, with fields, defaults and meanings, from the registry.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use vattention_core::plugin::{Component, ComponentKind, components};
use vattention_core::schemars::SchemaGenerator;

use crate::schema::{fields, is_selector};

/// A selector, sampler or estimator that pipeline files may name.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ComponentEntry {
    /// Value of `type` in pipeline files.
    pub name: &'static str,
    /// Description in one line.
    pub summary: &'static str,
    /// Crate that defines the component.
    #[serde(rename = "crate")]
    pub krate: &'static str,
    /// Fields, in the order of the config.
    pub fields: Vec<Field>,
}

/// A field of a table.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Field {
    /// Key of the field.
    pub name: String,
    /// Values that the field accepts, in words.
    pub takes: String,
    /// True if the field has no default.
    pub required: bool,
    /// Default value, if TOML can express it.
    pub default: Option<Value>,
    /// Description of the field.
    pub meaning: String,
}

/// Returns all linked components of a kind, sorted by name.
pub fn listing(kind: ComponentKind) -> Vec<ComponentEntry> {
    components(kind).into_iter().map(ComponentEntry::new).collect()
}

impl ComponentEntry {
    fn new(component: &Component) -> Self {
        let mut generator = SchemaGenerator::default();
        let schema = fields(component, &mut generator);
        Self {
            name: component.name,
            summary: component.summary,
            krate: component.krate,
            fields: list_fields(&schema, generator),
        }
    }
}

/// Lists the fields of a table with this schema; the generator has the schema's definitions.
fn list_fields(schema: &Value, mut generator: SchemaGenerator) -> Vec<Field> {
    let definitions = Value::Object(generator.take_definitions(true));
    let properties = schema["properties"].as_object().cloned().unwrap_or_default();
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let field = |(name, schema): (String, Value)| Field {
        takes: describe_values(&schema, &definitions),
        required: required.contains(&Value::from(name.clone())),
        default: schema.get("default").cloned(),
        meaning: schema["description"].as_str().unwrap_or_default().replace('\n', " "),
        name,
    };
    properties.into_iter().map(field).collect()
}

/// Describes the values that a schema accepts.
fn describe_values(schema: &Value, definitions: &Value) -> String {
    if is_selector(schema) {
        return "another selector's table".into();
    }
    if schema["format"] == "path" {
        return "file".into();
    }
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return match name {
            "Size" => "tokens or share".into(),
            "Fraction" => "number between 0 and 1".into(),
            _ => describe_values(&definitions[name], definitions),
        };
    }
    let quoted = |values: &[Value], key: Option<&str>| {
        let value = |value: &Value| key.map_or(value.clone(), |key| value[key].clone()).to_string();
        values.iter().map(value).collect::<Vec<_>>().join(" | ")
    };
    if let Some(names) = schema["enum"].as_array() {
        return quoted(names, None);
    }
    if let Some(variants) = schema["oneOf"].as_array() {
        return quoted(variants, Some("const"));
    }
    // An optional field may be null, which TOML cannot express.
    if let Some(variants) = schema["anyOf"].as_array() {
        let value = variants.iter().find(|variant| variant["type"] != "null");
        return value.map_or("value".into(), |value| describe_values(value, definitions));
    }
    let types = schema["type"].as_array().into_iter().flatten();
    let kind =
        types.chain([&schema["type"]]).filter_map(Value::as_str).find(|&kind| kind != "null");
    match (kind, schema["minimum"].as_u64(), schema["maximum"].as_u64()) {
        (Some("integer"), Some(least), Some(most)) => format!("whole number, {least} to {most}"),
        (Some("integer"), Some(least), None) => format!("whole number, at least {least}"),
        (Some(other), _, _) => other.into(),
        (None, _, _) => "value".into(),
    }
}
