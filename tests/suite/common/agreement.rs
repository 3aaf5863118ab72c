//! What two backends must agree in, on logits that are exact.

use vattention::{Certificate, Kind, Output, plugin::Assumptions};

/// Reports are equal, but for samples whose sizes follow from statistics: these are within a token of
/// each other, or within 1e-4.
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

/// Certificates are equal, and their bars to within 1e-3. A machine need not tell bars; what then rests on
/// nothing is no kind.
fn compare_certificates(context: &str, ours: Certificate, theirs: Certificate) {
    let Some((bar, other)) = ours.bar.zip(theirs.bar) else {
        let without = |it: Certificate| match it.promise {
            Some(_) => Certificate { bar: None, ..it },
            None => Certificate { bar: None, kind: Kind::None, assumes: Assumptions::NONE, ..it },
        };
        assert_eq!(without(ours), without(theirs), "{context}");
        return;
    };
    let apart = (bar.radius - other.radius).abs();
    let same = bar.radius == other.radius || apart <= 1e-3 * other.radius + 1e-6;
    assert!(same, "{context}");
    assert_eq!(Certificate { bar: Some(other), ..ours }, theirs, "{context}");
}

/// Lists of one length are equal. Of others the certain tokens are, and one sample holds the other.
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
        let held = sample.iter().all(|token| their_sample.binary_search(token).is_ok());
        assert!(held, "{context}: samples are not nested");
    }
}

/// Tokens read for certain, and those drawn. A sample of all that is left is certain too, so none of
/// two that differ is.
fn parts((indices, probabilities): (&[u32], &[f32])) -> (Vec<u32>, Vec<u32>) {
    let is_certain = |&(place, _): &(usize, &u32)| probabilities[place] == 1.0;
    let (certain, sample): (Vec<_>, Vec<_>) = indices.iter().enumerate().partition(is_certain);
    let tokens = |part: Vec<(usize, &u32)>| part.into_iter().map(|(_, &token)| token).collect();
    (tokens(certain), tokens(sample))
}
