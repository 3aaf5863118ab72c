//! Comparisons of the outputs of two backends on exact logits.

use vattention::{Certificate, Kind, Output, plugin::Assumptions};

/// Asserts that reports are equal. Sample sizes that depend on statistics may differ by one token,
/// or by a fraction of 1e-4.
pub(crate) fn compare_reports(context: &str, group: usize, output: &Output, expected: &Output) {
    assert_eq!(output.rows.len(), expected.rows.len(), "{context}");
    for (ours, theirs) in output.rows.iter().zip(&expected.rows) {
        let context = format!("{context}: {ours:?} {theirs:?}");
        assert_eq!(ours.visible, theirs.visible, "{context}");
        assert_eq!(ours.certain, theirs.certain, "{context}");
        assert_eq!(ours.fell_back, theirs.fell_back, "{context}");
        let allowed = (1e-4 * theirs.sampled as f64).max(1.0);
        assert!(ours.sampled.abs_diff(theirs.sampled) as f64 <= allowed, "{context}");
        assert_eq!(ours.budget.is_some(), theirs.budget.is_some(), "{context}");
        let budgets = [ours, theirs].map(|row| row.budget.unwrap_or(0));
        assert!(budgets[0].abs_diff(budgets[1]) as f64 <= allowed, "{context}");
        let union = ours.read_by_group.abs_diff(theirs.read_by_group) as f64;
        assert!(union <= allowed * group as f64, "{context}");
        if ours.sampled == theirs.sampled {
            compare_certificates(&context, ours.certificate, theirs.certificate);
        }
    }
}

/// Asserts that certificates are equal, and error bars equal to within 1e-3. A backend may omit
/// error bars; a certificate without bar and promise then has no kind and no assumptions.
fn compare_certificates(context: &str, ours: Certificate, theirs: Certificate) {
    let Some((bar, other)) = ours.bar.zip(theirs.bar) else {
        let without_bar = |certificate: Certificate| {
            let certificate = Certificate { bar: None, ..certificate };
            match certificate.promise {
                Some(_) => certificate,
                None => Certificate { kind: Kind::None, assumes: Assumptions::NONE, ..certificate },
            }
        };
        assert_eq!(without_bar(ours), without_bar(theirs), "{context}");
        return;
    };
    let apart = (bar.radius - other.radius).abs();
    let same = bar.radius == other.radius || apart <= 1e-3 * other.radius + 1e-6;
    assert!(same, "{context}");
    assert_eq!(Certificate { bar: Some(other), ..ours }, theirs, "{context}");
}

/// Asserts that token lists of the same length are equal. Lists of different lengths must have the
/// same deterministic tokens, and the longer sample must contain the shorter one.
pub(crate) fn compare_picks(context: &str, output: &Output, expected: &Output) {
    let (ours, theirs) = (output.selection.as_ref().unwrap(), expected.selection.as_ref().unwrap());
    assert_eq!(ours.rows(), theirs.rows(), "{context}");
    for row in 0..ours.rows() {
        let context = format!("{context}, row {row}");
        let (mut shorter, mut longer) = (ours.row(row), theirs.row(row));
        if shorter.0.len() == longer.0.len() {
            assert!(shorter == longer, "{context}: picks differ");
            continue;
        }
        if shorter.0.len() > longer.0.len() {
            std::mem::swap(&mut shorter, &mut longer);
        }
        let ((certain, sample), (their_certain, their_sample)) = (parts(shorter), parts(longer));
        assert!(certain == their_certain, "{context}: certain picks differ");
        let nested = sample.iter().all(|token| their_sample.binary_search(token).is_ok());
        assert!(nested, "{context}: samples are not nested");
    }
}

/// Deterministic tokens and drawn tokens. A sample that contains all remaining tokens counts as
/// deterministic; this cannot be the case for samples of different lengths.
fn parts((indices, probabilities): (&[u32], &[f32])) -> (Vec<u32>, Vec<u32>) {
    let is_certain = |&(place, _): &(usize, &u32)| probabilities[place] == 1.0;
    let (certain, sample): (Vec<_>, Vec<_>) = indices.iter().enumerate().partition(is_certain);
    let tokens = |part: Vec<(usize, &u32)>| part.into_iter().map(|(_, &token)| token).collect();
    (tokens(certain), tokens(sample))
}
