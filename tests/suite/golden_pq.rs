//! Product quantisation compared with codes, scores and picks of the reference implementation
//! (`tests/golden/reference`), with its centroids.
//!
//! The peer assigns codes before the last update of its centroids, so a few codes are not those of
//! the nearest centroid. Its scores and picks follow from its codes.

use crate::common::peer::Case;
use ndarray::{Array3, Array5, ArrayView1, Axis, Ix5, s};
use vattention::plugin::Picks;
use vattention::selectors::{Codebook, PartCodes};

/// Number of first tokens, and of last ones, that are picked without codes.
const CERTAIN: usize = 16;

/// Builds codebooks `[kv_heads][parts]` from a composition's centroids
/// `[kv_heads, parts, centroids, numbers]`. `phi` returns the squared norm to which keys are
/// extended in a part of a KV head, if they are extended.
fn codebooks(
    case: &Case,
    label: &str,
    phi: impl Fn(usize, usize) -> Option<f64>,
) -> Vec<Vec<Codebook>> {
    let centroids: Array5<f32> =
        case.tensor(&format!("{label}/centroids")).into_dimensionality::<Ix5>().unwrap();
    let head_codebooks = |head: usize| {
        let parts = centroids.index_axis(Axis(0), 0).index_axis_move(Axis(0), head);
        let book = |(part, centroids)| Codebook::new(centroids, phi(head, part));
        parts.outer_iter().enumerate().map(book).collect()
    };
    (0..centroids.dim().1).map(head_codebooks).collect()
}

fn parts<'a>(
    vector: &'a [f32],
    codebooks: &'a [Codebook],
) -> impl Iterator<Item = (&'a Codebook, &'a [f32])> {
    codebooks.iter().zip(vector.chunks_exact(vector.len() / codebooks.len()))
}

/// Scores of all tokens by the peer's codes. Tokens without codes get code 0.
fn scores(case: &Case, label: &str) -> Array3<f32> {
    let books = codebooks(case, label, |_, _| None);
    let (codes, queries) = (case.composition_tensor(label, "codes"), case.input("queries"));
    let tokens = case.input("keys").dim().1;
    let (heads, count, _) = queries.dim();
    let mut scores = Array3::zeros((heads, count, tokens));
    for head in 0..heads {
        let kv_head = head / case.shape().group();
        let mut part_codes = PartCodes::new(books[kv_head].len());
        (0..CERTAIN).for_each(|_| part_codes.push(vec![0; books[kv_head].len()]));
        for token in codes.slice(s![0, .., kv_head, ..]).rows() {
            part_codes.push(token.iter().map(|&code| code as u8));
        }
        for t in 0..count {
            let query = queries.slice(s![head, t, ..]).to_vec();
            let tables: Vec<_> = parts(&query, &books[kv_head]).map(|(b, q)| b.table(q)).collect();
            let mut row = scores.slice_mut(s![head, t, ..]);
            part_codes.add_scores(&tables, row.as_slice_mut().unwrap());
        }
    }
    scores
}

/// The first tokens, those that end at `position`, and the best `k` of the others.
fn picks(scores: ArrayView1<'_, f32>, position: usize, k: usize) -> Picks {
    let mut picks = Picks::new(scores.len());
    picks.take_range(0..CERTAIN);
    picks.take_range(position + 1 - CERTAIN..position + 1);
    picks.take_top(k, &scores.to_vec());
    picks
}

#[test]
fn scores_and_picks_follow_from_the_peers_codes() {
    for case in ["a_causal", "a_nomask"] {
        let case = Case::load(case);
        for label in ["pq_euclidean", "pq_ip"] {
            let [theirs, threshold, mask] =
                ["scores", "threshold", "mask"].map(|name| case.composition_tensor(label, name));
            let ours = scores(&case, label);
            let (heads, count, tokens) = ours.dim();
            for head in 0..heads {
                for t in 0..count {
                    let (scores, theirs) =
                        (ours.slice(s![head, t, ..]), theirs.slice(s![0, head, t, ..]));
                    let size = theirs.iter().fold(0.0_f32, |a, x| a.max(x.abs()));
                    for (score, expected) in scores.iter().skip(CERTAIN).zip(theirs) {
                        assert!((score - expected).abs() <= 1e-5 * size, "{label}: {head}, {t}");
                    }
                    let taken = mask.slice(s![0, head, t, ..]);
                    let k = taken.sum() as usize - 2 * CERTAIN;
                    let picks = picks(scores, tokens - count + t, k);
                    assert_eq!(picks.len(), 2 * CERTAIN + k);
                    // The peer picks the same tokens among those that do not tie.
                    let cut = threshold[[0, head, t, 0]];
                    for token in 0..tokens {
                        let ties =
                            token >= CERTAIN && (theirs[token - CERTAIN] - cut).abs() < 1e-5 * size;
                        let same = picks.contains(token) == (taken[token] > 0.0);
                        assert!(ties || same, "{label}: {head}, {t}, {token}");
                    }
                }
            }
        }
    }
}

