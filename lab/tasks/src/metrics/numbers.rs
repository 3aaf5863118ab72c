//! Numbers in answers.

/// Returns the runs of ASCII digits.
pub(super) fn numbers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty())
}

/// Share of the answer's numbers that are written like the right one; 0 if there are no numbers.
pub(super) fn share(answer: &str, right: &str) -> f64 {
    let (all, same) = numbers(answer)
        .fold((0, 0), |(all, same), number| (all + 1, same + i32::from(number == right)));
    f64::from(same) / f64::from(all.max(1))
}

/// Number after the first "Paragraph " with a number, or an empty text.
pub(super) fn paragraph(right: &str) -> &str {
    right.split("Paragraph ").skip(1).find_map(first_digits).unwrap_or_default()
}

fn first_digits(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (end > 0).then(|| &text[..end])
}
