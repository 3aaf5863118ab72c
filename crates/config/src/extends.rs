//! Changes to a tree, the base, by a file that extends it or by `--set`.
//!
//! First `unset` removes keys and elements. Then tables are merged by key, and any other value
//! replaces the value in the base. Where the base has a list, a table changes the list: its keys
//! are indices of elements to change, or `append` with a list of elements to add. Indices are those
//! before the change. A list of tables does not replace another, because `[[selectors]]` in a file
//! looks like an addition.

use crate::names::suggest;
use crate::node::{Node, TableEntry, TextSpan, Value};
use crate::words::{list, with_suggestion};

/// A change that does not apply to the base.
#[derive(Debug)]
pub(crate) struct ChangeFault {
    pub(crate) span: TextSpan,
    pub(crate) message: String,
    pub(crate) label: &'static str,
    pub(crate) help: String,
}

/// Key of the elements to add to the end of the base's list.
const APPEND: &str = "append";

/// Placeholder for a removed value until the change is merged, so that the other elements of a list
/// keep their indices.
const REMOVED: &str = "removed";

/// Applies `over` to `base`, which messages call `name`. Returns the changes that do not apply.
pub(crate) fn change(base: &mut Node, name: &str, mut over: Node) -> Vec<ChangeFault> {
    let mut change = Change { name, faults: Vec::new() };
    if let Some(unset) = over.take("unset") {
        change.remove(base, &unset);
    }
    change.merge(base, over, "");
    drop_removed(base);
    change.faults
}

/// Progress of a change: the faults so far.
struct Change<'a> {
    name: &'a str,
    faults: Vec<ChangeFault>,
}

impl Change<'_> {
    /// Removes the values at a list of dotted keys.
    fn remove(&mut self, base: &mut Node, unset: &Node) {
        let Value::Array(paths) = &unset.value else {
            return self.faults.push(not_a_path(&unset.span));
        };
        for path in paths {
            match path.as_str() {
                Some(text) => self.remove_value(base, text, &path.span),
                None => self.faults.push(not_a_path(&path.span)),
            }
        }
    }

    fn remove_value(&mut self, base: &mut Node, path: &str, span: &TextSpan) {
        match find(base, &path.split('.').collect::<Vec<_>>()) {
            Ok(node) => node.value = Value::Other(REMOVED),
            Err(help) => self.faults.push(ChangeFault {
                span: span.clone(),
                message: format!("`unset` names `{path}`, which is not in {}", self.name),
                label: "nothing to take out",
                help,
            }),
        }
    }

    /// Merges `over` into the value at `path`.
    fn merge(&mut self, base: &mut Node, over: Node, path: &str) {
        let same_type = match (base.get("type"), over.get("type")) {
            (Some(a), Some(b)) => a.as_str() == b.as_str(),
            _ => true,
        };
        match (&mut base.value, over.value) {
            (Value::Table(entries), Value::Table(over)) if same_type => {
                for new in over {
                    match entries.iter_mut().find(|old| old.key == new.key) {
                        Some(old) => self.merge(&mut old.node, new.node, &join(path, &new.key)),
                        None => entries.push(TableEntry { node: unwrap_append(new.node), ..new }),
                    }
                }
            }
            (Value::Array(items), Value::Table(changes)) => self.change_list(items, changes, path),
            (Value::Array(items), Value::Array(new)) if has_tables(items) && has_tables(&new) => {
                self.faults.push(replaces(path, self.name, over.span));
            }
            (_, value) => *base = unwrap_append(Node { span: over.span, value }),
        }
    }

    /// Changes elements of a list, then appends others.
    fn change_list(&mut self, items: &mut Vec<Node>, changes: Vec<TableEntry>, path: &str) {
        let mut appended = Vec::new();
        for change in changes {
            match parse_index(&change.key, items.len()) {
                _ if change.key == APPEND => appended.extend(self.appended_items(change, path)),
                Some(index) => {
                    self.merge(&mut items[index], change.node, &join(path, &change.key));
                }
                None => self.faults.push(no_element(change, path, items.len())),
            }
        }
        items.append(&mut appended);
    }

    /// Returns the elements that an entry of the table at `path` adds.
    fn appended_items(
        &mut self,
        TableEntry { key, span, node }: TableEntry,
        path: &str,
    ) -> Vec<Node> {
        if let Value::Array(items) = node.value {
            return items;
        }
        self.faults.push(not_a_list(span, &join(path, &key)));
        Vec::new()
    }
}

