//! Templates: sentences with holes, stored as data.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Text around a haystack.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Frame {
    pub(crate) introduction: String,
    pub(crate) question: String,
    /// Beginning of the answer.
    pub(crate) answer: String,
}

/// Sentences of needles.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Niah {
    /// Frame if the question asks for one value.
    pub(crate) one: Frame,
    /// Frame if the question asks for several values.
    pub(crate) several: Frame,
    pub(crate) needle: String,
    /// Plural of each kind of value, by its singular.
    pub(crate) kinds: BTreeMap<String, String>,
    pub(crate) query_list: QueryList,
}

/// Separators between keys that one question asks for.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct QueryList {
    pub(crate) between: String,
    pub(crate) last: String,
}

/// Sentences of variables.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Vt {
    #[serde(flatten)]
    pub(crate) frame: Frame,
    pub(crate) first: String,
    pub(crate) next: String,
}

/// Sentences of haystacks of needles and variables.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Templates {
    pub(crate) niah: Niah,
    pub(crate) vt: Vt,
}

impl Frame {
    /// Fills the templates; returns the introduction, the question including the beginning of the
    /// answer, and this beginning alone.
    pub(crate) fn fill(&self, holes: &[(&str, &str)]) -> (String, String, String) {
        let beginning = fill(&self.answer, holes);
        (fill(&self.introduction, holes), fill(&self.question, holes) + &beginning, beginning)
    }
}

impl QueryList {
    /// Joins keys: "a", "a, and b", "a, b, and c".
    pub(crate) fn join(&self, keys: &[&str]) -> String {
        let mut list = String::new();
        for (i, key) in keys.iter().enumerate() {
            let before = if i + 1 == keys.len() { &self.last } else { &self.between };
            if i > 0 {
                list = list + before + " ";
            }
            list += key;
        }
        list
    }
}

/// Replaces each `{name}` in a template by the text of that name. Replaced text is not searched for
/// holes, and holes without a text remain.
pub(crate) fn fill(template: &str, holes: &[(&str, &str)]) -> String {
    let mut filled = String::with_capacity(template.len() + 16);
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        filled += before;
        let hole = after.split_once('}').and_then(|(name, after)| {
            let (_, text) = holes.iter().find(|(hole, _)| *hole == name)?;
            Some((text, after))
        });
        rest = if let Some((text, after)) = hole {
            filled += text;
            after
        } else {
            filled.push('{');
            after
        };
    }
    filled + rest
}

/// Returns the names of the holes of a template.
pub(crate) fn holes(template: &str) -> impl Iterator<Item = &str> {
    template.split('{').skip(1).filter_map(|hole| Some(hole.split_once('}')?.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_filled_once() {
        assert_eq!(fill("{a} and {b}{a}.", &[("a", "{b}"), ("b", "2")]), "{b} and 2{b}.");
        assert_eq!(fill("{c} {a", &[("a", "1")]), "{c} {a");
        assert_eq!(fill("", &[("a", "1")]), "");
        assert_eq!(holes("{a} and {b}{a}.").collect::<Vec<_>>(), ["a", "b", "a"]);
    }

    #[test]
    fn keys_are_joined_as_in_english() {
        let list = QueryList { between: ",".into(), last: ", and".into() };
        assert_eq!(list.join(&["a"]), "a");
        assert_eq!(list.join(&["a", "b"]), "a, and b");
        assert_eq!(list.join(&["a", "b", "c", "d"]), "a, b, c, and d");
    }
}
