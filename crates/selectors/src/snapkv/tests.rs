use super::*;
use crate::prompt_attention::testing::{MEMBERS, pick, prompt, queries};
use proptest::prelude::*;
use vattention_core::ndarray::{Array3, s};
use vattention_testkit::{Head, Texture, heads, laws};

fn config(size: usize, window: usize, pool: u64, pooling: Pooling) -> SnapKv {
    SnapKv {
        size: Size::Tokens(size),
        window: NonZeroUsize::new(window).unwrap(),
        pool: PoolWidth::try_from(pool).unwrap(),
        pooling,
    }
}

laws!(mean_pooling, config(12, 5, 3, Pooling::Mean));
laws!(max_pooling, config(12, 5, 3, Pooling::Max));

/// Returns the kept tokens among a head's first `tokens` tokens after its prompt.
fn keep(config: &SnapKv, head: &Head, tokens: usize, queries: &Array3<f32>) -> Vec<usize> {
    let mut selector = config.build(head.site()).unwrap();
    selector.append(&head.part(0..tokens));
    selector.observe(&prompt(head, tokens, queries.view()));
    pick(&*selector, head, tokens)
}

/// Reference implementation; empty if the cut is too close to call.
fn keep_best_votes(config: &SnapKv, head: &Head, queries: &Array3<f32>) -> Vec<usize> {
    let (tokens, count) = (head.tokens, queries.dim().1);
    let size = config.size.to_tokens(tokens);
    let recent = config.window.get().min(size);
    let mut votes = vec![0.0; tokens - recent];
    for i in count.saturating_sub(config.window.get())..count {
        for member in 0..MEMBERS {
            let query = queries.slice(s![member, i, ..]).to_vec();
            let visible = tokens - count + i + 1;
            let exp = |token| f64::from(head.part(0..tokens).keys.dot(token, &query)).exp();
            let sum: f64 = (0..visible).map(exp).sum();
            (0..visible.min(votes.len())).for_each(|token| votes[token] += exp(token) / sum);
        }
    }
    let half = u64::from(config.pool) as isize / 2;
    let pooled = |token: usize| {
        let around = (-half..=half).map(|d| {
            let place = usize::try_from(token as isize + d).ok();
            place.and_then(|place| votes.get(place)).copied().unwrap_or(0.0)
        });
        match config.pooling {
            Pooling::Mean => around.sum::<f64>(),
            Pooling::Max => around.fold(0.0, f64::max),
        }
    };
    let mut ranked: Vec<(usize, f64)> = (0..votes.len()).map(|t| (t, pooled(t))).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    // Near the cut, rounding may order nearly equal votes differently here and in the selector.
    let cut = size - recent;
    if cut < ranked.len() && cut > 0 && ranked[cut - 1].1 - ranked[cut].1 < 1e-5 {
        return Vec::new();
    }
    let mut kept: Vec<usize> = ranked[..cut.min(ranked.len())].iter().map(|&(t, _)| t).collect();
    kept.extend(tokens - recent..tokens);
    kept.sort_unstable();
    kept
}