/// Finds the value at a path. The error describes the content of the last node that exists.
fn find<'a>(node: &'a mut Node, path: &[&str]) -> Result<&'a mut Node, String> {
    let Some((&key, rest)) = path.split_first() else { return Ok(node) };
    let content = describe_content(node, key);
    let next = match &mut node.value {
        Value::Table(entries) => {
            entries.iter_mut().find(|entry| entry.key == key).map(|entry| &mut entry.node)
        }
        Value::Array(items) => parse_index(key, items.len()).map(|index| &mut items[index]),
        _ => None,
    };
    find(next.filter(|next| !is_removed(next)).ok_or(content)?, rest)
}

/// Describes the content of a table or list that lacks `key`.
fn describe_content(node: &Node, key: &str) -> String {
    match &node.value {
        Value::Table(entries) if !entries.is_empty() => {
            let keys: Vec<&str> = entries.iter().map(|entry| &entry.key[..]).collect();
            with_suggestion(suggest(key, &keys), &format!("there are {}", list(&keys)))
        }
        Value::Array(items) => describe_indices(items.len()),
        _ => "there is nothing".into(),
    }
}

/// Describes the indices of a list.
fn describe_indices(count: usize) -> String {
    match count {
        0 => "the list has no elements".into(),
        1 => "the list has one element, 0".into(),
        _ => format!("the list has {count} elements, 0 to {}", count - 1),
    }
}

/// Parses a key as an index below `count`.
fn parse_index(key: &str, count: usize) -> Option<usize> {
    key.parse().ok().filter(|index: &usize| *index < count && index.to_string() == key)
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn has_tables(items: &[Node]) -> bool {
    items.iter().any(|item| matches!(item.value, Value::Table(_)))
}

/// Returns the list in a table that has nothing but `append`, and other nodes unchanged: if the
/// base has no list, the appended elements are the whole list.
fn unwrap_append(mut node: Node) -> Node {
    let only = node.entries().len() == 1;
    only.then(|| node.take(APPEND)).flatten().unwrap_or(node)
}

fn is_removed(node: &Node) -> bool {
    matches!(node.value, Value::Other(REMOVED))
}

/// Drops the placeholders of removed values.
fn drop_removed(node: &mut Node) {
    match &mut node.value {
        Value::Array(items) => {
            items.retain(|item| !is_removed(item));
            for item in items {
                drop_removed(item);
            }
        }
        Value::Table(entries) => {
            entries.retain(|entry| !is_removed(&entry.node));
            for entry in entries {
                drop_removed(&mut entry.node);
            }
        }
        _ => {}
    }
}

fn not_a_path(span: &TextSpan) -> ChangeFault {
    ChangeFault {
        span: span.clone(),
        message: "wrong type for unset: expected a list of keys in quotes".into(),
        label: "here",
        help: "for instance, `unset = [\"estimator.limit\", \"selectors.0\"]`".into(),
    }
}

fn replaces(path: &str, name: &str, span: TextSpan) -> ChangeFault {
    ChangeFault {
        span,
        message: format!("`[[{path}]]` would replace the list in {name}"),
        label: "add to it, or replace it?",
        help: format!(
            "to add to it, write `[[{path}.append]]`; to change one of its tables, \
             `[{path}.0]`; to replace it, add `unset = [\"{path}\"]`"
        ),
    }
}

fn not_a_list(span: TextSpan, path: &str) -> ChangeFault {
    ChangeFault {
        span,
        message: format!("expected a list at {path}"),
        label: "this is not a list",
        help: format!("write `[[{path}]]` for a table, or `{path} = [ … ]`"),
    }
}

fn no_element(TableEntry { key, span, .. }: TableEntry, path: &str, count: usize) -> ChangeFault {
    ChangeFault {
        span,
        message: format!("`{key}` is not the number of an element of `{path}`"),
        label: "no such element",
        help: format!("{}; `[[{path}.append]]` adds one", describe_indices(count)),
    }
}
