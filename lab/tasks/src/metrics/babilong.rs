//! Metric of BABILong: one label and no other.

/// Returns 1 if the right label is the only one of `labels` in the answer's first sentence.
/// `labels` must exclude those that occur in the question.
pub(super) fn only_label(answer: &str, right: &str, labels: &[String]) -> f64 {
    let answer = answer.to_lowercase();
    let cut = |text: &'static str| {
        move |answer: &str| answer.split(text).next().unwrap_or_default().to_owned()
    };
    let first = [cut("."), cut("<context>"), cut("<example>")]
        .iter()
        .fold(answer, |answer, cut| cut(&answer));
    let right = right.to_lowercase();
    let mut named =
        labels.iter().map(|label| label.to_lowercase()).filter(|label| first.contains(label));
    f64::from(u8::from(named.next() == Some(right) && named.next().is_none()))
}
