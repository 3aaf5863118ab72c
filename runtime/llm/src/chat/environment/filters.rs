//! Filters with jinja2's names, arguments and defaults.

mod quoting;

use std::sync::Mutex;

use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, from_args};
use minijinja::{Environment, Error, State, Value, filters};
use minijinja_contrib::filters as contributed;

use super::arguments::{Arguments, as_integer, as_text, bind, given, refuse, require};
use super::objects::Generator;
use super::operators::check_order;
use super::{json, methods, percent, strings, text};

pub(super) use quoting::escape;

/// Filters of minijinja that jinja2 lacks.
const UNKNOWN: [&str; 4] = ["bool", "chain", "split", "lines"];

pub(super) fn add(environment: &mut Environment<'static>) {
    for name in UNKNOWN.into_iter().chain(["zip"]) {
        environment.remove_filter(name);
    }
    add_of_texts(environment);
    add_of_numbers(environment);
    add_of_lists(environment);
}

fn add_of_texts(environment: &mut Environment<'static>) {
    environment.add_filter("center", center);
    environment.add_filter("e", quoting::escape_value);
    environment.add_filter("escape", quoting::escape_value);
    environment.add_filter("filesizeformat", contributed::filesizeformat);
    environment.add_filter("forceescape", quoting::force_escape);
    environment.add_filter("format", format);
    environment.add_filter("indent", indent);
    environment.add_filter("pprint", pprint);
    environment.add_filter("string", |value: Value| match value.kind() {
        ValueKind::String => Ok(value),
        _ => text::write(&value).map(Value::from),
    });
    environment
        .add_filter("striptags", |value: Value| text::write(&value).map(contributed::striptags));
    environment.add_filter("tojson", json::to_json);
    environment.add_filter("trim", trim);
    environment.add_filter("truncate", truncate);
    environment.add_filter("urlencode", quoting::encode_url);
    environment.add_filter("wordcount", |value: Value| {
        let is_separator = |c: char| !c.is_alphanumeric() && c != '_';
        let text = text::write(&value)?;
        Ok::<_, Error>(text.split(is_separator).filter(|word| !word.is_empty()).count())
    });
}

fn add_of_numbers(environment: &mut Environment<'static>) {
    environment.add_filter("int", int);
    environment.add_filter("float", |value: Value, arguments: Arguments| {
        let [default] = bind(&arguments.into_values(), ["default"])?;
        let default = default.unwrap_or(Value::from(0.0));
        Ok::<_, Error>(match value.kind() {
            ValueKind::String => read_float(as_text(&value)?).map_or(default, Value::from),
            ValueKind::Number => Value::from(f64::try_from(value)?),
            ValueKind::Bool => Value::from(f64::from(u8::from(value.is_true()))),
            _ => default,
        })
    });
}

fn add_of_lists(environment: &mut Environment<'static>) {
    environment.add_filter("attr", attr);
    environment.add_filter("default", default);
    environment.add_filter("d", default);
    environment.add_filter("dictsort", dictsort);
    environment.add_filter("join", join);
    environment.add_filter("list", |state: &State<'_, '_>, value: Value| {
        if value.is_none() {
            return Err(refuse("None is not iterable"));
        }
        filters::list(state, value)
    });
    environment.add_filter("random", |state: &mut State<'_, '_>, value: Value| match value.len() {
        Some(0) => Ok(Value::UNDEFINED),
        _ => contributed::random(state, &value),
    });
    environment.add_filter("sort", sort);
    environment.add_filter("unique", unique);
    environment.add_filter("max", |state: &State<'_, '_>, value: Value, named: Kwargs| {
        check_extremes(&value, &named)?;
        filters::max(state, value, named)
    });
    environment.add_filter("min", |state: &State<'_, '_>, value: Value, named: Kwargs| {
        check_extremes(&value, &named)?;
        filters::min(state, value, named)
    });
    environment.add_filter("reverse", |value: Value| match value.kind() {
        ValueKind::String => filters::reverse(&value),
        _ => filters::reverse(&value).and_then(generator),
    });
    environment.add_filter("batch", |state: &State<'_, '_>, value: Value, rest: Arguments| {
        let [count, fill] = bind(&rest.into_values(), ["linecount", "fill_with"])?;
        let count = read_count(count.as_ref(), "linecount")?;
        filters::batch(state, value, count, fill).and_then(generator)
    });
    environment.add_filter("slice", |state: &State<'_, '_>, value: Value, rest: Arguments| {
        let [count, fill] = bind(&rest.into_values(), ["slices", "fill_with"])?;
        let count = read_count(count.as_ref(), "slices")?;
        filters::slice(state, value, count, fill).and_then(generator)
    });
    // Results of these filters can be read only once, like generators.
    for name in ["map", "select", "reject", "selectattr", "rejectattr"] {
        let call = move |state: &mut State<'_, '_>, arguments: Arguments| {
            state.apply_filter(&format!("_{name}"), &arguments.into_values()).and_then(generator)
        };
        environment.add_filter(name, call);
    }
    environment.add_filter("_map", filters::map);
    environment.add_filter("_select", filters::select);
    environment.add_filter("_reject", filters::reject);
    environment.add_filter("_selectattr", filters::selectattr);
    environment.add_filter("_rejectattr", filters::rejectattr);
}

