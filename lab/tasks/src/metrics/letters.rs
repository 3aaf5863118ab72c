//! Metrics of multiple choices: the letter that an answer names.

/// Sentence that LongBench v2's prompt requests.
const STATEMENT: &str = "The correct answer is ";

fn is_letter(c: char) -> bool {
    ('A'..='D').contains(&c)
}

/// Returns true if the answer states the right letter. A letter in brackets takes precedence, and
/// asterisks are ignored.
pub(super) fn states(answer: &str, right: &str) -> bool {
    let answer = answer.replace('*', "");
    let after_statement = || answer.split(STATEMENT).skip(1);
    let in_brackets = |text: &str| {
        let (inside, _) = text.strip_prefix('(')?.split_once(')')?;
        inside.parse().ok().filter(|letter| is_letter(*letter))
    };
    let bare = |text: &str| text.chars().next().filter(|letter| is_letter(*letter));
    let found =
        after_statement().find_map(in_brackets).or_else(|| after_statement().find_map(bare));
    found.is_some_and(|letter| right.parse() == Ok(letter))
}

/// First word of a text that is a letter of A to D.
pub(crate) fn first(text: &str) -> Option<&str> {
    let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.find(|word| matches!(*word, "A" | "B" | "C" | "D"))
}

/// Returns true if both texts have the same first letter of A to D.
pub(super) fn same_first(answer: &str, right: &str) -> bool {
    first(answer).is_some_and(|letter| first(right) == Some(letter))
}
