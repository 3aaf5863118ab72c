//! Methods of Python's strings, lists, tuples and mappings that minijinja-contrib lacks, or
//! supports only without some arguments.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::arguments::{as_integer, as_text, bind, given, refuse, require};
use super::objects::{BoundMethod, ListKind, PythonList};
use super::{strings, text};

/// Names that mean a method of a mapping, even if the mapping has such a key.
pub(super) const OF_MAPPINGS: [&str; 5] = ["copy", "get", "items", "keys", "values"];

pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let result = match value.kind() {
        ValueKind::String => call_of_string(value, method, arguments)?,
        ValueKind::Map if !is_namespace(value) => call_of_mapping(state, value, method, arguments)?,
        ValueKind::Seq | ValueKind::Iterable if text::is_list(value) || value.is_tuple() => {
            call_of_list(value, method, arguments)?
        }
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    };
    match result {
        Some(result) => Ok(result),
        None => pycompat::unknown_method_callback(state, value, method, arguments),
    }
}

/// Returns whether a value is a namespace, which has attributes and no methods.
pub(super) fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("Namespace"))
}

/// Evaluates `value.name` if `name` may be a method of a mapping.
pub(super) fn attribute(value: Value, name: String) -> Result<Value, Error> {
    if value.kind() == ValueKind::Map && !is_namespace(&value) {
        return Ok(Value::from_object(BoundMethod { value, name }));
    }
    value.get_attr(&name)
}

fn call_of_mapping(
    state: &State<'_, '_>,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Option<Value>, Error> {
    let name = match method {
        "copy" => {
            let [] = bind(arguments, [])?;
            return Ok(Some(value.clone()));
        }
        "keys" => "dict_keys",
        "values" => "dict_values",
        "items" => "dict_items",
        _ => return Ok(None),
    };
    let [] = bind(arguments, [])?;
    state.consume_fuel(value.len().unwrap_or_default() as u64)?;
    let items = value.try_iter()?.map(|key| {
        let item = || value.get_item(&key);
        match method {
            "keys" => Ok(key),
            "values" => item(),
            _ => Ok(Value::from(Tuple::from([key.clone(), item()?]))),
        }
    });
    let items = items.collect::<Result<_, Error>>()?;
    Ok(Some(Value::from_object(PythonList { kind: ListKind::View(name), items })))
}

fn call_of_list(value: &Value, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "copy" if !value.is_tuple() => {
            let [] = bind(arguments, [])?;
            Ok(Some(value.clone()))
        }
        "index" => {
            let [item, start, stop] = bind(arguments, ["value", "start", "stop"])?;
            let item = require(item.as_ref(), "value")?;
            let length = value.len().unwrap_or_default();
            let range = strings::clamp_range(length, start.as_ref(), stop.as_ref())?;
            let found = value
                .try_iter()?
                .enumerate()
                .find(|(place, other)| range.contains(place) && other == item);
            let (place, _) = found.ok_or_else(|| refuse("the value is not in the list"))?;
            Ok(Some(Value::from(place)))
        }
        _ => Ok(None),
    }
}

fn call_of_string(
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Option<Value>, Error> {
    let text = value.as_str().unwrap_or_default();
    let result = match method {
        "removeprefix" => {
            let [prefix] = bind(arguments, ["prefix"])?;
            let prefix = as_text(require(prefix.as_ref(), "prefix")?)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let [suffix] = bind(arguments, ["suffix"])?;
            let suffix = as_text(require(suffix.as_ref(), "suffix")?)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "strip" | "lstrip" | "rstrip" => {
            let [characters] = bind(arguments, ["chars"])?;
            let characters = given(characters.as_ref()).map(as_text).transpose()?;
            Value::from(strings::strip(text, method, characters))
        }
        "split" | "rsplit" => {
            let [separator, most] = bind(arguments, ["sep", "maxsplit"])?;
            let separator = given(separator.as_ref()).map(as_text).transpose()?;
            let most = most.as_ref().map_or(Ok(-1), as_integer)?;
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            let parts = strings::split(text, separator, most, method == "rsplit")?;
            parts.into_iter().map(Value::from).collect()
        }
        "splitlines" => {
            let [keeps] = bind(arguments, ["keepends"])?;
            let keeps = keeps.is_some_and(|keeps| keeps.is_true());
            strings::split_lines(text, keeps).into_iter().map(Value::from).collect()
        }
        "partition" | "rpartition" => {
            let [separator] = bind(arguments, ["sep"])?;
            let separator = as_text(require(separator.as_ref(), "sep")?)?;
            let parts = strings::partition(text, separator, method == "rpartition")?;
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "find" | "rfind" | "index" | "rindex" | "count" => strings::find(text, method, arguments)?,
        "startswith" | "endswith" => strings::has_end(text, method == "startswith", arguments)?,
        "center" | "ljust" | "rjust" => {
            let [width, fill] = bind(arguments, ["width", "fillchar"])?;
            let width = as_integer(require(width.as_ref(), "width")?)?;
            let fill = fill.as_ref().map_or(Ok(" "), as_text)?;
            Value::from(strings::pad(text, method, width, fill)?)
        }
        "zfill" => {
            let [width] = bind(arguments, ["width"])?;
            let width = as_integer(require(width.as_ref(), "width")?)?;
            Value::from(strings::fill_with_zeros(text, width)?)
        }
        "expandtabs" => {
            let [size] = bind(arguments, ["tabsize"])?;
            let size = size.as_ref().map_or(Ok(8), as_integer)?;
            Value::from(strings::expand_tabs(text, usize::try_from(size).unwrap_or_default())?)
        }
        "join" => {
            let [list] = bind(arguments, ["iterable"])?;
            let items = require(list.as_ref(), "iterable")?.try_iter()?;
            let items: Vec<Value> = items.collect();
            let items: Vec<&str> = items.iter().map(as_text).collect::<Result<_, _>>()?;
            Value::from(strings::join(&items, text)?)
        }
        "title" | "swapcase" | "casefold" => {
            let [] = bind(arguments, [])?;
            Value::from(strings::change_case(text, method))
        }
        "isspace" | "isdecimal" | "isdigit" | "istitle" | "isidentifier" | "isprintable"
        | "islower" | "isupper" => {
            let [] = bind(arguments, [])?;
            Value::from(strings::is(text, method))
        }
        _ => return Ok(None),
    };
    Ok(Some(result))
}
