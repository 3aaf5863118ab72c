//! Numbers in answers.

/// Runs of ASCII digits.
pub(super) fn numbers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty())
}

/// The share of the answer's numbers that are written as the right one; 0 of none.
pub(super) fn share(answer: &str, right: &str) -> f64 {
    let (all, same) = numbers(answer)
        .fold((0, 0), |(all, same), number| (all + 1, same + i32::from(number == right)));
    f64::from(same) / f64::from(all.max(1))
}

/// The number after the first "Paragraph ", or nothing.
pub(super) fn paragraph(right: &str) -> &str {
    right.split("Paragraph ").skip(1).find_map(first_digits).unwrap_or_default()
}

fn first_digits(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (end > 0).then(|| &text[..end])
}