/// Makes a value that can be read once and has no length.
fn generator(list: Value) -> Result<Value, Error> {
    let items: Vec<Value> = list.try_iter()?.collect();
    Ok(Value::from_object(Generator(Mutex::new(items.into_iter()))))
}

fn read_count(count: Option<&Value>, name: &str) -> Result<usize, Error> {
    let count = as_integer(require(count, name)?)?;
    usize::try_from(count).map_err(|_| refuse(format!("{name}: {count}; expected at least 1")))
}

fn center(value: Value, arguments: Arguments) -> Result<String, Error> {
    let [width] = bind(&arguments.into_values(), ["width"])?;
    let width = width.as_ref().map_or(Ok(80), as_integer)?;
    strings::pad(&text::write(&value)?, "center", width, " ")
}

fn trim(value: Value, arguments: Arguments) -> Result<String, Error> {
    let [characters] = bind(&arguments.into_values(), ["chars"])?;
    let characters = given(characters.as_ref()).map(as_text).transpose()?;
    Ok(strings::strip(&text::write(&value)?, "strip", characters).to_owned())
}

fn format(value: Value, arguments: Arguments) -> Result<String, Error> {
    let format = text::write(&value)?;
    let (places, named): (Rest<Value>, Kwargs) = from_args(&arguments.into_values())?;
    let names: Vec<&str> = named.args().collect();
    if names.is_empty() {
        let values = Tuple::from(places.to_vec());
        return percent::format(&format, &Value::from(values));
    }
    if !places.is_empty() {
        return Err(refuse("format: expected arguments with names, or without, not both"));
    }
    let pairs = names.into_iter().map(|name| Ok((name, named.peek::<Value>(name)?)));
    let pairs: Vec<_> = pairs.collect::<Result<_, Error>>()?;
    percent::format(&format, &Value::from_pairs(pairs))
}

fn indent(value: Value, arguments: Arguments) -> Result<String, Error> {
    let [width, first, blank] = bind(&arguments.into_values(), ["width", "first", "blank"])?;
    let indention = match &width {
        None => " ".repeat(4),
        Some(text) if text.as_str().is_some() => as_text(text)?.to_owned(),
        Some(width) => strings::pad("", "ljust", as_integer(width)?, " ")?,
    };
    let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let (first, blank) = (is_true(first), is_true(blank));
    let text = text::write(&value)? + "\n";
    let mut indented = String::new();
    for (place, line) in strings::split_lines(&text, false).into_iter().enumerate() {
        let is_indented = if place == 0 { first } else { blank || !line.is_empty() };
        indented.push_str(if place == 0 { "" } else { "\n" });
        indented.push_str(if is_indented { &indention } else { "" });
        indented.push_str(line);
        text::check_length(indented.len())?;
    }
    Ok(indented)
}

/// Text of `pprint.pformat` for values that fit in one line.
fn pprint(value: Value) -> Result<String, Error> {
    let text = text::repr(&value)?;
    if text.chars().count() > 80 {
        return Err(refuse("pprint: expected a value that fits in one line"));
    }
    Ok(text)
}

fn truncate(state: &mut State<'_, '_>, value: Value, arguments: Arguments) -> Result<Value, Error> {
    let names = ["length", "killwords", "end", "leeway"];
    let named = name_arguments(bind(&arguments.into_values(), names)?, names);
    contributed::truncate(state, &Value::from(text::write(&value)?), named)
}

/// Converts the arguments to named ones.
fn name_arguments<const N: usize>(values: [Option<Value>; N], names: [&str; N]) -> Kwargs {
    let pairs = names.into_iter().zip(values);
    pairs.filter_map(|(name, value)| Some((name, value?))).collect()
}

fn int(value: Value, arguments: Arguments) -> Result<Value, Error> {
    let [default, base] = bind(&arguments.into_values(), ["default", "base"])?;
    let default = default.unwrap_or(Value::from(0));
    let base = base.as_ref().map_or(Ok(10), as_integer)?;
    Ok(match value.kind() {
        ValueKind::String => {
            let text = as_text(&value)?;
            let whole = || Some(read_float(text)?.trunc()).filter(|float| float.abs() < 1e38);
            match read_integer(text, base) {
                Some(integer) => Value::from(integer),
                None => whole().map_or(default, |float| Value::from(float as i128)),
            }
        }
        ValueKind::Bool => Value::from(i64::from(value.is_true())),
        ValueKind::Number if value.is_integer() => value,
        ValueKind::Number => {
            let float = f64::try_from(value)?.trunc();
            if float.abs() < 1e38 { Value::from(float as i128) } else { default }
        }
        _ => default,
    })
}

