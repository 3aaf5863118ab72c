//! Known outputs, the laws, what the scores are, and configs that are refused.

use proptest::prelude::*;
use vattention_testkit::{Head, Texture, heads};

use super::*;
use crate::clusters_golden::{Case, Golden, labels};
use crate::learned::testing::{prompt, queries};

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

fn of_two_levels(size: usize) -> SqueezedAttention {
    let coarse =
        Coarse { size: Some(Size::Tokens(25)), threshold: None, clusters: Size::Tokens(4) };
    SqueezedAttention { coarse: Some(coarse), ..sized(size) }
}

vattention_testkit::laws!(by_size, sized(20));
vattention_testkit::laws!(by_threshold, config(None, Some(0.01)));
vattention_testkit::laws!(in_two_levels, of_two_levels(20));

/// A worker that has seen a head's tokens and the last `prompt` queries of its prompt.
fn shown(config: &SqueezedAttention, head: &Head, count: usize) -> SqueezedAttentionSelector {
    let (bar, coarse_bar) = config.bars().unwrap();
    let config = config.clone();
    let mut worker =
        SqueezedAttentionSelector { config, bar, coarse_bar, site: *head.site(), context: None };
    worker.append(&head.part(0..head.tokens));
    let queries = queries(head, count);
    worker.observe(&prompt(head, head.tokens, queries.view()));
    worker
}

