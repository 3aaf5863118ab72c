//! Words and sentences of a small vocabulary file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::draw::SeededDraw;
use crate::error::read;
use crate::prose::filler;
use crate::source::{Hay, WordClass, WordSource};
use crate::templates::{Frame, Templates, holes};
use crate::{Error, Result};

const FORMAT: &str = "vattention-recall/1";
/// Approximate tokens of a needle, and of the text around needles. They determine the number of
/// needles in a haystack of needles, as in training.
const NEEDLE_TOKENS: usize = 13;
const FRAME_TOKENS: usize = 90;
/// Least number of keys, variables and counts: a chain has this many variables, and no question
/// needs more keys.
const LEAST_WORDS: usize = 5;

#[derive(Clone, Debug, Deserialize)]
struct Content {
    format: String,
    classes: BTreeMap<String, Vec<String>>,
    noise: Vec<String>,
    templates: Templates,
    /// Words for 1, 2 and so on.
    counts: Vec<String>,
}

/// Content of a vocabulary file.
#[derive(Clone, Debug)]
pub(crate) struct Vocabulary {
    /// Path of the file.
    pub(crate) path: PathBuf,
    content: Content,
}

impl Vocabulary {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let malformed = |reason| Error::malformed(path, reason);
        let mut content: Content = serde_json::from_str(&read(path)?).map_err(|error| {
            malformed(format!("{error}; expected a vocabulary of format {FORMAT:?}"))
        })?;
        content.check().map_err(malformed)?;
        let Templates { niah, vt } = &mut content.templates;
        for frame in [&mut niah.one, &mut niah.several, &mut vt.frame] {
            separate(frame);
        }
        Ok(Self { path: path.into(), content })
    }

    fn class(&self, class: WordClass) -> &[String] {
        &self.content.classes[self.content.class(class)]
    }
}

/// Adds white space where the parts of a frame meet the text and each other.
fn separate(frame: &mut Frame) {
    frame.introduction.push(' ');
    frame.question.insert(0, '\n');
    frame.answer.insert(0, ' ');
}

impl Content {
    /// Name of a class. Classes of values have the plurals of their kinds as names.
    fn class(&self, class: WordClass) -> &str {
        match class {
            WordClass::Key | WordClass::UuidKey => "keys",
            WordClass::Number => &self.templates.niah.kinds["number"],
            WordClass::Uuid => &self.templates.niah.kinds["uuid"],
            WordClass::Variable | WordClass::ShortVariable => "variables",
            WordClass::Assigned => "assigned",
        }
    }

    /// Checks the content; an error describes the fault, its position, and what was expected.
    fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("format {:?}; expected {FORMAT:?}", self.format));
        }
        for kind in ["number", "uuid"] {
            if !self.templates.niah.kinds.contains_key(kind) {
                return Err(format!("templates.niah.kinds has no {kind:?}; expected one"));
            }
        }
        let values =
            [self.class(WordClass::Number), self.class(WordClass::Uuid), "assigned", "filler"];
        for (name, fewest) in [("keys", LEAST_WORDS), ("variables", LEAST_WORDS)]
            .into_iter()
            .chain(values.map(|name| (name, 1)))
        {
            let words = self.classes.get(name).map_or(&[][..], Vec::as_slice);
            check_words(&format!("classes.{name}"), words, fewest)?;
        }
        check_words("counts", &self.counts, LEAST_WORDS)?;
        if self.noise.iter().all(|sentence| sentence.trim().is_empty()) {
            return Err("noise has no sentence; expected one or more".into());
        }
        self.check_templates()
    }

    fn check_templates(&self) -> Result<(), String> {
        let Templates { niah, vt } = &self.templates;
        let kinds = &["kind", "kinds"][..];
        let question = &["kind", "kinds", "query"][..];
        for (name, frame) in [("one", &niah.one), ("several", &niah.several)] {
            let place = |part| format!("templates.niah.{name}.{part}");
            check_holes(&place("introduction"), &frame.introduction, kinds, &[])?;
            check_holes(&place("question"), &frame.question, question, &["query"])?;
            check_holes(&place("answer"), &frame.answer, question, &[])?;
        }
        let needle = &["kinds", "key", "value"];
        check_holes("templates.niah.needle", &niah.needle, needle, &["key", "value"])?;
        let chain = &["value", "count"];
        check_holes("templates.vt.introduction", &vt.frame.introduction, chain, &[])?;
        check_holes("templates.vt.question", &vt.frame.question, chain, &["value"])?;
        check_holes("templates.vt.answer", &vt.frame.answer, chain, &[])?;
        for (name, template, hole) in
            [("first", &vt.first, "value"), ("next", &vt.next, "previous")]
        {
            let holes = &["variable", hole];
            check_holes(&format!("templates.vt.{name}"), template, holes, holes)?;
        }
        Ok(())
    }
}

fn check_words(place: &str, words: &[String], fewest: usize) -> Result<(), String> {
    let is_word =
        |word: &str| !word.is_empty() && word.chars().all(|c| c == '_' || c.is_alphanumeric());
    if let Some(word) = words.iter().find(|word| !is_word(word)) {
        return Err(format!("{place} has {word:?}; expected letters, digits and _ only"));
    }
    let mut distinct = BTreeSet::new();
    if let Some(word) = words.iter().find(|word| !distinct.insert(*word)) {
        return Err(format!("{place} has {word:?} twice; expected each word once"));
    }
    if words.len() < fewest {
        return Err(format!("{place} has {} words; expected {fewest} or more", words.len()));
    }
    Ok(())
}

fn check_holes(place: &str, template: &str, known: &[&str], needed: &[&str]) -> Result<(), String> {
    if let Some(hole) = holes(template).find(|hole| !known.contains(hole)) {
        return Err(format!("{place} has {{{hole}}}; expected no hole but {}", known.join(", ")));
    }
    match needed.iter().find(|hole| !holes(template).any(|found| found == **hole)) {
        Some(hole) => Err(format!("{place} lacks {{{hole}}}; expected it")),
        None => Ok(()),
    }
}

impl WordSource for Vocabulary {
    fn templates(&self) -> &Templates {
        &self.content.templates
    }

    fn words(&self, class: WordClass, count: usize, draw: &mut SeededDraw) -> Vec<String> {
        draw.sample(count, self.class(class)).into_iter().cloned().collect()
    }

    fn max_words(&self, class: WordClass) -> usize {
        self.class(class).len()
    }

    fn hay(&self, hay: Hay, sentences: usize, draw: &mut SeededDraw) -> Vec<String> {
        match hay {
            Hay::Noise => self.content.noise.iter().cycle().take(sentences).cloned().collect(),
            Hay::Prose | Hay::Needles => {
                let words = &self.content.classes["filler"];
                (0..sentences).map(|_| filler(words, draw)).collect()
            }
        }
    }

    fn separator(&self, _hay: Hay) -> &'static str {
        " "
    }

    fn needle_count(&self, tokens: usize) -> Option<usize> {
        Some((tokens.saturating_sub(FRAME_TOKENS) / NEEDLE_TOKENS).max(1))
    }

    /// A word is a token, and a full stop follows.
    fn answer_tokens(&self, words: usize, _usual: usize) -> usize {
        words + 1
    }

    fn number(&self, number: usize) -> String {
        self.content.counts[number - 1].clone()
    }

    fn has_example(&self) -> bool {
        false
    }
}
