//! Known outputs, laws of selectors, definition of the scores, and configs that are refused.

use proptest::prelude::*;
use vattention_testkit::{Head, Texture, heads};

use super::*;
use crate::clusters_golden::{Case, Golden, labels};
use crate::prompt_attention::testing::{prompt, queries};

fn config(size: Option<Size>, threshold: Option<f64>) -> SqueezedAttention {
    SqueezedAttention {
        size,
        threshold: threshold.map(|it| Fraction::try_from(it).unwrap()),
        clusters: Size::Tokens(8),
        coarse: None,
        window: NonZeroU16::new(3).unwrap(),
        iterations: 10,
    }
}

fn sized(size: usize) -> SqueezedAttention {
    config(Some(Size::Tokens(size)), None)
}

fn two_levels(size: usize) -> SqueezedAttention {
    let coarse =
        CoarseClusters { size: Some(Size::Tokens(25)), threshold: None, clusters: Size::Tokens(4) };
    SqueezedAttention { coarse: Some(coarse), ..sized(size) }
}

vattention_testkit::laws!(by_size, sized(20));
vattention_testkit::laws!(by_threshold, config(None, Some(0.01)));
vattention_testkit::laws!(in_two_levels, two_levels(20));

/// Returns a selector that has observed a head's tokens as a prompt with `count` last queries.
fn build_with_prompt(
    config: &SqueezedAttention,
    head: &Head,
    count: usize,
) -> SqueezedAttentionSelector {
    let (rule, coarse_rule) = config.threshold_rules().unwrap();
    let config = config.clone();
    let mut selector =
        SqueezedAttentionSelector { config, rule, coarse_rule, site: *head.site(), context: None };
    selector.append(&head.part(0..head.tokens));
    let queries = queries(head, count);
    selector.observe(&prompt(head, head.tokens, queries.view()));
    selector
}

/// Returns the picks of a member of the group.
fn pick(selector: &SqueezedAttentionSelector, head: &Head, member: usize) -> Vec<usize> {
    let mut picks = Picks::new(head.tokens);
    selector.select(&head.step(head.tokens).row(member), &mut picks);
    picks.iter().collect()
}

