//! Arguments of a call, assigned by Python's rules.

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind, Value};

/// Positional and named arguments of a call.
pub(super) type CallArguments = Rest<ValueOrKwargs>;

pub(super) fn refuse(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.into())
}

/// Assigns positional and named arguments to the parameters of a function.
///
/// # Errors
/// If there are more arguments than parameters, an unknown name, or two values of one parameter.
pub(super) fn bind<const N: usize>(
    arguments: &[Value],
    names: [&str; N],
) -> Result<[Option<Value>; N], Error> {
    let (places, named): (Rest<Value>, Kwargs) = from_args(arguments)?;
    if places.len() > N {
        let reason = format!("expected at most {N} arguments, found {}", places.len());
        return Err(Error::new(ErrorKind::TooManyArguments, reason));
    }
    let mut bound = [const { None }; N];
    for (slot, value) in bound.iter_mut().zip(places.iter()) {
        *slot = Some(value.clone());
    }
    for name in named.args() {
        let place = names.iter().position(|known| *known == name);
        match place.map(|place| &mut bound[place]) {
            Some(slot @ None) => *slot = Some(named.peek(name)?),
            Some(Some(_)) => return Err(refuse(format!("`{name}` is given twice"))),
            None => return Err(refuse(format!("unknown argument `{name}`"))),
        }
    }
    Ok(bound)
}

/// Returns a required argument.
pub(super) fn require<'v>(value: Option<&'v Value>, name: &str) -> Result<&'v Value, Error> {
    value.ok_or_else(|| {
        Error::new(ErrorKind::MissingArgument, format!("expected an argument `{name}`"))
    })
}

/// Returns an argument that is neither absent nor `none`.
pub(super) fn filter_none(value: Option<&Value>) -> Option<&Value> {
    value.filter(|value| !value.is_none())
}

pub(super) fn as_text(value: &Value) -> Result<&str, Error> {
    value.as_str().ok_or_else(|| refuse(format!("expected a string, found {}", value.kind())))
}

pub(super) fn as_integer(value: &Value) -> Result<i64, Error> {
    if value.kind() == ValueKind::Bool {
        return Ok(i64::from(value.is_true()));
    }
    let integer = value.is_integer().then(|| i64::try_from(value.clone()).ok()).flatten();
    integer.ok_or_else(|| refuse(format!("expected an integer, found {}", value.kind())))
}
