//! How a file changes the one that it extends, and `--set` what files say.
//!
//! First `unset` removes keys and elements. Then tables merge by key, and any other value replaces
//! the base's. A table over a list changes the elements that it numbers and `append`s others. Numbers
//! are those of the list in the base.

use crate::names::meant;
use crate::node::{Entry, Node, Span, Value};
use crate::words::{before, list};

/// Why a change does not go with what it changes.
#[derive(Debug)]
pub(crate) struct Misfit {
    pub(crate) span: Span,
    pub(crate) message: String,
    pub(crate) label: &'static str,
    pub(crate) help: String,
}

/// The key of a list that is added to another's end.
const APPEND: &str = "append";

/// What stands where something was taken out, until the change has been laid over it: so the other
/// elements of a list keep their numbers.
const TAKEN_OUT: &str = "taken out";

/// Changes `base`, which messages call `name`, as far as that goes.
pub(crate) fn change(base: &mut Node, name: &str, mut over: Node) -> Vec<Misfit> {
    let mut change = Change { name, misfits: Vec::new() };
    if let Some(unset) = over.take("unset") {
        change.take_out(base, &unset);
    }
    change.lay(base, over, "");
    sweep(base);
    change.misfits
}

/// What did not go so far.
struct Change<'a> {
    name: &'a str,
    misfits: Vec<Misfit>,
}

impl Change<'_> {
    /// Takes out what a list of dotted keys names.
    fn take_out(&mut self, base: &mut Node, unset: &Node) {
        let Value::Array(paths) = &unset.value else {
            return self.misfits.push(not_a_path(&unset.span));
        };
        for path in paths {
            match path.as_str() {
                Some(text) => self.take_out_one(base, text, &path.span),
                None => self.misfits.push(not_a_path(&path.span)),
            }
        }
    }

    fn take_out_one(&mut self, base: &mut Node, path: &str, span: &Span) {
        match find(base, &path.split('.').collect::<Vec<_>>()) {
            Ok(node) => node.value = Value::Other(TAKEN_OUT),
            Err(help) => self.misfits.push(Misfit {
                span: span.clone(),
                message: format!("`unset` names `{path}`, which is not in {}", self.name),
                label: "nothing to take out",
                help,
            }),
        }
    }

    /// Lays `over` on what stands at `path`.
    fn lay(&mut self, base: &mut Node, over: Node, path: &str) {
        let same_type = match (base.get("type"), over.get("type")) {
            (Some(a), Some(b)) => a.as_str() == b.as_str(),
            _ => true,
        };
        match (&mut base.value, over.value) {
            (Value::Table(entries), Value::Table(over)) if same_type => {
                for new in over {
                    match entries.iter_mut().find(|old| old.key == new.key) {
                        Some(old) => self.lay(&mut old.node, new.node, &join(path, &new.key)),
                        None => entries.push(Entry { node: fresh(new.node), ..new }),
                    }
                }
            }
            (Value::Array(items), Value::Table(changes)) => self.change_list(items, changes, path),
            (Value::Array(items), Value::Array(new)) if has_tables(items) && has_tables(&new) => {
                self.misfits.push(replaces(path, self.name, over.span));
            }
            (_, value) => *base = fresh(Node { span: over.span, value }),
        }
    }

    /// Changes elements of a list, then appends others.
    fn change_list(&mut self, items: &mut Vec<Node>, changes: Vec<Entry>, path: &str) {
        let mut appended = Vec::new();
        for change in changes {
            match number(&change.key, items.len()) {
                _ if change.key == APPEND => appended.extend(self.items(change, path)),
                Some(number) => {
                    self.lay(&mut items[number], change.node, &join(path, &change.key));
                }
                None => self.misfits.push(no_element(change, path, items.len())),
            }
        }
        items.append(&mut appended);
    }

    /// The elements that an entry of the table at `path` adds.
    fn items(&mut self, Entry { key, span, node }: Entry, path: &str) -> Vec<Node> {
        if let Value::Array(items) = node.value {
            return items;
        }
        self.misfits.push(not_a_list(span, &join(path, &key)));
        Vec::new()
    }
}

