//! The JSON Schema of pipeline files, for editors.

use serde::Serialize;
use serde_json::{Value, json};
use vattention_core::schemars::{JsonSchema, SchemaGenerator};
use vattention_core::{
    SelectorConfig, Share, Size,
    pipeline::Layers,
    plugin::{Component, ComponentKind, components},
};

/// The schema of a pipeline file, with every linked component. Of a file that extends another, whose
/// tables may be parts, it demands less; `vattention check` sees the whole.
pub fn schema() -> Value {
    let mut generator = SchemaGenerator::default();
    let mut any_of = |kind: ComponentKind| -> Value {
        components(kind).into_iter().map(|component| tagged(component, &mut generator)).collect()
    };
    let [selectors, samplers, estimators] =
        [ComponentKind::Selector, ComponentKind::Sampler, ComponentKind::Estimator]
            .map(&mut any_of);
    let samplers = with_default(samplers, "uniform");
    let selector = generator.subschema_for::<dyn SelectorConfig>();
    let share = generator.subschema_for::<Share>();
    let layers = generator.subschema_for::<Layers>();
    let mut definitions = generator.take_definitions(true);
    definitions.insert(<dyn SelectorConfig>::schema_name().into(), json!({ "oneOf": selectors }));
    let text = |description: &str| json!({ "type": "string", "description": description });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "vattention pipeline",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "extends": text("A pipeline file to build on, relative to this one."),
            "unset": {
                "type": "array",
                "items": { "type": "string" },
                "description": "What to take out of the file that is extended, such as `estimator.limit` or `selectors.0`.",
            },
            "name": text("What tables and plots call it; default: the file's name."),
            "seed": {
                "type": "integer",
                "minimum": 0,
                "maximum": u64::MAX,
                "description": "Keys every random choice.",
            },
            "share": share,
            "dense_layers": { "description": "Layers that read everything." },
            "selectors": { "description": "In order; each sees what those before it took." },
            "sampler": {
                "description": "How tokens of the rest are drawn; without a `type`, uniformly.",
            },
            "estimator": {
                "description": "How large a sample of the rest must be; absent: it is dropped.",
            },
            "layers": {
                "type": ["array", "object"],
                "description": "Settings of some layers, laid over those above.",
                "items": {
                    "type": "object",
                    "required": ["at"],
                    "additionalProperties": false,
                    "properties": {
                        "at": { "type": "array", "items": layers, "description": "Which layers." },
                        "alone": {
                            "type": "boolean",
                            "description": "Whether nothing above holds at these layers.",
                        },
                        "selectors": { "type": ["array", "object"] },
                        "sampler": { "type": "object" },
                        "estimator": { "type": "object" },
                    },
                },
            },
        },
        "dependentRequired": { "unset": ["extends"] },
        "if": { "required": ["extends"] },
        "then": {
            "properties": {
                "dense_layers": { "anyOf": [list_of(&layers), change_of_list(&layers)] },
                "selectors": { "anyOf": [list_of(&selector), change_of_list(&selector)] },
                "sampler": { "type": "object" },
                "estimator": { "type": "object" },
            },
        },
        "else": {
            "properties": {
                "dense_layers": list_of(&layers),
                "selectors": list_of(&selector),
                "sampler": { "oneOf": samplers },
                "estimator": { "oneOf": estimators },
            },
        },
        "$defs": definitions,
    })
}

/// Schemas of components, of which one need not say its `type`.
fn with_default(mut tagged: Value, name: &str) -> Value {
    for schema in tagged.as_array_mut().into_iter().flatten() {
        if schema["properties"]["type"]["const"] == name
            && let Some(required) = schema["required"].as_array_mut()
        {
            required.retain(|field| field != "type");
        }
    }
    tagged
}

fn list_of(item: impl Serialize) -> Value {
    json!({ "type": "array", "items": item })
}

/// What changes a list of the file that is extended, by the numbers of its elements.
fn change_of_list(item: impl Serialize) -> Value {
    json!({
        "type": "object",
        "properties": {
            "append": list_of(item),
        },
        "patternProperties": { "^[0-9]+$": {} },
        "additionalProperties": false,
    })
}

/// A component's own schema, where it merely refers to another, that one.
pub(crate) fn fields(component: &Component, generator: &mut SchemaGenerator) -> Value {
    let schema = (component.schema)(generator).to_value();
    let definition = |path: &str| generator.definitions().get(path.rsplit('/').next()?).cloned();
    schema["$ref"].as_str().and_then(definition).unwrap_or(schema)
}

/// Whether a field with this schema is another selector's table.
pub(crate) fn is_selector(field: &Value) -> bool {
    let definition = field["$ref"].as_str().and_then(|path| path.rsplit('/').next());
    let mut optional = field["anyOf"].as_array().into_iter().flatten();
    definition.is_some_and(|name| name == <dyn SelectorConfig>::schema_name())
        || optional.any(is_selector)
}

/// Whether a field with this schema is a number of tokens or a share of the context.
pub(crate) fn is_size(field: &Value) -> bool {
    let definition = field["$ref"].as_str().and_then(|path| path.rsplit('/').next());
    let optional = field["anyOf"].as_array().into_iter().flatten();
    definition.is_some_and(|name| name == Size::schema_name()) || optional.into_iter().any(is_size)
}

/// A component's schema with the `type` that names it.
fn tagged(component: &Component, generator: &mut SchemaGenerator) -> Value {
    let mut schema = fields(component, generator);
    let name = json!({ "const": component.name, "description": component.summary });
    if let Some(object) = schema.as_object_mut() {
        let properties = object.entry("properties").or_insert_with(|| json!({}));
        properties["type"] = name;
        let required = object.entry("required").or_insert_with(|| json!([]));
        if let Some(required) = required.as_array_mut() {
            required.insert(0, "type".into());
        }
    }
    schema
}
