//! Methods of Python's strings that minijinja-contrib lacks.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, State, Value};
use minijinja_contrib::pycompat;

use super::arguments::{as_integer, as_text, bind, filter_none, refuse, require};

pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let result = match (value.kind(), value.as_str()) {
        (ValueKind::String, Some(text)) => call_of_string(text, method, arguments)?,
        _ => None,
    };
    match result {
        Some(result) => Ok(result),
        None => pycompat::unknown_method_callback(state, value, method, arguments),
    }
}

fn call_of_string(text: &str, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    let separator = || -> Result<String, Error> {
        let [separator] = bind(arguments, ["sep"])?;
        let separator = as_text(require(separator.as_ref(), "sep")?)?.to_owned();
        if separator.is_empty() { Err(refuse("the separator is empty")) } else { Ok(separator) }
    };
    Ok(Some(match method {
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
        "partition" => {
            let separator = separator()?;
            let found = text.split_once(&separator);
            let parts =
                found.map_or([text, "", ""], |(before, behind)| [before, &separator, behind]);
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "rpartition" => {
            let separator = separator()?;
            let found = text.rsplit_once(&separator);
            let parts =
                found.map_or(["", "", text], |(before, behind)| [before, &separator, behind]);
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "split" | "rsplit" => {
            let [separator, most] = bind(arguments, ["sep", "maxsplit"])?;
            let most = most.as_ref().map_or(Ok(-1), as_integer)?;
            let pieces = usize::try_from(most).map_or(usize::MAX, |most| most + 1);
            // At white space, minijinja's `split` applies.
            let Some(separator) = filter_none(separator.as_ref()) else { return Ok(None) };
            let separator = as_text(separator)?;
            if separator.is_empty() {
                return Err(refuse("the separator is empty"));
            }
            let parts: Vec<&str> = if method == "split" {
                text.splitn(pieces, separator).collect()
            } else {
                let mut parts: Vec<&str> = text.rsplitn(pieces, separator).collect();
                parts.reverse();
                parts
            };
            parts.into_iter().map(Value::from).collect()
        }
        _ => return Ok(None),
    }))
}
