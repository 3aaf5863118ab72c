//! Results as JSON that round-trips bit for bit.
//!
//! JSON has neither infinities nor NaN: such numbers are written by their bits, as
//! `{"f64": "7ff0000000000000"}`. The conversion goes through a tree of CBOR, which has these
//! numbers, because attributes on fields could be forgotten.

use ciborium::Value as Tree;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

/// Key of a number that JSON cannot represent.
const BITS: &str = "f64";

pub(super) fn to_text(result: &impl Serialize) -> Result<Box<RawValue>, String> {
    let tree = Tree::serialized(result).map_err(|error| error.to_string())?;
    let text = to_json(tree)?.to_string();
    RawValue::from_string(text).map_err(|error| error.to_string())
}

pub(super) fn from_text<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let json: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    from_json(json)?.deserialized().map_err(|error| error.to_string())
}

fn to_json(tree: Tree) -> Result<Value, String> {
    Ok(match tree {
        Tree::Null => Value::Null,
        Tree::Bool(value) => Value::Bool(value),
        Tree::Text(text) => Value::String(text),
        Tree::Float(x) => Number::from_f64(x).map_or_else(|| bits(x), Value::Number),
        Tree::Integer(number) => {
            let number = i128::from(number);
            let fits = u64::try_from(number).map(Number::from);
            let fits = fits.or_else(|_| i64::try_from(number).map(Number::from));
            Value::Number(fits.map_err(|_| format!("{number} does not fit into 64 bits"))?)
        }
        Tree::Array(all) => all.into_iter().map(to_json).collect::<Result<_, _>>()?,
        Tree::Map(all) => {
            let entry = |(key, value)| match key {
                Tree::Text(key) => Ok((key, to_json(value)?)),
                other => Err(format!("{other:?} is a key; expected a text")),
            };
            Value::Object(all.into_iter().map(entry).collect::<Result<_, String>>()?)
        }
        other => return Err(format!("cannot write {other:?} as JSON")),
    })
}

fn from_json(json: Value) -> Result<Tree, String> {
    Ok(match json {
        Value::Null => Tree::Null,
        Value::Bool(value) => Tree::Bool(value),
        Value::String(text) => Tree::Text(text),
        Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(n), ..) => Tree::Integer(n.into()),
            (_, Some(n), _) => Tree::Integer(n.into()),
            (.., Some(x)) => Tree::Float(x),
            _ => return Err(format!("expected a number of 64 bits, found {number}")),
        },
        Value::Array(all) => Tree::Array(all.into_iter().map(from_json).collect::<Result<_, _>>()?),
        Value::Object(all) => {
            if let Some(x) = from_bits(&all) {
                return Ok(Tree::Float(x));
            }
            let entry = |(key, value)| Ok((Tree::Text(key), from_json(value)?));
            Tree::Map(all.into_iter().map(entry).collect::<Result<_, String>>()?)
        }
    })
}

fn bits(x: f64) -> Value {
    serde_json::json!({ BITS: format!("{:016x}", x.to_bits()) })
}

fn from_bits(object: &Map<String, Value>) -> Option<f64> {
    let text = object.get(BITS).filter(|_| object.len() == 1)?.as_str()?;
    u64::from_str_radix(text, 16).ok().map(f64::from_bits)
}
