//! Functions of the environment.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Mutex;

use chrono::NaiveDateTime;
use minijinja::value::{Rest, from_args};
use minijinja::{Environment, Error, State, Value};
use minijinja_contrib::globals;

use super::arguments::{Arguments, as_integer, as_text, bind, given, refuse, require};
use super::objects::{Cycler, DictFunction, ListKind, PythonList, dict};

/// Maximum number of items of a range, as in jinja2's sandbox.
const LONGEST_RANGE: i64 = 100_000;

pub(super) fn add(environment: &mut Environment<'static>, now: fn() -> NaiveDateTime) {
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("cycler", cycler);
    environment.add_function("joiner", joiner);
    environment.add_function("namespace", namespace);
    environment.add_function("range", range);
    environment.add_function("strftime_now", move |arguments: Arguments| {
        let [format] = bind(&arguments.into_values(), ["format"])?;
        write_time(&now(), as_text(require(format.as_ref(), "format")?)?)
    });
    environment.add_global("dict", Value::from_object(DictFunction));
    environment.remove_global("debug");
}

fn raise_exception(message: Cow<'_, str>) -> Result<Value, Error> {
    Err(refuse(message.into_owned()))
}

fn cycler(items: Rest<Value>) -> Result<Value, Error> {
    if items.is_empty() {
        return Err(refuse("cycler: expected at least one item"));
    }
    Ok(Value::from_object(Cycler { items: items.to_vec(), place: Mutex::new(0) }))
}

fn joiner(arguments: Arguments) -> Result<Value, Error> {
    let [separator] = bind(&arguments.into_values(), ["sep"])?;
    Ok(globals::joiner(separator))
}

fn namespace(arguments: Arguments) -> Result<Value, Error> {
    let attributes = dict(&arguments.into_values())?;
    for name in attributes.try_iter()? {
        if name.as_str().is_some_and(|name| name.starts_with('_')) {
            return Err(refuse(format!("a namespace cannot have an attribute `{name}`")));
        }
    }
    let (attributes,) = from_args(std::slice::from_ref(&attributes))?;
    minijinja::functions::namespace(attributes)
}

fn range(state: &State<'_, '_>, arguments: Arguments) -> Result<Value, Error> {
    let [first, second, third] = bind(&arguments.into_values(), ["start", "stop", "step"])?;
    let first = as_integer(require(first.as_ref(), "start")?)?;
    let (start, stop) = match given(second.as_ref()) {
        Some(stop) => (first, as_integer(stop)?),
        None => (0, first),
    };
    let step = third.as_ref().map_or(Ok(1), as_integer)?;
    if step == 0 {
        return Err(refuse("range: the step is 0"));
    }
    let span = i128::from(stop) - i128::from(start);
    let step_wide = i128::from(step);
    let count = (span + step_wide - step_wide.signum()).div_euclid(step_wide).max(0);
    if count > i128::from(LONGEST_RANGE) {
        return Err(refuse(format!("range: {count} items; expected at most {LONGEST_RANGE}")));
    }
    state.consume_fuel(count as u64)?;
    let items = (0..count as i64).map(|place| Value::from(start + place * step)).collect();
    let text = match step {
        1 => format!("range({start}, {stop})"),
        _ => format!("range({start}, {stop}, {step})"),
    };
    Ok(Value::from_object(PythonList { kind: ListKind::Range(text), items }))
}

/// Formats the time like C's `strftime`. There is no time zone, because `datetime.now()` has none.
fn write_time(now: &NaiveDateTime, format: &str) -> Result<String, Error> {
    let mut known = String::new();
    let mut rest = format;
    while let Some((before, behind)) = rest.split_once('%') {
        known.push_str(before);
        let kind = behind.chars().next();
        match kind {
            Some('f') => known.push_str("%6f"),
            Some('z' | 'Z') => (),
            Some(kind) => known.extend(['%', kind]),
            None => known.push_str("%%"),
        }
        rest = &behind[kind.map_or(0, char::len_utf8)..];
    }
    known.push_str(rest);
    let mut text = String::new();
    write!(text, "{}", now.format(&known))
        .map_err(|_| refuse(format!("strftime_now: `{format}` is no format of a time")))?;
    Ok(text)
}
