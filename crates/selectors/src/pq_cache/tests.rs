//! Laws of selectors, invariants of codes and centroids, and configs that are refused.

use proptest::prelude::*;
use vattention_core::{Shape, SoftmaxForm, Step, Tokens};
use vattention_testkit::{Head, Texture, heads};

use super::*;
use crate::OracleTopK;
use crate::test_picks::pick;

fn config(bits: u64, fit: u32, metric: Metric, score: Score) -> PqCache {
    PqCache {
        size: Size::Tokens(7),
        parts: default_parts(),
        bits: PartBits::try_from(bits).unwrap(),
        fit: NonZeroU32::new(fit).unwrap(),
        skip: 0,
        iterations: 10,
        metric,
        score,
    }
}

/// Config that clusters early enough for the heads of the laws.
fn early(metric: Metric, score: Score) -> PqCache {
    PqCache { skip: 3, ..config(3, 30, metric, score) }
}

vattention_testkit::laws!(euclidean, early(Metric::Euclidean, Score::Head));
vattention_testkit::laws!(inner_product, early(Metric::InnerProduct, Score::Head));
vattention_testkit::laws!(by_group, early(Metric::Euclidean, Score::Group));
vattention_testkit::laws!(never_clustered, config(6, 1024, Metric::Euclidean, Score::Head));

const METRICS: [Metric; 2] = [Metric::Euclidean, Metric::InnerProduct];

/// Returns a selector with all of a head's keys.
fn build_filled(config: &PqCache, head: &Head) -> PqCacheSelector {
    let mut selector = config.build_selector(head.site()).unwrap();
    selector.append(&head.part(0..head.tokens));
    selector
}

