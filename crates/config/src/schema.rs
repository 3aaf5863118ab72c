//! The JSON Schema of pipeline files, for editors.

use serde::Serialize;
use serde_json::{Value, json};
use vattention_core::schemars::{JsonSchema, SchemaGenerator};
use vattention_core::{
    SelectorConfig, Share, Size,
    pipeline::Layers,
    plugin::{Component, ComponentKind, components},
};

/// Returns the schema of pipeline files, with all linked components.
///
/// The schema requires less of a file that extends another, whose tables may be incomplete;
/// `vattention check` checks the whole pipeline.
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
            "extends": text("Pipeline file to build on, relative to this file."),
            "unset": {
                "type": "array",
                "items": { "type": "string" },
                "description": "Keys to remove from the extended file, such as \
                                `estimator.limit` or `selectors.0`.",
            },
            "name": text("Name in tables and plots; the default is the file's name."),
            "seed": {
                "type": "integer",
                "minimum": 0,
                "maximum": u64::MAX,
                "description": "Seed of all random choices.",
            },
            "share": share,
            "dense_layers": { "description": "Layers that read all tokens." },
            "selectors": {
                "description": "Selectors, applied in order; each one knows the picks of the \
                                previous ones.",
            },
            "sampler": {
                "description": "Sampling design for the tokens that no selector picked; `uniform` \
                                without a `type`.",
            },
            "estimator": {
                "description": "Estimator of the sample size; without one, tokens that no selector \
                                picked are not read.",
            },
            "layers": {
                "type": ["array", "object"],
                "description": "Settings of some layers, which change the settings above.",
                "items": {
                    "type": "object",
                    "required": ["at"],
                    "additionalProperties": false,
                    "properties": {
                        "at": {
                            "type": "array",
                            "items": layers,
                            "description": "Layers that have these settings.",
                        },
                        "alone": {
                            "type": "boolean",
                            "description": "True to ignore the selectors, sampler and estimator \
                                            above at these layers.",
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

/// Makes `type` optional in the schema of the default component.
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

/// Schema of a table that changes a list of the extended file, by the indices of its elements.
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

/// Schema of a component; if this is a reference to a definition, the definition.
pub(crate) fn fields(component: &Component, generator: &mut SchemaGenerator) -> Value {
    let schema = (component.schema)(generator).to_value();
    let definition = |path: &str| generator.definitions().get(path.rsplit('/').next()?).cloned();
    schema["$ref"].as_str().and_then(definition).unwrap_or(schema)
}

/// Returns true if a field with this schema is another selector's table.
pub(crate) fn is_selector(field: &Value) -> bool {
    let definition = field["$ref"].as_str().and_then(|path| path.rsplit('/').next());
    let mut optional = field["anyOf"].as_array().into_iter().flatten();
    definition.is_some_and(|name| name == <dyn SelectorConfig>::schema_name())
        || optional.any(is_selector)
}

/// Returns true if a field with this schema is a number of tokens or a share of the context.
pub(crate) fn is_size(field: &Value) -> bool {
    let definition = field["$ref"].as_str().and_then(|path| path.rsplit('/').next());
    let optional = field["anyOf"].as_array().into_iter().flatten();
    definition.is_some_and(|name| name == Size::schema_name()) || optional.into_iter().any(is_size)
}

/// Schema of a component's table, including its `type`.
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
