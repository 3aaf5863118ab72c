//! Metrics of ZeroSCROLLS: percentages and orders of numbers.

use super::words::{is_space, split};

/// Halves the score by each 10 points between the first percentages of both texts; 0 if the answer
/// has none.
pub(super) fn percentage_similarity(answer: &str, right: &str) -> f64 {
    let (Some(answer), Some(right)) = (percentage(answer), percentage(right)) else { return 0.0 };
    0.5_f64.powf((right - answer).abs() / 10.0)
}

/// First number of a text that is followed by a percent sign.
pub(crate) fn percentage(text: &str) -> Option<f64> {
    let mut pieces = text.split('%').collect::<Vec<_>>();
    pieces.pop();
    pieces.into_iter().find_map(|before| {
        let digits = |text: &str| text.bytes().rev().take_while(u8::is_ascii_digit).count();
        let fraction = digits(before);
        let whole = before[..before.len() - fraction].strip_suffix('.').map_or(0, digits);
        let length = if whole > 0 { whole + 1 + fraction } else { fraction };
        before[before.len() - length..].parse().ok()
    })
}

/// Whole numbers of a text, after removal of all but digits, commas and white space; `None` if a
/// number has too many digits.
pub(crate) fn order(text: &str) -> Option<Vec<usize>> {
    let kept = |c: &char| c.is_ascii_digit() || *c == ',' || is_space(*c);
    let text: String = text.chars().filter(kept).collect();
    split(&text.replace(',', " ")).map(|number| number.parse().ok()).collect()
}

/// Returns true if the numbers are 1 to n in any order, n being at least 2.
pub(crate) fn is_permutation(numbers: &[usize]) -> bool {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    numbers.len() > 1 && sorted.iter().copied().eq(1..=numbers.len())
}

/// Share of the pairs of numbers that the answer has in the right order; 0 if the answer has other
/// numbers. The right numbers are a permutation of 1 to n.
pub(super) fn concordance(answer: &str, right: &str) -> f64 {
    let (Some(answer), Some(right)) = (order(answer), order(right)) else { return 0.0 };
    if !is_permutation(&answer) || answer.len() != right.len() {
        return 0.0;
    }
    let mut places = vec![0; answer.len() + 1];
    for (place, number) in answer.iter().enumerate() {
        places[*number] = place;
    }
    let (mut same, mut pairs) = (0_usize, 0_usize);
    for (place, first) in right.iter().enumerate() {
        for second in &right[place + 1..] {
            same += usize::from(places[*first] < places[*second]);
            pairs += 1;
        }
    }
    same as f64 / pairs as f64
}