/// Removes white space and single underscores from the digits of a number.
fn plain_digits(text: &str) -> Option<String> {
    let text = strings::strip(text, "strip", None);
    let is_plain = !text.starts_with('_') && !text.ends_with('_') && !text.contains("__");
    is_plain.then(|| text.replace('_', ""))
}

fn read_integer(text: &str, base: i64) -> Option<i128> {
    let text = plain_digits(text)?.to_lowercase();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(&text);
    let prefixed = [("0x", 16), ("0o", 8), ("0b", 2)];
    let prefixed = prefixed
        .iter()
        .find(|(prefix, radix)| digits.starts_with(prefix) && (base == 0 || base == *radix));
    let (digits, radix) = match prefixed {
        Some((prefix, radix)) => (&digits[prefix.len()..], *radix),
        None => (digits, if base == 0 { 10 } else { base }),
    };
    if !(2..=36).contains(&radix) || digits.starts_with(['+', '-']) {
        return None;
    }
    let number = i128::from_str_radix(digits, radix as u32).ok()?;
    Some(if text.starts_with('-') { -number } else { number })
}

fn read_float(text: &str) -> Option<f64> {
    plain_digits(text)?.parse().ok()
}

/// Returns an attribute of a value. Keys of a mapping are not attributes.
fn attr(value: Value, name: String) -> Result<Value, Error> {
    let has_keys = value.kind() == ValueKind::Map && !methods::is_namespace(&value);
    match has_keys {
        true if methods::OF_MAPPINGS.contains(&name.as_str()) => methods::attribute(value, name),
        true => Ok(Value::UNDEFINED),
        false => value.get_attr(&name),
    }
}

fn default(value: Value, arguments: Arguments) -> Result<Value, Error> {
    let [default, boolean] = bind(&arguments.into_values(), ["default_value", "boolean"])?;
    let boolean = boolean.is_some_and(|boolean| boolean.is_true());
    let is_replaced = value.is_undefined() || boolean && !value.is_true();
    Ok(if is_replaced { default.unwrap_or(Value::from("")) } else { value })
}

fn dictsort(value: Value, arguments: Arguments) -> Result<Value, Error> {
    let names = ["case_sensitive", "by", "reverse"];
    let bound = bind(&arguments.into_values(), names)?;
    let by_value = match bound[1].as_ref().map_or(Ok("key"), as_text)? {
        "key" => false,
        "value" => true,
        by => return Err(refuse(format!("dictsort: by=`{by}`; expected `key` or `value`"))),
    };
    let keys = value.try_iter()?.map(|key| if by_value { value.get_item(&key) } else { Ok(key) });
    check_order(&keys.collect::<Result<Vec<_>, Error>>()?)?;
    filters::dictsort(&value, name_arguments(bound, names))
}

fn join(value: Value, arguments: Arguments) -> Result<String, Error> {
    let [separator, attribute] = bind(&arguments.into_values(), ["d", "attribute"])?;
    let separator = separator.as_ref().map_or(Ok(String::new()), text::write)?;
    let items = read_attributes(&value, attribute.as_ref())?;
    let texts: Vec<String> = items.iter().map(text::write).collect::<Result<_, _>>()?;
    strings::join(&texts, &separator)
}

/// Returns the items of a list, or an attribute of each.
fn read_attributes(list: &Value, attribute: Option<&Value>) -> Result<Vec<Value>, Error> {
    if list.is_none() {
        return Err(refuse("None is not iterable"));
    }
    let Some(attribute) = given(attribute) else { return Ok(list.try_iter()?.collect()) };
    let path = text::write(attribute)?;
    let read = |item: Value| {
        path.split('.').try_fold(item, |item, part| match part.parse::<usize>() {
            Ok(place) => item.get_item_by_index(place),
            Err(_) => item.get_attr(part),
        })
    };
    list.try_iter()?.map(read).collect()
}

fn sort(state: &State<'_, '_>, value: Value, arguments: Arguments) -> Result<Value, Error> {
    let names = ["reverse", "case_sensitive", "attribute"];
    let bound = bind(&arguments.into_values(), names)?;
    let value = Value::from(read_attributes(&value, None)?);
    let attributes = given(bound[2].as_ref()).map(text::write).transpose()?;
    for attribute in attributes.as_deref().unwrap_or_default().split(',') {
        let attribute = (!attribute.is_empty()).then(|| Value::from(attribute));
        check_order(&read_attributes(&value, attribute.as_ref())?)?;
    }
    filters::sort(state, value, name_arguments(bound, names))
}

fn unique(state: &State<'_, '_>, value: Value, arguments: Arguments) -> Result<Value, Error> {
    let names = ["case_sensitive", "attribute"];
    let named = name_arguments(bind(&arguments.into_values(), names)?, names);
    filters::unique(state, value, named).and_then(generator)
}

fn check_extremes(value: &Value, named: &Kwargs) -> Result<(), Error> {
    let attribute: Option<Value> = named.peek("attribute")?;
    check_order(&read_attributes(value, attribute.as_ref())?)
}
