//! BABILong's answers: one label, and no other.

/// 1 if the right label is the only one of `labels` in the answer's first sentence. `labels` are
/// those that the question does not name.
pub(super) fn only_label(answer: &str, right: &str, labels: &[String]) -> f64 {
    let answer = answer.to_lowercase();
    let cut = |text: &'static str| {
        move |answer: &str| answer.split(text).next().unwrap_or_default().to_owned()
    };
    let first = [cut("."), cut("<context>"), cut("<example>")]
        .iter()
        .fold(answer, |answer, cut| cut(&answer));
    let right = right.to_lowercase();
    let mut told =
        labels.iter().map(|label| label.to_lowercase()).filter(|label| first.contains(label));
    f64::from(u8::from(told.next() == Some(right) && told.next().is_none()))
}
