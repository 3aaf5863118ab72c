//! Laws of selectors, and properties of the bounds.

use proptest::prelude::*;
use vattention_core::{Step, Tokens};
use vattention_testkit::{Head, Texture, heads};

use super::*;
use crate::OracleTopK;

fn config(page: usize, bits: u64, score: Score) -> Quest {
    Quest {
        size: Size::Tokens(7),
        page: NonZeroUsize::new(page).unwrap(),
        bits: LabelBits::try_from(bits).unwrap(),
        score,
    }
}

vattention_testkit::laws!(head_scores, config(16, 0, Score::Head));
vattention_testkit::laws!(group_scores, config(16, 0, Score::Group));
vattention_testkit::laws!(two_bits, config(5, 2, Score::Head));
vattention_testkit::laws!(four_bits_group_scores, config(3, 4, Score::Group));
vattention_testkit::laws!(one_page, config(usize::MAX, 8, Score::Head));
vattention_testkit::laws!(one_token_per_page, config(1, 0, Score::Head));

/// Returns a selector with a head's tokens.
fn build_filled(config: &Quest, head: &Head) -> QuestSelector {
    let mut selector = config.build_selector(head.dim);
    selector.append(&head.part(0..head.tokens));
    selector
}

/// Returns the bounds of a selector's pages for a row.
fn bounds(selector: &QuestSelector, row: &Row<'_>) -> Vec<f32> {
    selector.bounds(row, selector.cut_page(row).as_ref())
}

/// Returns the largest exact logit of each page.
fn largest(row: &Row<'_>, page: usize) -> Vec<f64> {
    let keys = row.keys().to_array(0..row.visible());
    let logit = |token: usize| -> f64 {
        keys.row(token).iter().zip(row.query()).map(|(&k, &q)| f64::from(k) * f64::from(q)).sum()
    };
    let tokens: Vec<usize> = (0..row.visible()).collect();
    let most = |page: &[usize]| page.iter().map(|&t| logit(t)).fold(f64::NEG_INFINITY, f64::max);
    tokens.chunks(page).map(most).collect()
}

/// Returns a head's queries and keys as whole numbers, whose products are exact in any order.
fn whole(head: &Head) -> [Vec<f32>; 2] {
    let round = |x: &f32| x.round().clamp(-9.0, 9.0);
    let keys = head.part(0..head.tokens).keys.to_array(0..head.tokens);
    [head.step(1).queries.iter().map(round).collect(), keys.iter().map(round).collect()]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// Quantised or not, the bound plus slack of a page is at least each of its logits, and a
    /// group's bound is the sum of its heads' bounds.
    #[test]
    fn no_logit_exceeds_its_pages_bound(
        head in heads(200), page in 1_usize..40, share in 0.0..1.0,
    ) {
        let visible = 1 + (share * (head.tokens - 1) as f64) as usize;
        for bits in 0..=8 {
            let [own, group] = [Score::Head, Score::Group]
                .map(|score| build_filled(&config(page, bits, score), &head));
            let mut sums = vec![0.0; visible.div_ceil(page)];
            for row in head.step(visible).rows() {
                let (cut, largest) = (own.cut_page(&row), largest(&row, page));
                let (bounds, slack) = (bounds(&own, &row), own.slack(&row, cut.as_ref()));
                prop_assert_eq!(bounds.len(), largest.len());
                for ((bound, largest), sum) in bounds.iter().zip(largest).zip(&mut sums) {
                    prop_assert!(f64::from(*bound) + slack >= largest, "{bound} < {largest}");
                    *sum += f64::from(*bound);
                }
            }
            for (bound, sum) in bounds(&group, &head.step(visible).row(0)).iter().zip(sums) {
                prop_assert!((f64::from(*bound) - sum).abs() <= 1e-5 * (1.0 + sum.abs()));
            }
        }
    }

    /// With pages of one token, bounds equal logits, and picks those of the oracle.
    #[test]
    fn pages_of_one_token_pick_like_the_oracle(head in heads(200), score in 0..2) {
        let score = [Score::Head, Score::Group][score as usize];
        let [queries, keys] = whole(&head);
        let keys = Tokens::new(&keys, head.tokens, head.dim);
        let mut selector = config(1, 0, score).build_selector(head.dim);
        selector.append(&NewTokens { first: 0, keys, values: keys, classes: None });
        let oracle = OracleTopK { size: Size::Tokens(7), score };
        let step = Step { queries: &queries, keys, ..head.step(head.tokens.div_ceil(2)) };
        for row in step.rows() {
            let mut picks = Picks::new(step.visible);
            picks.take_all((0..step.visible).step_by(3));
            let mut expected = picks.clone();
            selector.select(&row, &mut picks);
            oracle.select(&row, &mut expected);
            prop_assert_eq!(picks.indices(), expected.indices());
            prop_assert_eq!(picks.residual_bound().is_some(), expected.residual_bound().is_some());
        }
    }

    /// Appending a token raises the bound of the last page or leaves it, to the bit, and changes no
    /// other page.
    #[test]
    fn appending_never_lowers_a_bound(head in heads(60), page in 1_usize..20) {
        let mut selector = config(page, 0, Score::Head).build_selector(head.dim);
        let mut before: Vec<f32> = Vec::new();
        for visible in 1..=head.tokens {
            selector.append(&head.part(visible - 1..visible));
            let now = bounds(&selector, &head.step(visible).row(0));
            let whole = before.len() - usize::from((visible - 1) % page > 0);
            prop_assert_eq!(&now[..whole], &before[..whole]);
            prop_assert!(before.iter().zip(&now).all(|(before, now)| before <= now));
            before = now;
        }
    }

    /// A row's bounds do not depend on later tokens, and the index does not depend on the steps in
    /// which tokens were appended.
    #[test]
    fn invisible_tokens_do_not_count(
        head in heads(150), page in 1_usize..20, bits in 0_u64..=8,
    ) {
        let config = config(page, bits, Score::Head);
        let (all, mut grown) = (build_filled(&config, &head), config.build_selector(head.dim));
        for visible in 1..=head.tokens {
            grown.append(&head.part(visible - 1..visible));
            let step = head.step(visible);
            let alone = Step { keys: head.part(0..visible).keys, ..step };
            prop_assert_eq!(bounds(&grown, &alone.row(1)), bounds(&all, &step.row(1)));
        }
        prop_assert_eq!(&grown.full, &all.full);
        prop_assert_eq!(grown.last, all.last);
    }
}

