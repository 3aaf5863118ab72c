//! Formatting by `%`, as `"%s" % value` in Python.

use minijinja::formatting::{self, FormatStyle};
use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::arguments::{as_integer, refuse};
use super::text::{check_length, repr, write};

/// Largest supported width and precision.
const WIDEST: i64 = 1 << 16;

/// A conversion such as `%(key)-5.2f`, with its width and precision as numbers.
struct Conversion<'f> {
    key: Option<&'f str>,
    flags: &'f str,
    width: Option<i64>,
    precision: Option<i64>,
    kind: char,
}

/// Values for conversions without a key, in order.
struct FormatValues {
    values: std::vec::IntoIter<Value>,
    has_keys: bool,
}

impl FormatValues {
    fn next(&mut self) -> Result<Value, Error> {
        self.values.next().ok_or_else(|| refuse("not enough arguments for the format"))
    }
}

/// Formats one value, or the values of a tuple or a mapping.
///
/// # Errors
/// If a conversion is unknown or does not fit its value, or if there are too few or too many
/// values.
pub(super) fn format(format: &str, value: &Value) -> Result<String, Error> {
    let values = if value.is_tuple() { value.try_iter()?.collect() } else { vec![value.clone()] };
    let has_keys = matches!(value.kind(), ValueKind::Map | ValueKind::Seq | ValueKind::Iterable);
    let has_keys = has_keys && !value.is_tuple();
    let mut values = FormatValues { values: values.into_iter(), has_keys };
    let mut text = String::new();
    let mut rest = format;
    while let Some((before, behind)) = rest.split_once('%') {
        text.push_str(before);
        let (conversion, behind) = read(behind, &mut values)?;
        rest = behind;
        if conversion.kind == '%' {
            text.push('%');
            continue;
        }
        let taken = match conversion.key {
            Some(_) if value.kind() != ValueKind::Map => {
                return Err(refuse("a format with keys requires a mapping"));
            }
            Some(key) => {
                let item = value.as_object().and_then(|map| map.get_value(&Value::from(key)));
                item.ok_or_else(|| refuse(format!("no value of the key `{key}`")))?
            }
            None => values.next()?,
        };
        text.push_str(&convert(&conversion, &taken)?);
        check_length(text.len())?;
    }
    text.push_str(rest);
    if values.values.next().is_some() && !values.has_keys {
        return Err(refuse("not all arguments are used by the format"));
    }
    Ok(text)
}

/// Parses a conversion after its percent sign.
fn read<'f>(text: &'f str, values: &mut FormatValues) -> Result<(Conversion<'f>, &'f str), Error> {
    let incomplete = || refuse("the format is incomplete");
    let (key, rest) = match text.strip_prefix('(') {
        Some(text) => {
            let (key, rest) = text.split_once(')').ok_or_else(incomplete)?;
            (Some(key), rest)
        }
        None => (None, text),
    };
    let (flags, rest) = take_while(rest, |c| "#0- +".contains(c));
    let (width, rest) = read_number(rest, values)?;
    let (precision, rest) = match rest.strip_prefix('.') {
        Some(rest) => {
            let (precision, rest) = read_number(rest, values)?;
            (Some(precision.unwrap_or(0)), rest)
        }
        None => (None, rest),
    };
    let rest = rest.strip_prefix(['h', 'l', 'L']).unwrap_or(rest);
    let kind = rest.chars().next().ok_or_else(incomplete)?;
    let conversion = Conversion { key, flags, width, precision, kind };
    Ok((conversion, &rest[kind.len_utf8()..]))
}

fn take_while(text: &str, is_taken: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !is_taken(c)).unwrap_or(text.len()))
}

fn read_number<'f>(
    text: &'f str,
    values: &mut FormatValues,
) -> Result<(Option<i64>, &'f str), Error> {
    let (number, rest) = if let Some(rest) = text.strip_prefix('*') {
        (Some(as_integer(&values.next()?)?), rest)
    } else {
        let (digits, rest) = take_while(text, |c| c.is_ascii_digit());
        let too_large = |_| refuse("a width or precision is too large");
        let number = (!digits.is_empty()).then(|| digits.parse().map_err(too_large));
        (number.transpose()?, rest)
    };
    if number.is_some_and(|number| !(-WIDEST..=WIDEST).contains(&number)) {
        return Err(refuse("a width or precision is too large"));
    }
    Ok((number, rest))
}

fn convert(conversion: &Conversion<'_>, value: &Value) -> Result<String, Error> {
    let is_number = matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    let (kind, value) = match conversion.kind {
        's' => ('s', Value::from(write(value)?)),
        'r' => ('s', Value::from(repr(value)?)),
        'd' | 'i' | 'u' if is_number => ('d', truncate(value)?),
        'x' | 'X' | 'o' if is_number && (value.is_integer() || value.kind() == ValueKind::Bool) => {
            (conversion.kind, Value::from(as_integer(value)?))
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' if is_number => {
            (conversion.kind, Value::from(f64::try_from(value.clone())?))
        }
        'c' => ('c', value.clone()),
        kind => return Err(refuse(format!("cannot format {} as `%{kind}`", value.kind()))),
    };
    let mut format = String::from("%");
    let is_left = conversion.width.is_some_and(|width| width < 0);
    format.push_str(if is_left { "-" } else { "" });
    format.push_str(conversion.flags);
    if let Some(width) = conversion.width {
        format.push_str(&width.unsigned_abs().to_string());
    }
    if let Some(precision) = conversion.precision {
        format.push('.');
        format.push_str(&precision.max(0).to_string());
    }
    format.push(kind);
    formatting::format(FormatStyle::Printf, &format, &[value])
}

/// Integer part of a number.
fn truncate(value: &Value) -> Result<Value, Error> {
    if value.kind() == ValueKind::Bool {
        return Ok(Value::from(i64::from(value.is_true())));
    }
    if value.is_integer() {
        return Ok(value.clone());
    }
    let number = f64::try_from(value.clone())?.trunc();
    if number.abs() < 1e38 {
        Ok(Value::from(number as i128))
    } else {
        Err(refuse("cannot format a number without end as a whole one"))
    }
}