/// Number of codes of a range of tokens that equal the peer's, and number of all codes.
fn equal_codes(
    case: &Case,
    label: &str,
    tokens: std::ops::Range<usize>,
    books: &[Vec<Codebook>],
) -> (usize, usize) {
    let (codes, keys) = (case.composition_tensor(label, "codes"), case.input("keys"));
    let (mut equal, mut all) = (0, 0);
    for (kv_head, books) in books.iter().enumerate() {
        for token in tokens.clone() {
            let key = keys.slice(s![kv_head, token, ..]).to_vec();
            for (part, (book, numbers)) in parts(&key, books).enumerate() {
                let theirs = codes[[0, token - CERTAIN, kv_head, part]];
                equal += usize::from(f32::from(book.encode(numbers)) == theirs);
                all += 1;
            }
        }
    }
    (equal, all)
}

/// Largest squared norm of each of `parts` parts of the keys of a range of tokens.
fn largest_squared_norm(
    case: &Case,
    tokens: std::ops::Range<usize>,
    parts: usize,
) -> impl Fn(usize, usize) -> Option<f64> {
    let keys = case.input("keys");
    move |kv_head, part| {
        let dim = keys.dim().2 / parts;
        let columns = part * dim..(part + 1) * dim;
        let keys = keys.slice(s![kv_head, tokens.clone(), columns]);
        let norm = |row: ArrayView1<'_, f32>| row.iter().map(|&x| f64::from(x).powi(2)).sum();
        Some(keys.rows().into_iter().map(norm).fold(0.0, f64::max))
    }
}

/// Asserts that at most one code in fifty differs. The nearest centroid of these keys changed with
/// the last update of the peer's centroids.
fn assert_nearly_all((equal, all): (usize, usize)) {
    assert!(all - equal <= all / 50, "{equal} of {all}");
}

#[test]
fn codes_are_those_of_the_nearest_centroids() {
    let case = Case::load("a_causal");
    let clustered = CERTAIN..case.input("keys").dim().1;
    let books = codebooks(&case, "pq_euclidean", |_, _| None);
    assert_nearly_all(equal_codes(&case, "pq_euclidean", clustered.clone(), &books));
    let phi = largest_squared_norm(&case, clustered.clone(), 4);
    for (i, expected) in case.tensor("pq_ip/phi").iter().enumerate() {
        assert!((phi(i / 4, i % 4).unwrap() as f32 / expected - 1.0).abs() < 1e-6);
    }
    let books = codebooks(&case, "pq_ip", phi);
    assert_nearly_all(equal_codes(&case, "pq_ip", clustered, &books));
}

/// Codes of later keys are those of the nearest centroids too. But the peer extends only the keys
/// that it clusters to one norm, and appends 0 to later keys, as to queries. So most of the later
/// keys get other codes than ours, which extends all keys.
#[test]
fn the_peer_does_not_extend_later_keys() {
    let case = Case::load("a_causal");
    let tokens = case.input("keys").dim().1;
    let (clustered, later) = (CERTAIN..tokens - 24, tokens - 24..tokens);
    let label = "pq_incremental_euclidean";
    let books = codebooks(&case, label, |_, _| None);
    assert_nearly_all(equal_codes(&case, label, clustered.clone(), &books));
    assert_eq!(equal_codes(&case, label, later.clone(), &books), (96, 96));
    let label = "pq_incremental_ip";
    let extended = codebooks(&case, label, largest_squared_norm(&case, clustered.clone(), 2));
    assert_nearly_all(equal_codes(&case, label, clustered, &extended));
    let with_zero = codebooks(&case, label, |_, _| Some(0.0));
    assert_eq!(equal_codes(&case, label, later.clone(), &with_zero), (96, 96));
    assert_eq!(equal_codes(&case, label, later, &extended), (28, 96));
}