/// What is picked for a member of the group.
fn picked(worker: &SqueezedAttentionSelector, head: &Head, member: usize) -> Vec<usize> {
    let mut picks = Picks::new(head.tokens);
    worker.select(&head.step(head.tokens).row(member), &mut picks);
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
        let (bar, coarse_bar) = case.config.bars().unwrap();
        let config = case.config.clone();
        let site = golden.head.site();
        let mut worker = SqueezedAttentionSelector { config, bar, coarse_bar, site, context: None };
        golden.head.show(&mut worker);
        let (fine, coarse) = worker.context.as_ref().unwrap().levels();
        assert_eq!(labels(&fine.clusters), case.labels);
        assert!((fine.threshold / more.threshold - 1.0).abs() < 1e-5, "{}", fine.threshold);
        assert_eq!(coarse.map(|coarse| labels(&coarse.clusters)), more.coarse_labels);
        if let (Some(coarse), Some(expected)) = (coarse, more.coarse_threshold) {
            assert!((coarse.threshold / expected - 1.0).abs() < 1e-5, "{}", coarse.threshold);
        }
        assert_eq!(golden.head.picks(&worker, &[]), case.picks, "{:?}", case.config);
        let built = golden.head.built(&case.config);
        assert_eq!(golden.head.picks(&*built, &[]), case.picks, "as the registry builds it");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    /// With a cluster for each key that differs from others, a token's score is its own attention over the context.
    #[test]
    fn with_a_cluster_for_each_key_scores_are_exact(
        tokens in 4_usize..120, seed in 0_u64..1000, threshold in 0.001..0.2,
    ) {
        let head = Head::new(tokens, 8, seed, Texture::Gaussian);
        let all = SqueezedAttention { clusters: Size::Tokens(tokens), ..config(None, Some(threshold)) };
        let worker = shown(&all, &head, 1);
        let context = tokens - 3;
        let row = head.step(tokens).row(1);
        let logit = |token| f64::from(row.logit(token));
        let shift = (0..context).map(logit).fold(f64::MIN, f64::max);
        let total: f64 = (0..context).map(|token| (logit(token) - shift).exp()).sum();
        let found = picked(&worker, &head, 1);
        for token in 0..context {
            let share = (logit(token) - shift).exp() / total;
            let near = (share / threshold - 1.0).abs() < 1e-4;
            prop_assert!(near || found.contains(&token) == (share > threshold), "{token}: {share}");
        }
        prop_assert!((context..tokens).all(|token| found.contains(&token)));
    }

    /// A lower threshold picks no less.
    #[test]
    fn a_lower_threshold_picks_no_less(head in heads(150), a in 0.0001..0.1, b in 0.0001..0.1) {
        let of = |threshold| picked(&shown(&config(None, Some(threshold)), &head, 1), &head, 0);
        let (many, few) = (of(f64::min(a, b)), of(f64::max(a, b)));
        prop_assert!(few.iter().all(|token| many.contains(token)));
    }

    /// Of one query, which is the prompt's, no more pass than `size`, and one cluster more would be too many.
    #[test]
    fn as_many_pass_as_size_says(head in heads(150), size in 1_usize..60) {
        let mut worker = shown(&sized(size), &head, 1);
        let Some(context) = worker.context.take() else { return Ok(()) };
        let (level, _) = context.levels();
        let size = size.min(context.tokens());
        let queries = queries(&head, 1);
        let (mut passing, mut next) = (0, f64::MIN);
        let mut scores = Vec::new();
        for member in queries.outer_iter() {
            let logits = level.clusters.logits(&member.row(0).to_vec());
            let weight = |cluster: usize| level.clusters.members(cluster).len() as f64 * f64::from(logits[cluster]).exp();
            let total: f64 = (0..level.clusters.count()).map(weight).sum();
            for (cluster, &logit) in logits.iter().enumerate() {
                scores.push((f64::from(logit).exp() / total, level.clusters.members(cluster).len()));
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
        let equal: usize = scores.iter().filter(|(score, _)| (score / next - 1.0).abs() < 1e-9).map(|it| it.1).sum();
        prop_assert!(level.threshold == 0.0 || passing + equal > 2 * size);
    }

    /// A coarse level that lets everything pass changes nothing.
    #[test]
    fn a_coarse_level_that_prunes_nothing_is_none(head in heads(150), size in 1_usize..60) {
        let coarse = Coarse { size: None, threshold: Some(Fraction::try_from(1e-300).unwrap()), clusters: Size::Tokens(3) };
        let two = SqueezedAttention { coarse: Some(coarse), ..sized(size) };
        // Weights of nothing would not pass.
        prop_assume!(head.texture != Texture::Needle && head.texture != Texture::HeavyTail);
        for member in 0..2 {
            let [one, two] = [&sized(size), &two].map(|config| picked(&shown(config, &head, 2), &head, member));
            prop_assert_eq!(one, two);
        }
    }

    /// What a coarse cluster that does not pass holds is not picked.
    #[test]
    fn what_is_pruned_is_not_picked(head in heads(150), size in 1_usize..60) {
        let worker = shown(&of_two_levels(size), &head, 2);
        let Some(context) = &worker.context else { return Ok(()) };
        let (_, coarse) = context.levels();
        let coarse = coarse.unwrap();
        let row = head.step(head.tokens).row(0);
        let logits = coarse.clusters.logits(row.query());
        let size = |cluster: usize| coarse.clusters.members(cluster).len() as f64;
        let shift = logits.iter().copied().fold(f32::MIN, f32::max);
        let weight = |cluster: usize| f64::from(logits[cluster] - shift).exp();
        let total: f64 = (0..logits.len()).map(|cluster| size(cluster) * weight(cluster)).sum();
        let found = picked(&worker, &head, 0);
        for cluster in 0..logits.len() {
            if weight(cluster) / total < coarse.threshold * (1.0 - 1e-9) {
                let members = coarse.clusters.members(cluster);
                prop_assert!(members.iter().all(|&token| !found.contains(&(token as usize))));
            }
        }
    }
}

/// The first prompt that is long enough is the context; the last of its tokens and what comes later is read.
#[test]
fn only_a_context_is_squeezed() {
    let head = Head::new(60, 8, 1, Texture::Gaussian);
    let high = config(None, Some(0.9));
    let mut worker = shown(&high, &head.first(3), 1);
    assert_eq!((picked(&worker, &head, 0).len(), worker.index_bytes()), (60, 0), "no context");
    let first = head.first(40);
    worker.append(&head.part(3..40));
    worker.observe(&first.prompt());
    let bytes = worker.index_bytes();
    assert_eq!(bytes, 37 * 4 + 8 * 8 * 4);
    worker.append(&head.part(40..60));
    worker.observe(&head.prompt());
    assert_eq!(worker.index_bytes(), bytes, "another prompt changes nothing");
    assert_eq!(picked(&worker, &head, 0), (37..60).collect::<Vec<_>>());
}

#[test]
fn samplers_are_told_the_clusters_scores() {
    let head = Head::new(60, 8, 1, Texture::Gaussian);
    let worker = shown(&of_two_levels(10), &head, 1);
    let row = head.step(60).row(0);
    let mut picks = Picks::new(60);
    picks.keep_scores();
    worker.select(&row, &mut picks);
    let scores = picks.scores().unwrap();
    let (fine, coarse) = worker.context.as_ref().unwrap().levels();
    let levels = [&fine.clusters, &coarse.unwrap().clusters];
    let [by_fine, by_coarse] =
        levels.map(|clusters| clusters.per_token(&clusters.logits(row.query()), 57));
    let is_of = |token: usize, of: &[f32]| scores[token] == of[token];
    assert!((0..57).all(|token| is_of(token, &by_fine) || is_of(token, &by_coarse)));
    assert!((0..57).any(|token| !is_of(token, &by_coarse)));
    assert!((0..57).any(|token| !is_of(token, &by_fine)));
}

#[test]
fn either_size_or_threshold_is_needed() {
    let read = |text: &str| serde_json::from_str::<SqueezedAttention>(text);
    let refused = |text: &str| read(text).unwrap().check().unwrap_err().to_string();
    let expected = "squeezed-attention: it has neither: expected either `size` or `threshold`";
    assert_eq!(refused("{}"), expected);
    let expected = "squeezed-attention: `coarse` has both: expected either `size` or `threshold`";
    let both = r#"{"size": 1, "coarse": {"size": 1, "threshold": 0.1}}"#;
    assert_eq!(refused(both), expected);
    let site = *Head::new(9, 8, 1, Texture::Flat).site();
    assert!(read(both).unwrap().build(&site).is_err());
}
