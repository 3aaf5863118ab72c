//! Words in the style of RULER: adjective-noun keys, numbers, UUIDs.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::draw::SeededDraw;
use crate::prose::{Prose, filler};
use crate::source::{Hay, WordClass, WordSource};
use crate::templates::{Frame, Templates};

/// RULER's sentences of all tasks.
#[derive(Debug, Deserialize)]
pub(crate) struct Sentences {
    #[serde(flatten)]
    haystacks: Templates,
    pub(crate) cwe: Frame,
    pub(crate) fwe: Frame,
    pub(crate) qa: Frame,
    noise: String,
}

pub(crate) static SENTENCES: LazyLock<Sentences> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../words/templates.json")).expect("the file has them all")
});
static ADJECTIVES: LazyLock<Vec<String>> =
    LazyLock::new(|| list(include_str!("../words/adjectives.txt")));
static NOUNS: LazyLock<Vec<String>> = LazyLock::new(|| list(include_str!("../words/nouns.txt")));
static VERBS: LazyLock<Vec<String>> = LazyLock::new(|| list(include_str!("../words/verbs.txt")));
/// All words; no two lists share a word.
static ALL: LazyLock<Vec<String>> = LazyLock::new(|| {
    [&ADJECTIVES, &NOUNS, &VERBS].into_iter().flat_map(|list| list.iter().cloned()).collect()
});

fn list(lines: &str) -> Vec<String> {
    lines.lines().map(str::to_owned).collect()
}

/// Draws `count` different words in random order: single words, and pairs if there are too few.
pub(crate) fn different(count: usize, draw: &mut SeededDraw) -> Vec<String> {
    let mut words: Vec<String> = draw.sample(count, &ALL).into_iter().cloned().collect();
    words.extend(draw.different(count - words.len(), pair));
    draw.shuffle(&mut words);
    words
}

/// Draws an adjective and a noun.
fn pair(draw: &mut SeededDraw) -> String {
    format!("{}-{}", draw.choose(&ADJECTIVES), draw.choose(&NOUNS))
}

/// Draws a number of `count` digits, whose first digit is not 0.
fn digits(count: u32, draw: &mut SeededDraw) -> String {
    let least = 10_usize.pow(count - 1);
    (least + draw.below(9 * least)).to_string()
}

/// Draws a word of random letters of the alphabet that begins at `first`.
pub(crate) fn letters(count: usize, first: u8, draw: &mut SeededDraw) -> String {
    (0..count).map(|_| char::from(first + draw.below(26) as u8)).collect()
}

/// Draws a random UUID (version 4, variant 1).
fn uuid(draw: &mut SeededDraw) -> String {
    let bits = draw.bits() & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

fn capitalised(mut sentence: String) -> String {
    sentence[..1].make_ascii_uppercase();
    sentence
}

/// Words in the style of RULER.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ruler {
    /// Haystack of prose; `None` means random words.
    pub(crate) prose: Option<Prose>,
}

impl WordSource for Ruler {
    fn templates(&self) -> &Templates {
        &SENTENCES.haystacks
    }

    fn words(&self, class: WordClass, count: usize, draw: &mut SeededDraw) -> Vec<String> {
        let make: fn(&mut SeededDraw) -> String = match class {
            WordClass::Key => pair,
            WordClass::UuidKey | WordClass::Uuid => uuid,
            WordClass::Number => |draw| digits(7, draw),
            WordClass::Variable => |draw| letters(5, b'A', draw),
            WordClass::ShortVariable => |draw| letters(3, b'A', draw),
            WordClass::Assigned => |draw| digits(5, draw),
        };
        draw.different(count, make)
    }

    fn max_words(&self, class: WordClass) -> usize {
        match class {
            // Half of the pairs, so that drawing different ones ends.
            WordClass::Key => ADJECTIVES.len() * NOUNS.len() / 2,
            _ => usize::MAX,
        }
    }

    fn hay(&self, hay: Hay, sentences: usize, draw: &mut SeededDraw) -> Vec<String> {
        match (hay, &self.prose) {
            (Hay::Noise, _) => vec![SENTENCES.noise.clone(); sentences],
            (_, Some(prose)) => prose.first(sentences),
            (_, None) => (0..sentences).map(|_| capitalised(filler(&ALL, draw))).collect(),
        }
    }

    fn separator(&self, hay: Hay) -> &'static str {
        match hay {
            Hay::Prose => " ",
            Hay::Noise | Hay::Needles => "\n",
        }
    }

    fn needle_count(&self, _tokens: usize) -> Option<usize> {
        None
    }

    fn answer_tokens(&self, _words: usize, usual: usize) -> usize {
        usual
    }

    fn number(&self, number: usize) -> String {
        number.to_string()
    }

    fn has_example(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Task;

    #[test]
    fn lists_contain_different_plain_words() {
        assert!(ADJECTIVES.len() >= 150 && NOUNS.len() >= 300);
        assert!(
            ALL.iter().all(|word| word.bytes().all(|b| b.is_ascii_lowercase()) && word.len() > 1)
        );
        assert_eq!(ALL.iter().collect::<BTreeSet<_>>().len(), ALL.len());
    }

    #[test]
    fn uuids_are_of_version_4() {
        let mut draw = SeededDraw::new(Task::NiahSingle3, 0, 0);
        for _ in 0..100 {
            let uuid = uuid(&mut draw);
            let lengths: Vec<_> = uuid.split('-').map(str::len).collect();
            assert_eq!(lengths, [8, 4, 4, 4, 12]);
            assert_eq!(uuid.as_bytes()[14], b'4');
            assert!(b"89ab".contains(&uuid.as_bytes()[19]));
            assert!(
                uuid.bytes().all(|b| b == b'-' || b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
            );
        }
    }

    #[test]
    fn numbers_use_their_whole_range() {
        let mut draw = SeededDraw::new(Task::NiahSingle1, 0, 0);
        let numbers = draw.different(90, |draw| digits(2, draw));
        assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), 90, "10 to 99, and no other");
        assert!(numbers.iter().all(|number| number.len() == 2));
    }

    #[test]
    fn pairs_follow_when_single_words_run_out() {
        let mut draw = SeededDraw::new(Task::Cwe, 0, 0);
        let pairs = |words: &[String]| words.iter().filter(|word| word.contains('-')).count();
        assert_eq!(pairs(&different(ALL.len(), &mut draw)), 0);
        let more = different(ALL.len() + 500, &mut draw);
        assert_eq!(pairs(&more), 500);
        assert_eq!(more.iter().collect::<BTreeSet<_>>().len(), more.len());
        assert!(pairs(&more[..100]) < 60, "shuffled");
    }
}