/// A page can have the largest bound because two of its tokens are each large in a different
/// channel.
#[test]
fn the_best_page_need_not_hold_the_best_token() {
    let keys = [[4.0, -4.0], [-4.0, 4.0], [3.0, 3.0], [2.0, 3.0]].concat();
    let head = Head::new(4, 2, 0, Texture::Flat);
    let keys = Tokens::new(&keys, 4, 2);
    let mut selector = config(2, 0, Score::Head).build_selector(2);
    selector.append(&NewTokens { first: 0, keys, values: keys, classes: None });
    let step = Step { queries: &[1.0, 1.0, 0.0, 0.0], keys, ..head.step(4) };
    assert_eq!(bounds(&selector, &step.row(0)), [8.0, 6.0]);
    let mut picks = Picks::new(4);
    QuestSelector {
        config: Quest { size: Size::Tokens(2), ..selector.config.clone() },
        ..selector
    }
    .select(&step.row(0), &mut picks);
    assert_eq!(picks.indices(), [0, 1], "logits 0 and 0; token 2 has 6");
}

/// Exactly `size` new tokens are picked: the last page may be picked in part, and earlier picks do
/// not count.
#[test]
fn size_counts_new_tokens() {
    let head = Head::new(100, 8, 1, Texture::Gaussian);
    let config = Quest { size: Size::Tokens(21), ..config(16, 0, Score::Head) };
    let selector = build_filled(&config, &head);
    let row = head.step(100).row(0);
    let bounds = bounds(&selector, &row);
    let mut order: Vec<usize> = (0..bounds.len()).collect();
    order.sort_by(|&a, &b| bounds[b].total_cmp(&bounds[a]));
    let mut picks = Picks::new(100);
    picks.take(order[0] * 16 + 3);
    selector.select(&row, &mut picks);
    assert_eq!(picks.len(), 22);
    let best = order[0] * 16..(order[0] * 16 + 16).min(100);
    let rest = 22 - best.len();
    assert!(best.chain(order[1] * 16..order[1] * 16 + rest).all(|token| picks.contains(token)));
    let left = f64::from(bounds[order[1]]);
    let bound = f64::from(picks.residual_bound().unwrap());
    assert!((left..left + 1e-3).contains(&bound), "{bound}, of a page with tokens left");
}

#[test]
fn index_bytes_follow_from_pages_and_bits() {
    let head = Head::new(16 * 65, 8, 1, Texture::Gaussian);
    for (bits, numbers) in [(0, 4 * 8 * 64), (2, 8 * 16 + 8 * 64), (8, 8 * 64 + 8 * 64)] {
        let selector = build_filled(&config(16, bits, Score::Head), &head);
        assert_eq!(selector.index_bytes(), 2 * 2 * numbers, "{bits} bits, two blocks of 64 pages");
    }
}
