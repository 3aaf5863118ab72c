//! Python's operators, as functions that a rewritten template calls.

use std::cmp::Ordering;

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, Value};

use super::arguments::refuse;
use super::{percent, text};

pub(super) const ATTRIBUTE: &str = "_attribute";
pub(super) const CONCATENATE: &str = "_concatenate";
pub(super) const GREATER: &str = "_greater";
pub(super) const GREATER_OR_EQUAL: &str = "_greater_or_equal";
pub(super) const IN: &str = "_in";
pub(super) const LESS: &str = "_less";
pub(super) const LESS_OR_EQUAL: &str = "_less_or_equal";
pub(super) const LOOP_LIST: &str = "_loop_list";
pub(super) const NOT_IN: &str = "_not_in";
pub(super) const REFUSE_NAME: &str = "_refuse_name";
pub(super) const REMAINDER: &str = "_remainder";

/// A condition on the order of two values.
type Holds = fn(Ordering) -> bool;

pub(super) fn add(environment: &mut Environment<'static>) {
    environment.add_function(ATTRIBUTE, super::methods::attribute);
    environment.add_function(CONCATENATE, concatenate);
    environment.add_function(LOOP_LIST, loop_list);
    environment.add_function(REFUSE_NAME, refuse_name);
    environment.add_function(REMAINDER, remainder);
    environment.add_function(IN, |value: Value, container: Value| contains(&container, &value));
    environment.add_function(NOT_IN, |value: Value, container: Value| {
        contains(&container, &value).map(|found| !found)
    });
    let orders: [(&str, Holds); 4] = [
        (LESS, Ordering::is_lt),
        (LESS_OR_EQUAL, Ordering::is_le),
        (GREATER, Ordering::is_gt),
        (GREATER_OR_EQUAL, Ordering::is_ge),
    ];
    for (name, holds) in orders {
        let compare = move |left: Value, right: Value| {
            Ok::<_, Error>(compare(&left, &right)?.is_some_and(holds))
        };
        environment.add_function(name, compare);
    }
    let orders: [(&[&str], Holds); 4] = [
        (&["lt", "lessthan", "<"], Ordering::is_lt),
        (&["le", "<="], Ordering::is_le),
        (&["gt", "greaterthan", ">"], Ordering::is_gt),
        (&["ge", ">="], Ordering::is_ge),
    ];
    for (names, holds) in orders {
        for name in names {
            environment.add_test(*name, move |left: Value, right: Value| {
                Ok::<_, Error>(compare(&left, &right)?.is_some_and(holds))
            });
        }
    }
    environment.add_test("in", |value: Value, container: Value| contains(&container, &value));
}

fn concatenate(parts: Rest<Value>) -> Result<String, Error> {
    parts.iter().map(text::write).collect()
}

fn loop_list(list: Value) -> Result<Value, Error> {
    if list.is_none() { Err(refuse("None is not iterable")) } else { Ok(list) }
}

fn refuse_name(_: Value) -> Result<Value, Error> {
    Err(refuse("an attribute of a namespace must not begin with an underscore"))
}

fn remainder(left: Value, right: Value) -> Result<Value, Error> {
    if left.kind() == ValueKind::String {
        return percent::format(left.as_str().unwrap_or_default(), &right).map(Value::from);
    }
    if let (Ok(left), Ok(right)) = (integer(&left), integer(&right)) {
        let rest = left.checked_rem(right).ok_or_else(|| refuse("modulo by zero"))?;
        let has_other_sign = rest != 0 && (rest < 0) != (right < 0);
        return Ok(Value::from(if has_other_sign { rest + right } else { rest }));
    }
    let (left, right) = (number(&left)?, number(&right)?);
    if right == 0.0 {
        return Err(refuse("modulo by zero"));
    }
    let rest = left % right;
    let has_other_sign = (rest < 0.0) != (right < 0.0);
    Ok(Value::from(if rest == 0.0 {
        0.0_f64.copysign(right)
    } else if has_other_sign {
        rest + right
    } else {
        rest
    }))
}

fn integer(value: &Value) -> Result<i128, Error> {
    if value.kind() == ValueKind::Bool {
        return Ok(i128::from(value.is_true()));
    }
    if value.is_integer() {
        i128::try_from(value.clone())
    } else {
        Err(refuse("expected a number"))
    }
}

fn number(value: &Value) -> Result<f64, Error> {
    match value.kind() {
        ValueKind::Bool => Ok(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()),
        kind => Err(refuse(format!("cannot compute with {kind}"))),
    }
}

/// Returns the order of two values, or `None` if one of them is NaN.
///
/// # Errors
/// If Python cannot order the values.
pub(super) fn compare(left: &Value, right: &Value) -> Result<Option<Ordering>, Error> {
    compare_nested(left, right, 0)
}

fn compare_nested(left: &Value, right: &Value, depth: usize) -> Result<Option<Ordering>, Error> {
    if depth > text::DEEPEST {
        return Err(refuse("a value is nested too deep"));
    }
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    if is_number(left) && is_number(right) {
        let is_nan = |value: &Value| f64::try_from(value.clone()).is_ok_and(f64::is_nan);
        return Ok((!is_nan(left) && !is_nan(right)).then(|| left.cmp(right)));
    }
    match (left.kind(), right.kind()) {
        (ValueKind::String, ValueKind::String) => Ok(Some(left.cmp(right))),
        (ValueKind::Seq | ValueKind::Iterable, ValueKind::Seq | ValueKind::Iterable)
            if left.is_tuple() == right.is_tuple() =>
        {
            for (left, right) in left.try_iter()?.zip(right.try_iter()?) {
                if left != right {
                    return compare_nested(&left, &right, depth + 1);
                }
            }
            Ok(Some(left.len().cmp(&right.len())))
        }
        (left, right) => Err(refuse(format!("cannot order {left} and {right}"))),
    }
}

/// Refuses a list whose values Python cannot order.
pub(super) fn check_order(values: &[Value]) -> Result<(), Error> {
    values.windows(2).try_for_each(|pair| compare(&pair[0], &pair[1]).map(|_| ()))
}

fn contains(container: &Value, value: &Value) -> Result<bool, Error> {
    match container.kind() {
        ValueKind::Undefined => Ok(false),
        ValueKind::String => match (container.as_str(), value.as_str()) {
            (Some(text), Some(part)) => Ok(text.contains(part)),
            _ if value.is_undefined() => Err(refuse("a string cannot contain an undefined value")),
            _ => Err(refuse(format!("a string cannot contain {}", value.kind()))),
        },
        ValueKind::Map => {
            let object = container.as_object();
            Ok(object.is_some_and(|object| object.get_value(value).is_some()))
        }
        ValueKind::Seq | ValueKind::Iterable => {
            Ok(container.try_iter()?.any(|item| item == *value))
        }
        kind => Err(refuse(format!("{kind} has no elements"))),
    }
}
