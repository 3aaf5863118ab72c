//! Tests, as in `value is sequence`.

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, Value};

use super::arguments::{as_integer, refuse};
use super::methods::is_namespace;
use super::objects::{BoundMethod, DictFunction, PythonList};
use super::{strings, text};

pub(super) fn add(environment: &mut Environment<'static>) {
    environment.add_test("callable", is_callable);
    environment.add_test("divisibleby", |value: Value, number: Value| {
        let (value, number) = (as_integer(&value)?, as_integer(&number)?);
        value.checked_rem(number).map(|rest| rest == 0).ok_or_else(|| refuse("modulo by zero"))
    });
    environment.add_test("even", |value: Value| is_odd(&value).map(|odd| !odd));
    environment.add_test("odd", |value: Value| is_odd(&value));
    environment.add_test("iterable", |value: Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("lower", |value: Value| {
        text::write(&value).map(|text| strings::is(&text, "islower"))
    });
    environment.add_test("upper", |value: Value| {
        text::write(&value).map(|text| strings::is(&text, "isupper"))
    });
    environment.add_test("mapping", |value: Value| {
        value.kind() == ValueKind::Map && !is_namespace(&value)
    });
    environment.add_test("sequence", is_sequence);
    for name in ["endingwith", "safe", "startingwith", "int"] {
        environment.remove_test(name);
    }
}

fn is_odd(value: &Value) -> Result<bool, Error> {
    match value.kind() {
        ValueKind::Number if !value.is_integer() => {
            Ok(f64::try_from(value.clone())?.rem_euclid(2.0) == 1.0)
        }
        _ => Ok(as_integer(value)?.rem_euclid(2) == 1),
    }
}

/// Returns whether a value can be called. An undefined value is callable; calling it fails.
fn is_callable(value: Value) -> bool {
    let is_method = value.downcast_object_ref::<BoundMethod>().is_some();
    let is_dict = value.downcast_object_ref::<DictFunction>().is_some();
    let is_function = value.as_object().is_some_and(|object| {
        ["BoxedFunction", "Joiner", "Macro"].iter().any(|name| object.type_name().ends_with(name))
    });
    value.is_undefined() || is_method || is_dict || is_function
}

/// Returns whether a value has a length and can be indexed or has keys.
fn is_sequence(value: Value) -> bool {
    match value.kind() {
        ValueKind::Undefined | ValueKind::String => true,
        ValueKind::Map => !is_namespace(&value),
        _ => match value.downcast_object_ref::<PythonList>() {
            Some(list) => !list.is_view(),
            None => value.is_tuple() || text::is_list(&value),
        },
    }
}
