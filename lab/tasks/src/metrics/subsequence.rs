//! Longest common subsequences of words.

/// Text whose word the traceback skips, if skipping either text's word leaves the same length.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tie {
    Right,
    Ours,
}

/// Returns the places in `right` of a longest common subsequence, in descending order; `tie`
/// chooses among several. Cost: O(right · ours).
pub(super) fn places(right: &[String], ours: &[String], tie: Tie) -> Vec<usize> {
    let (rows, columns) = (right.len() + 1, ours.len() + 1);
    let mut lengths = vec![0_u32; rows * columns];
    for i in 1..rows {
        for j in 1..columns {
            lengths[i * columns + j] = if right[i - 1] == ours[j - 1] {
                lengths[(i - 1) * columns + j - 1] + 1
            } else {
                lengths[(i - 1) * columns + j].max(lengths[i * columns + j - 1])
            };
        }
    }
    let (mut i, mut j, mut places) = (right.len(), ours.len(), Vec::new());
    while i > 0 && j > 0 {
        let (without_right, without_ours) =
            (lengths[(i - 1) * columns + j], lengths[i * columns + j - 1]);
        if right[i - 1] == ours[j - 1] {
            places.push(i - 1);
            (i, j) = (i - 1, j - 1);
        } else if without_right > without_ours
            || (without_right == without_ours && tie == Tie::Right)
        {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    places
}
