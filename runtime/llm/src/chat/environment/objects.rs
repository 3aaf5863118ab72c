//! Python's objects that minijinja lacks.

use std::sync::Arc;
use std::sync::Mutex;

use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Rest, ValueKind, from_args};
use minijinja::{Error, State, Value};

use super::arguments::{bind, refuse, require};

/// A `range`, or a view of a mapping.
#[derive(Debug)]
pub(super) struct PythonList {
    pub(super) kind: ListKind,
    pub(super) items: Vec<Value>,
}

#[derive(Debug)]
pub(super) enum ListKind {
    Range(String),
    /// A view of a mapping, with its name.
    View(&'static str),
}

impl PythonList {
    pub(super) fn push_repr(
        &self,
        text: &mut String,
        mut push: impl FnMut(&mut String, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match &self.kind {
            ListKind::Range(range) => text.push_str(range),
            ListKind::View(name) => {
                text.push_str(name);
                text.push_str("([");
                for (place, item) in self.items.iter().enumerate() {
                    text.push_str(if place == 0 { "" } else { ", " });
                    push(text, item)?;
                }
                text.push_str("])");
            }
        }
        Ok(())
    }

    pub(super) fn is_view(&self) -> bool {
        matches!(self.kind, ListKind::View(_))
    }
}

impl Object for PythonList {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        if self.is_view() { None } else { self.items.get(key.as_usize()?).cloned() }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.clone())
    }
}

/// Result of a filter that can be read once; it has no length and cannot be indexed.
#[derive(Debug)]
pub(super) struct Generator(pub(super) Mutex<std::vec::IntoIter<Value>>);

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn get_value(self: &Arc<Self>, _: &Value) -> Option<Value> {
        Some(Value::UNDEFINED)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let rest = Arc::clone(self);
        let next = move || rest.0.lock().ok().and_then(|mut items| items.next());
        Enumerator::Iter(Box::new(std::iter::from_fn(next)))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }
}

/// `cycler(...)`: `next()` returns the current item and moves on.
#[derive(Debug)]
pub(super) struct Cycler {
    pub(super) items: Vec<Value>,
    pub(super) place: Mutex<usize>,
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let place = *self.place.lock().ok()?;
        match key.as_str()? {
            "current" => self.items.get(place).cloned(),
            "pos" => Some(Value::from(place)),
            "items" => Some(Value::from(self.items.clone())),
            _ => None,
        }
    }

    fn call_method(
        self: &Arc<Self>,
        _state: &mut State<'_, '_>,
        method: &str,
        arguments: &[Value],
    ) -> Result<Value, Error> {
        let [] = bind(arguments, [])?;
        let mut place = self.place.lock().map_err(|_| refuse("a cycler is broken"))?;
        match method {
            "next" => {
                let item = self.items[*place].clone();
                *place = (*place + 1) % self.items.len();
                Ok(item)
            }
            "reset" => {
                *place = 0;
                Ok(Value::from(()))
            }
            _ => Err(refuse(format!("a cycler has no method `{method}`"))),
        }
    }
}

/// `dict`, a function with a method.
#[derive(Debug)]
pub(super) struct DictFunction;

impl Object for DictFunction {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, given: &[Value]) -> Result<Value, Error> {
        dict(given)
    }

    fn call_method(
        self: &Arc<Self>,
        _state: &mut State<'_, '_>,
        method: &str,
        arguments: &[Value],
    ) -> Result<Value, Error> {
        if method != "fromkeys" {
            return Err(refuse(format!("dict has no method `{method}`")));
        }
        let [keys, value] = bind(arguments, ["iterable", "value"])?;
        let value = value.unwrap_or(Value::from(()));
        let keys = require(keys.as_ref(), "iterable")?.try_iter()?;
        Ok(Value::from_pairs(keys.map(|key| (key, value.clone()))))
    }
}

/// Method of a value that has not been called yet.
#[derive(Debug)]
pub(super) struct BoundMethod {
    pub(super) value: Value,
    pub(super) name: String,
}

impl Object for BoundMethod {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, given: &[Value]) -> Result<Value, Error> {
        self.value.call_method(state, &self.name, given)
    }
}

/// `dict(pairs, name=value, ...)`.
pub(super) fn dict(arguments: &[Value]) -> Result<Value, Error> {
    let (places, named): (Rest<Value>, Kwargs) = from_args(arguments)?;
    let mut pairs = match &places[..] {
        [] => Vec::new(),
        [map] if map.kind() == ValueKind::Map => read_map(map)?,
        [pairs] => pairs.try_iter()?.map(|pair| read_pair(&pair)).collect::<Result<_, _>>()?,
        _ => return Err(refuse("dict: expected at most 1 argument without a name")),
    };
    for name in named.args() {
        pairs.push((Value::from(name), named.peek(name)?));
    }
    Ok(Value::from_pairs(pairs))
}

fn read_map(map: &Value) -> Result<Vec<(Value, Value)>, Error> {
    let pair = |key: Value| Ok((key.clone(), map.get_item(&key)?));
    map.try_iter()?.map(pair).collect()
}

fn read_pair(pair: &Value) -> Result<(Value, Value), Error> {
    let items: Vec<Value> = pair.try_iter()?.collect();
    <[Value; 2]>::try_from(items)
        .map(|[key, value]| (key, value))
        .map_err(|items| refuse(format!("dict: expected pairs, found {} items", items.len())))
}
