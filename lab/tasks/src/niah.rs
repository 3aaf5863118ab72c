//! Needles in a haystack.

use crate::draw::SeededDraw;
use crate::fit::TokenLimit;
use crate::source::{Hay, WordClass, WordSource};
use crate::templates::fill;
use crate::{Case, Result, Task};

const ANSWER_TOKENS: usize = 128;

/// Parameters of a task: hay, kinds of keys and values, and their numbers.
#[derive(Clone, Copy, Debug)]
struct Needles {
    hay: Hay,
    key: WordClass,
    value: WordClass,
    keys: usize,
    values_each: usize,
    queried: usize,
}

impl Needles {
    fn for_task(task: Task) -> Self {
        use WordClass::{Key, Number, Uuid, UuidKey};
        let single =
            Self { hay: Hay::Prose, key: Key, value: Number, keys: 1, values_each: 1, queried: 1 };
        match task {
            Task::NiahSingle1 => Self { hay: Hay::Noise, ..single },
            Task::NiahSingle3 => Self { value: Uuid, ..single },
            Task::NiahMultikey1 => Self { keys: 4, ..single },
            Task::NiahMultikey2 => Self { hay: Hay::Needles, ..single },
            Task::NiahMultikey3 => Self { hay: Hay::Needles, key: UuidKey, value: Uuid, ..single },
            Task::NiahMultivalue => Self { values_each: 4, ..single },
            Task::NiahMultiquery => Self { keys: 4, queried: 4, ..single },
            _ => single,
        }
    }

    /// Singular of the kind of value that the question asks for.
    fn kind(self) -> &'static str {
        if self.value == WordClass::Uuid { "uuid" } else { "number" }
    }

    /// Builds the text with `hay` sentences of hay.
    fn text(self, source: &dyn WordSource, hay: usize, mut draw: SeededDraw) -> Case {
        let niah = &source.templates().niah;
        let kinds = &niah.kinds[self.kind()];
        // Words have their own streams, so that the positions of needles do not depend on the
        // length of the hay.
        let (mut words, mut hay_words) = (draw.fork(), draw.fork());
        let keys = source.words(self.key, self.keys, &mut words);
        let values = values(source, self.value, keys.len() * self.values_each, &mut words);
        let found: Vec<_> = keys.iter().zip(values.chunks(self.values_each)).collect();
        let needle = |key: &str, value: &str| {
            fill(&niah.needle, &[("kinds", kinds), ("key", key), ("value", value)])
        };
        let sentences =
            found.iter().flat_map(|(key, values)| values.iter().map(|value| needle(key, value)));
        let mut needles: Vec<_> = sentences.collect();
        draw.shuffle(&mut needles);
        // Keys are in random order, so the first ones are a random choice.
        let queried = &found[..self.queried];
        let hay = source.hay(self.hay, hay, &mut hay_words);
        let sentences = draw.merge(needles, hay);

        let answers: Vec<_> =
            queried.iter().flat_map(|(_, values)| values.iter().cloned()).collect();
        let frame = if answers.len() == 1 { &niah.one } else { &niah.several };
        let query: Vec<_> = queried.iter().map(|(key, _)| key.as_str()).collect();
        let query = niah.query_list.join(&query);
        let (introduction, question, beginning) =
            frame.fill(&[("kind", self.kind()), ("kinds", kinds), ("query", &query)]);
        Case {
            context: introduction + &sentences.join(source.separator(self.hay)),
            question,
            beginning,
            tokens: source.answer_tokens(answers.len(), ANSWER_TOKENS),
            answers,
            ..Case::default()
        }
    }
}

/// Draws `count` values, which all differ if the class has enough.
fn values(
    source: &dyn WordSource,
    class: WordClass,
    count: usize,
    draw: &mut SeededDraw,
) -> Vec<String> {
    let mut values = Vec::with_capacity(count);
    while values.len() < count {
        values.extend(source.words(class, count - values.len(), draw));
    }
    values
}

/// Builds the case of one of the eight tasks, filled with sentences or needles.
pub(crate) fn case(
    task: Task,
    source: &dyn WordSource,
    length: TokenLimit,
    draw: &SeededDraw,
) -> Result<Case> {
    let needles = Needles::for_task(task);
    if needles.hay != Hay::Needles {
        return length
            .fill(task.name(), 0..=length.tokens, |hay| needles.text(source, hay, draw.clone()));
    }
    if let Some(keys) = source.needle_count(length.tokens) {
        let needles = Needles { keys, ..needles };
        return length
            .fill(task.name(), 0..=length.tokens, |hay| needles.text(source, hay, draw.clone()));
    }
    let max_keys = length.tokens.clamp(1, source.max_words(needles.key));
    length.fill(task.name(), 1..=max_keys, |keys| {
        Needles { keys, ..needles }.text(source, 0, draw.clone())
    })
}
