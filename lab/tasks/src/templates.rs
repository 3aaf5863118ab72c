//! Sentences with holes, as data.

use std::collections::BTreeMap;

use serde::Deserialize;

/// What is around a haystack.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Frame {
    pub(crate) introduction: String,
    pub(crate) question: String,
    /// The beginning of the answer.
    pub(crate) answer: String,
}

/// The sentences of needles.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Niah {
    /// Where one value is asked for.
    pub(crate) one: Frame,
    /// Where several are.
    pub(crate) several: Frame,
    pub(crate) needle: String,
    /// The plural of each kind of value, by its singular.
    pub(crate) kinds: BTreeMap<String, String>,
    pub(crate) query_list: QueryList,
}

/// What stands between keys that are asked for at once.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct QueryList {
    pub(crate) between: String,
    pub(crate) last: String,
}

/// The sentences of variables.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Vt {
    #[serde(flatten)]
    pub(crate) frame: Frame,
    pub(crate) first: String,
    pub(crate) next: String,
}

/// What a haystack of needles or variables is said with.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Templates {
    pub(crate) niah: Niah,
    pub(crate) vt: Vt,
}

impl Frame {
    /// The introduction, the question with the beginning of the answer, and this by itself.
    pub(crate) fn fill(&self, holes: &[(&str, &str)]) -> (String, String, String) {
        let beginning = fill(&self.answer, holes);
        (fill(&self.introduction, holes), fill(&self.question, holes) + &beginning, beginning)
    }
}

impl QueryList {
    /// "a", "a, and b", "a, b, and c".
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

/// A template with `{name}` replaced by what goes by the name. What is put in is not looked at
/// again, and holes that are not named stay.
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

/// The names of the holes of a template.
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
    fn keys_are_listed_as_one_says_them() {
        let list = QueryList { between: ",".into(), last: ", and".into() };
        assert_eq!(list.join(&["a"]), "a");
        assert_eq!(list.join(&["a", "b"]), "a, and b");
        assert_eq!(list.join(&["a", "b", "c", "d"]), "a, b, c, and d");
    }
}