/// What keys lead to, or what there is where they part from the tree.
fn find<'a>(node: &'a mut Node, path: &[&str]) -> Result<&'a mut Node, String> {
    let Some((&key, rest)) = path.split_first() else { return Ok(node) };
    let there = what_there_is(node, key);
    let next = match &mut node.value {
        Value::Table(entries) => {
            entries.iter_mut().find(|entry| entry.key == key).map(|entry| &mut entry.node)
        }
        Value::Array(items) => number(key, items.len()).map(|number| &mut items[number]),
        _ => None,
    };
    find(next.filter(|next| !is_taken_out(next)).ok_or(there)?, rest)
}

/// What a table or list has, for somebody who looked for `key`.
fn what_there_is(node: &Node, key: &str) -> String {
    match &node.value {
        Value::Table(entries) if !entries.is_empty() => {
            let keys: Vec<&str> = entries.iter().map(|entry| &entry.key[..]).collect();
            before(meant(key, &keys), &format!("there are {}", list(&keys)))
        }
        Value::Array(items) => elements(items.len()),
        _ => "there is nothing".into(),
    }
}

/// How the elements of a list are numbered.
fn elements(count: usize) -> String {
    match count {
        0 => "the list has no elements".into(),
        1 => "the list has one element, 0".into(),
        _ => format!("the list has {count} elements, 0 to {}", count - 1),
    }
}

/// The key as an index below `count`, if it is one.
fn number(key: &str, count: usize) -> Option<usize> {
    key.parse().ok().filter(|number: &usize| *number < count && number.to_string() == key)
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn has_tables(items: &[Node]) -> bool {
    items.iter().any(|item| matches!(item.value, Value::Table(_)))
}

/// A node where there was none: there, what is appended is the list.
fn fresh(mut node: Node) -> Node {
    let only = node.entries().len() == 1;
    only.then(|| node.take(APPEND)).flatten().unwrap_or(node)
}

fn is_taken_out(node: &Node) -> bool {
    matches!(node.value, Value::Other(TAKEN_OUT))
}

/// Forgets the places of what was taken out.
fn sweep(node: &mut Node) {
    match &mut node.value {
        Value::Array(items) => {
            items.retain(|item| !is_taken_out(item));
            for item in items {
                sweep(item);
            }
        }
        Value::Table(entries) => {
            entries.retain(|entry| !is_taken_out(&entry.node));
            for entry in entries {
                sweep(&mut entry.node);
            }
        }
        _ => {}
    }
}

fn not_a_path(span: &Span) -> Misfit {
    Misfit {
        span: span.clone(),
        message: "wrong type for unset: expected a list of keys in quotes".into(),
        label: "here",
        help: "for instance, `unset = [\"estimator.limit\", \"selectors.0\"]`".into(),
    }
}

fn replaces(path: &str, name: &str, span: Span) -> Misfit {
    Misfit {
        span,
        message: format!("`[[{path}]]` would replace the list in {name}"),
        label: "add to it, or replace it?",
        help: format!(
            "to add to it, write `[[{path}.append]]`; to change one of its tables, `[{path}.0]`; to \
             replace it, add `unset = [\"{path}\"]`"
        ),
    }
}

fn not_a_list(span: Span, path: &str) -> Misfit {
    Misfit {
        span,
        message: format!("expected a list at {path}"),
        label: "this is none",
        help: format!("write `[[{path}]]` for a table, or `{path} = [ … ]`"),
    }
}

fn no_element(Entry { key, span, .. }: Entry, path: &str, count: usize) -> Misfit {
    Misfit {
        span,
        message: format!("`{key}` is not the number of an element of `{path}`"),
        label: "no such element",
        help: format!("{}; `[[{path}.append]]` adds one", elements(count)),
    }
}
