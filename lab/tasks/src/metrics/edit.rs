//! Similarity of two lines: `fuzz.ratio` of fuzzywuzzy without python-Levenshtein, which is the
//! ratio of Python's difflib in whole percent.

use std::collections::HashMap;

/// Length from which blocks do not begin with frequent characters, those that make up more than a
/// hundredth of the text.
const POPULAR: usize = 200;

/// Similarity of the answer's first line without `` ` ``, `#` and `//` to the right line; of the
/// empty line if there is none.
pub(super) fn line_similarity(answer: &str, right: &str) -> f64 {
    let is_code = |line: &&str| !line.contains(['`', '#']) && !line.contains("//");
    let line = answer.trim_start_matches('\n').split('\n').find(is_code).unwrap_or_default();
    ratio(line, right)
}

fn ratio(a: &str, b: &str) -> f64 {
    if a == b {
        return 1.0;
    }
    if a.is_empty() || b.is_empty() {
        return 0.0;
    }
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut places = HashMap::<char, Vec<usize>>::new();
    for (place, c) in b.iter().enumerate() {
        places.entry(*c).or_default().push(place);
    }
    if b.len() >= POPULAR {
        places.retain(|_, places| places.len() <= b.len() / 100 + 1);
    }
    let matched = count_matched(&a, &b, &places);
    let ratio = 2.0 * matched as f64 / (a.len() + b.len()) as f64;
    (100.0 * ratio).round_ties_even() / 100.0
}

/// Number of characters in matching blocks: the longest block, and recursively the blocks on either
/// side.
fn count_matched(a: &[char], b: &[char], places: &HashMap<char, Vec<usize>>) -> usize {
    let (mut waiting, mut sum) = (vec![(0, a.len(), 0, b.len())], 0);
    while let Some((from_a, to_a, from_b, to_b)) = waiting.pop() {
        let (i, j, size) = find_longest(a, b, places, (from_a, to_a, from_b, to_b));
        if size > 0 {
            sum += size;
            waiting.push((from_a, i, from_b, j));
            waiting.push((i + size, to_a, j + size, to_b));
        }
    }
    sum
}

/// Returns the first longest block of indexed characters, extended by any equal characters.
fn find_longest(
    a: &[char],
    b: &[char],
    places: &HashMap<char, Vec<usize>>,
    (from_a, to_a, from_b, to_b): (usize, usize, usize, usize),
) -> (usize, usize, usize) {
    let (mut i, mut j, mut size) = (from_a, from_b, 0);
    // Lengths of the blocks that end at each place of `b` and at the previous character of `a`.
    let mut before = HashMap::new();
    for (at, c) in (from_a..to_a).zip(&a[from_a..to_a]) {
        let mut now = HashMap::new();
        for &place in places.get(c).into_iter().flatten() {
            if place < from_b {
                continue;
            }
            if place >= to_b {
                break;
            }
            let long = place.checked_sub(1).and_then(|last| before.get(&last)).unwrap_or(&0) + 1;
            now.insert(place, long);
            if long > size {
                (i, j, size) = (at + 1 - long, place + 1 - long, long);
            }
        }
        before = now;
    }
    while i > from_a && j > from_b && a[i - 1] == b[j - 1] {
        (i, j, size) = (i - 1, j - 1, size + 1);
    }
    while i + size < to_a && j + size < to_b && a[i + size] == b[j + size] {
        size += 1;
    }
    (i, j, size)
}