#[test]
fn golden_levels_thresholds_and_picks() {
    #[derive(Deserialize)]
    struct Thresholds {
        threshold: f64,
        coarse_labels: Option<Vec<usize>>,
        coarse_threshold: Option<f64>,
    }
    let golden = Golden::load();
    assert_eq!(golden.squeezed.len(), 3);
    for value in &golden.squeezed {
        let case: Case<SqueezedAttention> = serde_json::from_value(value.clone()).unwrap();
        let more: Thresholds = serde_json::from_value(value.clone()).unwrap();
        let (rule, coarse_rule) = case.config.threshold_rules().unwrap();
        let config = case.config.clone();
        let site = golden.head.site();
        let mut selector =
            SqueezedAttentionSelector { config, rule, coarse_rule, site, context: None };
        golden.head.feed(&mut selector);
        let (fine, coarse) = selector.context.as_ref().unwrap().levels();
        assert_eq!(labels(&fine.clusters), case.labels);
        assert!((fine.threshold / more.threshold - 1.0).abs() < 1e-5, "{}", fine.threshold);
        assert_eq!(coarse.map(|coarse| labels(&coarse.clusters)), more.coarse_labels);
        if let (Some(coarse), Some(expected)) = (coarse, more.coarse_threshold) {
            assert!((coarse.threshold / expected - 1.0).abs() < 1e-5, "{}", coarse.threshold);
        }
        assert_eq!(golden.head.picks(&selector, &[]), case.picks, "{:?}", case.config);
        let built = golden.head.build(&case.config);
        assert_eq!(golden.head.picks(&*built, &[]), case.picks, "as the registry builds it");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    /// With a cluster for each distinct key, a token's score is its own attention over the context.
    #[test]
    fn a_cluster_per_key_gives_exact_scores(
        tokens in 4_usize..120, seed in 0_u64..1000, threshold in 0.001..0.2,
    ) {
        let head = Head::new(tokens, 8, seed, Texture::Gaussian);
        let config = config(None, Some(threshold));
        let all = SqueezedAttention { clusters: Size::Tokens(tokens), ..config };
        let selector = build_with_prompt(&all, &head, 1);
        let context = tokens - 3;
        let row = head.step(tokens).row(1);
        let logit = |token| f64::from(row.logit(token));
        let shift = (0..context).map(logit).fold(f64::MIN, f64::max);
        let total: f64 = (0..context).map(|token| (logit(token) - shift).exp()).sum();
        let found = pick(&selector, &head, 1);
        for token in 0..context {
            let share = (logit(token) - shift).exp() / total;
            let near = (share / threshold - 1.0).abs() < 1e-4;
            prop_assert!(near || found.contains(&token) == (share > threshold), "{token}: {share}");
        }
        prop_assert!((context..tokens).all(|token| found.contains(&token)));
    }

    /// A lower threshold picks all that a higher one picks.
    #[test]
    fn a_lower_threshold_picks_no_less(head in heads(150), a in 0.0001..0.1, b in 0.0001..0.1) {
        let pick_above = |threshold| {
            pick(&build_with_prompt(&config(None, Some(threshold)), &head, 1), &head, 0)
        };
        let (many, few) = (pick_above(f64::min(a, b)), pick_above(f64::max(a, b)));
        prop_assert!(few.iter().all(|token| many.contains(token)));
    }

    /// For one query, that of the prompt, at most `size` tokens per member exceed the threshold,
    /// and one more cluster would be too many.
    #[test]
    fn size_bounds_the_tokens_above_the_threshold(head in heads(150), size in 1_usize..60) {
        let mut selector = build_with_prompt(&sized(size), &head, 1);
        let Some(context) = selector.context.take() else { return Ok(()) };
        let (level, _) = context.levels();
        let size = size.min(context.tokens());
        let queries = queries(&head, 1);
        let (mut passing, mut next) = (0, f64::MIN);
        let mut scores = Vec::new();
        for member in queries.outer_iter() {
            let logits = level.clusters.logits(&member.row(0).to_vec());
            let tokens_of = |cluster: usize| level.clusters.members(cluster).len();
            let weight = |c: usize| tokens_of(c) as f64 * f64::from(logits[c]).exp();
            let total: f64 = (0..level.clusters.count()).map(weight).sum();
            for (cluster, &logit) in logits.iter().enumerate() {
                scores.push((f64::from(logit).exp() / total, tokens_of(cluster)));
            }
        }
        for &(score, tokens) in &scores {
            if score > level.threshold * (1.0 + 1e-9) {
                passing += tokens;
            } else {
                next = f64::max(next, score);
            }
        }
        prop_assert!(passing <= 2 * size);
        let tie = |score: f64| (score / next - 1.0).abs() < 1e-9;
        let ties = scores.iter().filter(|&&(score, _)| tie(score));
        let equal: usize = ties.map(|&(_, tokens)| tokens).sum();
        prop_assert!(level.threshold == 0.0 || passing + equal > 2 * size);
    }

    /// A coarse level that prunes nothing changes nothing.
    #[test]
    fn a_coarse_level_that_prunes_nothing_changes_nothing(head in heads(150), size in 1_usize..60) {
        let threshold = Some(Fraction::try_from(1e-300).unwrap());
        let coarse = CoarseClusters { size: None, threshold, clusters: Size::Tokens(3) };
        let two = SqueezedAttention { coarse: Some(coarse), ..sized(size) };
        // Weights that underflow to 0 would not exceed the threshold.
        prop_assume!(head.texture != Texture::Needle && head.texture != Texture::HeavyTail);
        for member in 0..2 {
            let [one_level, two_levels] = [&sized(size), &two]
                .map(|config| pick(&build_with_prompt(config, &head, 2), &head, member));
            prop_assert_eq!(one_level, two_levels);
        }
    }

    /// Tokens of coarse clusters below the threshold are not picked.
    #[test]
    fn pruned_tokens_are_not_picked(head in heads(150), size in 1_usize..60) {
        let selector = build_with_prompt(&two_levels(size), &head, 2);
        let Some(context) = &selector.context else { return Ok(()) };
        let (_, coarse) = context.levels();
        let coarse = coarse.unwrap();
        let row = head.step(head.tokens).row(0);
        let logits = coarse.clusters.logits(row.query());
        let size = |cluster: usize| coarse.clusters.members(cluster).len() as f64;
        let shift = logits.iter().copied().fold(f32::MIN, f32::max);
        let weight = |cluster: usize| f64::from(logits[cluster] - shift).exp();
        let total: f64 = (0..logits.len()).map(|cluster| size(cluster) * weight(cluster)).sum();
        let found = pick(&selector, &head, 0);
        for cluster in 0..logits.len() {
            if weight(cluster) / total < coarse.threshold * (1.0 - 1e-9) {
                let members = coarse.clusters.members(cluster);
                prop_assert!(members.iter().all(|&token| !found.contains(&(token as usize))));
            }
        }
    }
}

/// The first prompt that is long enough is the context; its last tokens and all later tokens are
/// read.
#[test]
fn only_the_context_is_clustered() {
    let head = Head::new(60, 8, 1, Texture::Gaussian);
    let high = config(None, Some(0.9));
    let mut selector = build_with_prompt(&high, &head.first(3), 1);
    assert_eq!((pick(&selector, &head, 0).len(), selector.index_bytes()), (60, 0), "no context");
    let first = head.first(40);
    selector.append(&head.part(3..40));
    selector.observe(&first.prompt());
    let bytes = selector.index_bytes();
    assert_eq!(bytes, 37 * 4 + 8 * 8 * 4);
    selector.append(&head.part(40..60));
    selector.observe(&head.prompt());
    assert_eq!(selector.index_bytes(), bytes, "another prompt changes nothing");
    assert_eq!(pick(&selector, &head, 0), (37..60).collect::<Vec<_>>());
}

#[test]
fn samplers_receive_the_clusters_scores() {
    let head = Head::new(60, 8, 1, Texture::Gaussian);
    let selector = build_with_prompt(&two_levels(10), &head, 1);
    let row = head.step(60).row(0);
    let mut picks = Picks::new(60);
    picks.store_scores();
    selector.select(&row, &mut picks);
    let scores = picks.scores().unwrap();
    let (fine, coarse) = selector.context.as_ref().unwrap().levels();
    let levels = [&fine.clusters, &coarse.unwrap().clusters];
    let [by_fine, by_coarse] =
        levels.map(|clusters| clusters.per_token(&clusters.logits(row.query()), 57));
    let equals = |token: usize, others: &[f32]| scores[token] == others[token];
    assert!((0..57).all(|token| equals(token, &by_fine) || equals(token, &by_coarse)));
    assert!((0..57).any(|token| !equals(token, &by_coarse)));
    assert!((0..57).any(|token| !equals(token, &by_fine)));
}

#[test]
fn either_size_or_threshold_is_needed() {
    let read = |text: &str| serde_json::from_str::<SqueezedAttention>(text);
    let refused = |text: &str| read(text).unwrap().check().unwrap_err().to_string();
    let expected =
        "squeezed-attention: the selector has neither: expected either `size` or `threshold`";
    assert_eq!(refused("{}"), expected);
    let expected = "squeezed-attention: `coarse` has both: expected either `size` or `threshold`";
    let both = r#"{"size": 1, "coarse": {"size": 1, "threshold": 0.1}}"#;
    assert_eq!(refused(both), expected);
    let site = *Head::new(9, 8, 1, Texture::Flat).site();
    assert!(read(both).unwrap().build(&site).is_err());
}
