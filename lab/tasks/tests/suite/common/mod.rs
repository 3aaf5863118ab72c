//! Solver that finds the answers in a text, knowing only the sentences.

use std::collections::{BTreeMap, BTreeSet};

use vattention_tasks::{Case, Task};

/// Tasks whose texts need no file.
pub(crate) const SYNTHETIC: [Task; 11] = [
    Task::NiahSingle1,
    Task::NiahSingle2,
    Task::NiahSingle3,
    Task::NiahMultikey1,
    Task::NiahMultikey2,
    Task::NiahMultikey3,
    Task::NiahMultivalue,
    Task::NiahMultiquery,
    Task::Vt,
    Task::Cwe,
    Task::Fwe,
];

/// Splits a text into the tokens of a word-level tokenizer: runs of letters, digits and `_`, and
/// runs of other marks.
pub(crate) fn words(text: &str) -> Vec<&str> {
    let class = |c: char| {
        if c.is_whitespace() { 0 } else { 1 + i32::from(c == '_' || c.is_alphanumeric()) }
    };
    let mut words = Vec::new();
    let mut start = 0;
    let mut before = 0;
    for (place, c) in text.char_indices().chain([(text.len(), ' ')]) {
        if class(c) != before {
            if before != 0 {
                words.push(&text[start..place]);
            }
            (start, before) = (place, class(c));
        }
    }
    words
}

pub(crate) fn count(text: &str) -> usize {
    words(text).len()
}

/// Number of tokens that a case takes, including its answer.
pub(crate) fn taken(case: &Case, count: impl Fn(&str) -> usize) -> usize {
    count(&case.context) + count(&case.question) + case.tokens
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    text.split_once(before).unwrap().1.split_once(after).unwrap().0
}

/// Returns all needles in the order of the text: key, value and place.
pub(crate) fn needles(context: &str) -> Vec<(&str, &str, usize)> {
    let mut found = Vec::new();
    for (place, _) in context.match_indices("One of the special magic ") {
        let key = between(&context[place..], " for ", " is: ");
        let value = between(&context[place..], " is: ", ".");
        found.push((key, value, place));
    }
    found
}

/// Solves a case from its text alone.
pub(crate) fn solve(task: Task, case: &Case) -> Vec<String> {
    match task {
        Task::Vt => chain(case),
        Task::Cwe => common(case),
        Task::Fwe => frequent(case),
        _ => values(case),
    }
}

/// Keys that a question asks for.
pub(crate) fn queried_keys(case: &Case) -> Vec<&str> {
    let list = between(&case.question, " for ", " mentioned in the provided text?");
    list.split(", ").map(|key| key.trim_start_matches("and ")).collect()
}

fn values(case: &Case) -> Vec<String> {
    let mut values_by_key = BTreeMap::<_, Vec<_>>::new();
    for (key, value, _) in needles(&case.context) {
        values_by_key.entry(key).or_default().push(value.to_owned());
    }
    queried_keys(case).iter().flat_map(|key| values_by_key[key].clone()).collect()
}

fn chain(case: &Case) -> Vec<String> {
    let value = between(&case.question, "assigned the value ", " in the text above");
    let text = case.context.rsplit_once("Memorize and track ").unwrap().1;
    let mut words = text.split_whitespace().map(|word| word.trim_end_matches('.'));
    let (mut assigned, mut order) = (BTreeMap::<_, Vec<_>>::new(), Vec::new());
    while let Some(word) = words.next() {
        if word == "VAR" {
            let variable = words.next().unwrap();
            assert_eq!(words.next(), Some("="));
            let right = words.next().unwrap();
            let right = if right == "VAR" { words.next().unwrap() } else { right };
            assigned.entry(right).or_default().push(variable.to_owned());
            order.push(variable);
        }
    }
    let (mut chain, mut next) = (Vec::new(), value.to_owned());
    while let Some(variables) = assigned.get(next.as_str()) {
        assert_eq!(variables.len(), 1, "one chain");
        chain.push(variables[0].clone());
        next.clone_from(&variables[0]);
    }
    assert_eq!(order, chain, "in this order, and nothing else is assigned");
    chain
}

/// Number of occurrences of each word.
pub(crate) fn count_words<'a>(words: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, usize> {
    let mut counts = BTreeMap::new();
    words.for_each(|word| *counts.entry(word).or_default() += 1);
    counts
}

/// Returns the most frequent words; checks that they are more frequent than all others.
fn top(counts: &BTreeMap<&str, usize>, count: usize) -> Vec<String> {
    let mut ranked: Vec<_> =
        counts.iter().map(|(word, times)| (*times, (*word).to_owned())).collect();
    ranked.sort_unstable_by(|a, b| b.cmp(a));
    assert!(ranked.len() == count || ranked[count - 1].0 > ranked[count].0, "{ranked:?}");
    ranked.into_iter().take(count).map(|(_, word)| word).collect()
}

/// Parses the words of a numbered list, and checks the numbers.
pub(crate) fn parse_list(list: &str) -> Vec<&str> {
    let mut words = Vec::new();
    for (i, pair) in list.split(' ').collect::<Vec<_>>().chunks(2).enumerate() {
        assert_eq!(pair[0], format!("{}.", i + 1));
        words.push(pair[1]);
    }
    words
}

fn common(case: &Case) -> Vec<String> {
    let list = case.context.rsplit_once("appear most often.\n").unwrap().1;
    top(&count_words(parse_list(list).into_iter()), 10)
}

fn frequent(case: &Case) -> Vec<String> {
    let text = case.context.rsplit_once("coded words. ").unwrap().1;
    let mut counts = count_words(text.split(' '));
    assert_eq!(top(&counts, 1), ["..."]);
    counts.remove("...");
    top(&counts, 3)
}

pub(crate) fn set<T: Ord>(items: impl IntoIterator<Item = T>) -> BTreeSet<T> {
    items.into_iter().collect()
}

/// FNV-1a hash of context, question and answers.
pub(crate) fn hash(case: &Case) -> u64 {
    let text = [&case.context, "\0", &case.question, "\0", &case.answers.join("\0")].concat();
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Checks that the solver finds the right answers, in the required order.
pub(crate) fn assert_right(task: Task, case: &Case) {
    let solved = solve(task, case);
    if matches!(task, Task::NiahMultivalue | Task::Cwe | Task::Fwe) {
        assert_eq!(set(&solved), set(&case.answers), "{task}");
    } else {
        assert_eq!(solved, case.answers, "{task}");
    }
    assert_eq!(set(&solved).len(), solved.len(), "{task}: no answer twice");
    assert_eq!(task.score(case, &solved.join(", ")), 1.0, "{task}");
    assert_eq!(task.score(case, "?"), 0.0, "{task}");
}