fn expect_codes(selector: &PqCacheSelector) -> (&[Codebook], &PartCodes) {
    match &selector.index {
        PqIndex::Codes(codebooks, codes) => (codebooks, codes),
        PqIndex::Keys(_) => panic!("expected codes, found keys"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn scores_are_products_with_decoded_keys(
        head in heads(99), bits in 1_u64..=8, parts in 1_u16..=2,
    ) {
        for metric in METRICS {
            let config = PqCache {
                parts: NonZeroU16::new(parts).unwrap(),
                ..config(bits, head.tokens as u32, metric, Score::Head)
            };
            let selector = build_filled(&config, &head);
            let (codebooks, codes) = expect_codes(&selector);
            let row = head.step(head.tokens).row(1);
            let mut key = vec![0.0; head.dim];
            for (token, &score) in selector.logits(&row).iter().enumerate() {
                let parts = key.chunks_exact_mut(head.dim / codebooks.len()).zip(codebooks);
                for (part, (out, codebook)) in parts.enumerate() {
                    codebook.decode(codes.get(token, part), out);
                }
                let pairs = || key.iter().zip(row.query());
                let terms = || pairs().map(|(&k, &q)| f64::from(k) * f64::from(q));
                let (product, size): (f64, f64) = (terms().sum(), terms().map(f64::abs).sum());
                prop_assert!((f64::from(score) - product).abs() <= 1e-5 * size + 1e-30, "{token}");
            }
        }
    }

    /// If keys have few distinct parts, the parts are their own centroids, and decoding is exact.
    #[test]
    fn enough_centroids_give_the_oracles_picks(
        keys in prop::collection::vec(-1_i8..=1, 4..300),
        query in prop::collection::vec(-3_i8..=3, 4),
        taken in prop::collection::vec(0_usize..75, 0..9),
    ) {
        let keys: Vec<f32> = keys.into_iter().map(f32::from).collect();
        let query: Vec<f32> = query.into_iter().map(f32::from).collect();
        let count = keys.len() / 4;
        let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: 4, value_dim: 4 };
        let site = Site { seed: 1, sequence: 0, layer: 0, kv_head: 0, shape };
        let keys = Tokens::new(&keys[..count * 4], count, 4);
        let (visible, step) = (count, 0);
        let (queries, form) = (&query[..], SoftmaxForm::default());
        let step = Step { visible, step, form, ..Step::new(&site, queries, keys, keys) };
        let oracle = OracleTopK { size: Size::Tokens(7), score: Score::Head };
        for metric in METRICS {
            let config = config(4, count as u32, metric, Score::Head);
            let mut selector = config.build_selector(&site).unwrap();
            selector.append(&NewTokens { first: 0, keys, values: keys, classes: None });
            let (codebooks, codes) = expect_codes(&selector);
            let mut key = [0.0; 4];
            for token in 0..count {
                let (first, last) = key.split_at_mut(2);
                codebooks[0].decode(codes.get(token, 0), first);
                codebooks[1].decode(codes.get(token, 1), last);
                prop_assert_eq!(keys.to_array(token..token + 1).into_raw_vec_and_offset().0, key);
            }
            let row = step.row(0);
            prop_assert_eq!(pick(&selector, &row, &taken), pick(&oracle, &row, &taken));
        }
    }

    /// Distances between whole numbers are exact, and ties are frequent.
    #[test]
    fn ties_go_to_the_lowest_code(
        numbers in prop::collection::vec(-2_i8..=2, 4..400),
        part in prop::collection::vec(-3_i8..=3, 4),
    ) {
        let numbers: Vec<f32> = numbers.into_iter().map(f32::from).collect();
        let part: Vec<f32> = part.into_iter().map(f32::from).collect();
        let count = numbers.len() / 4;
        let centroids = ArrayView2::from_shape((count, 4), &numbers[..count * 4]).unwrap();
        let distance = |c: &[f32]| part.iter().zip(c).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
        let distances: Vec<f32> =
            centroids.rows().into_iter().map(|c| distance(&c.to_vec())).collect();
        let least = distances.iter().copied().fold(f32::INFINITY, f32::min);
        let first = distances.iter().position(|&d| d == least).unwrap();
        prop_assert_eq!(usize::from(Codebook::new(centroids, None).encode(&part)), first);
    }

    /// A key has the same codes whether it was clustered or appended later.
    #[test]
    fn a_repeated_key_has_the_same_codes(head in heads(99), bits in 1_u64..=8) {
        for metric in METRICS {
            let config = config(bits, head.tokens as u32, metric, Score::Head);
            let mut selector = build_filled(&config, &head);
            selector.append(&head.part(0..head.tokens));
            let (_, codes) = expect_codes(&selector);
            for token in 0..head.tokens {
                for part in 0..2 {
                    prop_assert_eq!(codes.get(token, part), codes.get(head.tokens + token, part));
                }
            }
        }
    }

    /// An extended part has the norm `√phi`; a part of larger norm is extended by 0.
    #[test]
    fn parts_are_extended_to_one_norm(
        part in prop::collection::vec(-2.0_f32..2.0, 1..9), phi in 0.0_f64..40.0,
    ) {
        let filled = augment(&part, phi);
        let norm = squared_norm(part[..].into());
        prop_assert_eq!(&filled[..part.len()], &part[..]);
        prop_assert!((squared_norm(filled[..].into()) - norm.max(phi)).abs() < 1e-4);
    }

    /// With `score = "group"`, a token's score is the sum of its shares of the heads' attention
    /// over the tokens not yet picked.
    #[test]
    fn a_groups_score_is_the_sum_of_its_shares(head in heads(80)) {
        let fit = (head.tokens as u32).div_ceil(2);
        let selector = build_filled(&config(3, fit, Metric::Euclidean, Score::Group), &head);
        let row = head.step(head.tokens).row(1);
        let mut picks = Picks::new(head.tokens);
        picks.take_all((1..head.tokens).step_by(3));
        let mut expected = vec![0.0; head.tokens];
        for member in row.members() {
            let logits = selector.logits(&member);
            let shift = picks.residual().map(|t| logits[t]).fold(f32::MIN, f32::max);
            let weight = |token: usize| f64::from(logits[token] - shift).exp();
            let total: f64 = picks.residual().map(weight).sum();
            picks.residual().for_each(|token| expected[token] += weight(token) / total);
        }
        for (token, &share) in selector.shares(&row, &picks).iter().enumerate() {
            prop_assert!((f64::from(share) - expected[token]).abs() < 1e-5, "{token}");
        }
    }

    /// A row that sees too few tokens for centroids is scored by the keys, even if more tokens
    /// exist beyond those it sees.
    #[test]
    fn rows_before_the_centroids_pick_like_the_oracle(head in heads(99)) {
        let selector = build_filled(&early(Metric::Euclidean, Score::Head), &head);
        let oracle = OracleTopK { size: Size::Tokens(7), score: Score::Head };
        let step = head.step(head.tokens.min(32));
        for row in step.rows() {
            prop_assert_eq!(pick(&selector, &row, &[2]), pick(&oracle, &row, &[2]));
        }
    }
}

#[test]
fn the_first_tokens_are_not_clustered() {
    let [head, other] = [1, 2].map(|seed| Head::new(50, 8, seed, Texture::Gaussian));
    let codes = |start: &Head| -> Vec<u8> {
        let mut selector =
            early(Metric::InnerProduct, Score::Head).build_selector(head.site()).unwrap();
        selector.append(&start.part(0..3));
        selector.append(&head.part(3..50));
        let (_, codes) = expect_codes(&selector);
        (3..50).map(|token| codes.get(token, 0)).collect()
    };
    assert_eq!(codes(&head), codes(&other));
}

/// The same keys have the same centroids in another sequence, but not with another seed.
#[test]
fn centroids_depend_on_the_keys_and_the_seed() {
    let head = Head::new(50, 8, 1, Texture::Gaussian);
    let table = |seed, sequence| {
        let site = Site { seed, sequence, ..*head.site() };
        let mut selector = early(Metric::Euclidean, Score::Head).build_selector(&site).unwrap();
        selector.append(&head.part(0..50));
        expect_codes(&selector).0[1].table(&[1.0, 2.0, 3.0, 4.0])
    };
    assert_eq!(table(5, 0), table(5, 7));
    assert_ne!(table(5, 0), table(6, 0));
}

#[test]
fn an_index_is_a_byte_per_token_and_part() {
    let head = Head::new(50, 8, 1, Texture::Gaussian);
    let mut selector = early(Metric::Euclidean, Score::Head).build_selector(head.site()).unwrap();
    selector.append(&head.part(0..32));
    assert_eq!(selector.index_bytes(), 32 * 8 * 4, "keys, until they are clustered");
    selector.append(&head.part(32..50));
    assert_eq!(selector.index_bytes(), 50 * 2);
}

#[test]
fn parts_that_do_not_divide_a_key_are_refused() {
    let head = Head::new(9, 8, 1, Texture::Flat);
    let three =
        PqCache { parts: NonZeroU16::new(3).unwrap(), ..early(Metric::Euclidean, Score::Head) };
    let error = three.build(head.site()).unwrap_err().to_string();
    assert_eq!(
        error,
        "pq-cache: keys of 8 elements cannot be cut into `parts` = 3: expected a divisor of 8"
    );
}