fn configs() -> impl Strategy<Value = SnapKv> {
    (1_usize..60, 1_usize..12, 0_u64..6, prop::sample::select(vec![Pooling::Mean, Pooling::Max]))
        .prop_map(|(size, window, half, pooling)| config(size, window, 2 * half + 1, pooling))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_window_and_the_best_votes_are_kept(
        head in heads(80), config in configs(), observed in 1_usize..20,
    ) {
        let queries = queries(&head, observed.min(head.tokens));
        let kept = keep(&config, &head, head.tokens, &queries);
        let size = config.size.to_tokens(head.tokens);
        prop_assert_eq!(kept.len(), size);
        let window = config.window.get().min(size);
        prop_assert!((head.tokens - window..head.tokens).all(|token| kept.contains(&token)));
        let defined = keep_best_votes(&config, &head, &queries);
        if !defined.is_empty() {
            prop_assert_eq!(kept, defined);
        }
    }

    /// Queries before the last `window` do not vote.
    #[test]
    fn only_the_last_queries_vote(head in heads(80), config in configs(), earlier in 1_usize..9) {
        let window = config.window.get();
        prop_assume!(window + earlier <= head.tokens);
        let mut queries = queries(&head, window + earlier);
        let before = keep(&config, &head, head.tokens, &queries);
        queries.slice_mut(s![.., ..earlier, ..]).mapv_inplace(|x| 7.0 - 3.0 * x);
        prop_assert_eq!(keep(&config, &head, head.tokens, &queries), before);
    }

    /// Later tokens are kept until the next turn, then cut to size again, and evicted tokens never
    /// come back.
    #[test]
    fn later_tokens_stay_until_the_next_prompt(head in heads(80), config in configs()) {
        let first = head.tokens.div_ceil(2);
        let mut selector = config.build(head.site()).unwrap();
        selector.append(&head.part(0..first));
        selector.observe(&prompt(&head, first, queries(&head, 1).view()));
        let kept = pick(&*selector, &head, first);
        selector.append(&head.part(first..head.tokens));
        let more = pick(&*selector, &head, head.tokens);
        prop_assert_eq!(&more, &kept.iter().copied().chain(first..head.tokens).collect::<Vec<_>>());
        selector.observe(&head.prompt());
        let after = pick(&*selector, &head, head.tokens);
        prop_assert_eq!(after.len(), more.len().min(config.size.to_tokens(head.tokens)));
        prop_assert!(after.iter().all(|token| more.contains(token)));
    }
}

/// A share of a short prompt is at least the window; a size in tokens may be smaller.
#[test]
fn a_share_of_a_short_prompt_keeps_the_window() {
    let share = Size::Share(vattention_core::Fraction::try_from(0.1).unwrap());
    for (tokens, expected) in [(5, 5), (20, 20), (44, 32), (319, 32), (330, 33)] {
        let head = Head::new(tokens, 8, 5, Texture::Gaussian);
        let config = SnapKv { size: share, ..config(1, 32, 7, Pooling::Max) };
        let kept = keep(&config, &head, tokens, &queries(&head, 1));
        assert_eq!(kept.len(), expected, "{tokens} tokens");
        assert!((tokens - expected.min(32)..tokens).all(|token| kept.contains(&token)));
    }
    let head = Head::new(44, 8, 5, Texture::Gaussian);
    let kept = keep(&config(6, 32, 7, Pooling::Max), &head, 44, &queries(&head, 1));
    assert_eq!(kept, (38..44).collect::<Vec<_>>());
}

/// A voting query can change the kept tokens, so that the test above does not pass trivially.
#[test]
fn a_voting_query_changes_the_kept_tokens() {
    let head = Head::new(80, 8, 5, Texture::Gaussian);
    let config = config(12, 4, 1, Pooling::Mean);
    let mut queries = queries(&head, 6);
    let before = keep(&config, &head, 80, &queries);
    queries.slice_mut(s![.., 2, ..]).mapv_inplace(|x| 7.0 - 3.0 * x);
    assert_ne!(keep(&config, &head, 80, &queries), before);
}

#[test]
fn votes_beyond_the_ends_are_zero() {
    let votes = [6.0, 0.0, 0.0, 3.0, 0.0];
    let pool = |pooling: Pooling, width| pooling.pool(&votes, PoolWidth::try_from(width).unwrap());
    assert_eq!(pool(Pooling::Mean, 3), [2.0, 2.0, 1.0, 1.0, 1.0]);
    assert_eq!(pool(Pooling::Max, 3), [6.0, 6.0, 3.0, 3.0, 3.0]);
    for pooling in [Pooling::Mean, Pooling::Max] {
        assert_eq!(pool(pooling, 1), [6.0, 0.0, 0.0, 3.0, 0.0]);
    }
    assert_eq!(pool(Pooling::Mean, 5), [1.2, 1.8, 1.8, 0.6, 0.6]);
    assert_eq!(pool(Pooling::Max, u64::MAX), [6.0; 5]);
}

#[test]
fn without_a_prompt_nothing_is_evicted() {
    let head = Head::new(50, 2, 0, Texture::Gaussian);
    let mut selector = config(10, 5, 1, Pooling::Mean).build(head.site()).unwrap();
    selector.append(&head.part(0..50));
    assert_eq!(pick(&*selector, &head, 50).len(), 50);
    assert_eq!(selector.index_bytes(), 200);
    assert!(!selector.needs_feedback());
}
