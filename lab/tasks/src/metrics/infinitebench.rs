//! Metrics of InfiniteBench: the first or last number, a word, a letter, a list of numbers, common
//! characters.

use super::numbers::numbers;
use super::words::{f1_of, is_space, split};

/// Phrases before the answer to a choice, in the order in which the published script tries them.
const BEFORE_LETTER: [&str; 4] = ["answer is:", "answer:", "answer is", "option is"];
const BEFORE_OPTION: [&str; 4] = ["answer is:", "is:", "answer:", "correct option is:"];
/// Punctuation of Chinese texts, besides that of ASCII.
const CHINESE_PUNCTUATION: &str = concat!(
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～",
    "｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏",
);

fn trim(answer: &str) -> &str {
    answer.trim_matches(is_space)
}

/// Returns true if the first run of ASCII digits is the right one.
pub(super) fn first_number(answer: &str, right: &str) -> bool {
    numbers(answer).next().unwrap_or_default() == right
}

/// Returns true if one of the answer's words, separated by white space or punctuation, is the right
/// one.
pub(super) fn has_word(answer: &str, right: &str) -> bool {
    split(&remove_punctuation(answer)).any(|word| word == right)
}

/// Returns true if the answer contains one of the names, ignoring case.
pub(super) fn has_name(answer: &str, names: &[String]) -> bool {
    let answer = trim(answer).to_uppercase();
    names.iter().any(|name| answer.contains(&name.to_uppercase()))
}

/// Replaces punctuation by blanks.
fn remove_punctuation(answer: &str) -> String {
    answer.replace(['\n', ':', '"', '\'', '.', ',', '?', '!', '{', '}'], " ")
}

/// Returns true if the last word is the right whole number.
pub(super) fn last_number(answer: &str, right: &str) -> bool {
    let answer = answer.replace(['\n', '.', '`', '\'', '"', ':'], " ");
    let last = split(&answer).last().and_then(whole);
    last.is_some() && last == whole(right)
}

/// Returns the sign and the digits of a number that Python's `int` accepts.
fn whole(text: &str) -> Option<(bool, String)> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_number = digits
        .split('_')
        .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    let digits = digits.replace('_', "").trim_start_matches('0').to_owned();
    is_number.then(|| (text.starts_with('-') && !digits.is_empty(), digits))
}

/// Returns true if the first number, which may have a fraction, is the right one. If the right
/// answer is a whole number, a number with a fraction is wrong.
pub(super) fn first_value(answer: &str, right: &str) -> bool {
    let mut first = String::new();
    let from = answer.find(|c: char| c.is_ascii_digit()).unwrap_or(answer.len());
    let mut rest = answer[from..].chars().peekable();
    let mut digits = |first: &mut String| {
        while let Some(c) = rest.next_if(char::is_ascii_digit) {
            first.push(c);
        }
        rest.next_if_eq(&'.').is_some()
    };
    if digits(&mut first) {
        let whole = first.len();
        first.push('.');
        digits(&mut first);
        if first.len() == whole + 1 {
            first.pop();
        }
    }
    match whole(right) {
        Some(right) => whole(&first) == Some(right),
        None => first.parse::<f64>().is_ok_and(|first| right.parse() == Ok(first)),
    }
}

/// Share of the right numbers that the answer's numbers begin with.
pub(super) fn leading_numbers(answer: &str, right: &[String]) -> f64 {
    let pairs = numbers(answer).zip(right);
    let same = pairs.take_while(|(found, right)| whole(found) == whole(right)).count();
    same as f64 / right.len().max(1) as f64
}

/// Returns true if the answer is the right letter or option, or names it first.
pub(super) fn choice(answer: &str, right: &[String]) -> bool {
    let is_right = |found: &str| right.iter().any(|right| right == found);
    let answer = trim(answer);
    let Some(first) = answer.chars().next() else { return false };
    if ('A'..='D').contains(&first) {
        return is_right(&answer[..1]);
    }
    if is_right(answer) {
        return true;
    }
    let answer =
        collapse_blanks(&answer.replace(['\n', '"', '\'', '.', ',', '?', '!', '{', '}'], " "));
    if let Some(begins) = follows_phrase(&answer, &BEFORE_LETTER, right) {
        return begins;
    }
    // The published script accepts any part of "ABCD" as a letter.
    split(&answer).find(|word| "ABCD".contains(word)).is_some_and(is_right)
}

/// Returns true if the answer begins with the right letter, or names it or the right option.
pub(super) fn code_choice(answer: &str, right: &[String]) -> bool {
    let answer = trim(answer);
    let letter = right.last().map_or("", String::as_str);
    let begins = answer.strip_prefix(letter).is_some_and(|rest| rest.starts_with(['.', ':']));
    if begins {
        return true;
    }
    let answer = answer.replace(['\n', '`', '\'', '"', '-', '*'], " ");
    let answer = collapse_blanks(&answer.replace("Option", " ").replace("option", " "));
    follows_phrase(&answer, &BEFORE_OPTION, right).unwrap_or(false)
}

/// Replaces runs of blanks by single blanks.
fn collapse_blanks(text: &str) -> String {
    let mut text = text.to_owned();
    while text.contains("  ") {
        text = text.replace("  ", " ");
    }
    text
}

/// Returns whether one of `right` follows the first of these phrases that occurs in the answer,
/// after one more character; `None` if no phrase occurs.
fn follows_phrase(answer: &str, phrases: &[&str], right: &[String]) -> Option<bool> {
    let behind = phrases.iter().find_map(|phrase| Some(answer.split_once(phrase)?.1))?;
    let mut behind = behind.chars();
    let found = behind.next().is_some();
    Some(found && right.iter().any(|right| behind.as_str().starts_with(right.as_str())))
}

/// F1 over characters in lower case, without punctuation and blanks.
pub(super) fn character_f1(answer: &str, right: &str) -> f64 {
    let characters = |text: &str| -> Vec<char> {
        let is_mark = |c: &char| c.is_ascii_punctuation() || CHINESE_PUNCTUATION.contains(*c);
        text.to_lowercase().chars().filter(|c| !is_mark(c) && !is_space(*c)).collect()
    };
    f1_of(&characters(answer), &characters(right))
}
