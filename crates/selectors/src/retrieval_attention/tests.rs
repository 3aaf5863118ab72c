//! Known outputs, laws of selectors, and properties of the graph and the search.

use proptest::prelude::*;
use vattention_testkit::{Head, Texture, heads};

use super::*;
use crate::clusters_golden::Golden;
use crate::prompt_attention::testing::{prompt, queries};
use crate::test_picks::pick;

fn config(size: usize, beam: Option<usize>) -> RetrievalAttention {
    let [neighbours, degree] = [10, 4].map(|x| NonZeroU16::new(x).unwrap());
    RetrievalAttention {
        size: Size::Tokens(size),
        beam: beam.map(Size::Tokens),
        neighbours,
        degree,
    }
}

vattention_testkit::laws!(narrow, config(8, None));
vattention_testkit::laws!(wide, config(20, Some(50)));

/// Returns the picks of a member of the group, without the `taken` tokens.
fn pick_beside(selector: &RetrievalAttentionSelector, head: &Head, taken: &[usize]) -> Vec<usize> {
    let mut found = pick(selector, &head.step(head.tokens).row(1), taken);
    found.retain(|token| !taken.contains(token));
    found
}

/// Returns a selector with a head's tokens, of which it has observed the first `tokens` as a
/// prompt.
fn build_with_prompt(
    config: &RetrievalAttention,
    head: &Head,
    tokens: usize,
) -> RetrievalAttentionSelector {
    let mut selector = RetrievalAttentionSelector { config: config.clone(), graph: None };
    selector.append(&head.part(0..tokens));
    let queries = queries(head, 12.min(tokens));
    selector.observe(&prompt(head, tokens, queries.view()));
    selector.append(&head.part(tokens..head.tokens));
    selector
}

#[test]
fn golden_links_and_picks() {
    #[derive(Deserialize)]
    struct Case {
        config: RetrievalAttention,
        taken: Vec<usize>,
        links: Vec<Vec<u32>>,
        picks: Vec<Vec<usize>>,
    }
    let golden = Golden::load();
    assert_eq!(golden.retrieval.len(), 4);
    for value in &golden.retrieval {
        let case: Case = serde_json::from_value(value.clone()).unwrap();
        let mut selector = RetrievalAttentionSelector { config: case.config.clone(), graph: None };
        golden.head.feed(&mut selector);
        assert_eq!(selector.graph.as_ref().unwrap().links(), case.links);
        assert_eq!(golden.head.picks(&selector, &case.taken), case.picks, "{:?}", case.config);
        let built = golden.head.build(&case.config);
        assert_eq!(
            golden.head.picks(&*built, &case.taken),
            case.picks,
            "as the registry builds it"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    /// A beam of all tokens reaches every token, including those after the prompt, so that the
    /// picks are the exact top-k.
    #[test]
    fn a_beam_of_all_tokens_finds_the_best(
        head in heads(200), size in 1_usize..60, after in 0_usize..40,
    ) {
        let taken: Vec<usize> = (0..head.tokens).step_by(7).collect();
        let all = config(size, Some(head.tokens));
        let selector = build_with_prompt(&all, &head, head.tokens - after.min(head.tokens - 1));
        let row = head.step(head.tokens).row(1);
        let mut scores = vec![0.0; head.tokens];
        row.logits(&mut scores);
        let mut best = Picks::new(head.tokens);
        best.take_all(taken.iter().copied());
        best.take_top(size, &scores);
        let best: Vec<usize> = best.iter().filter(|token| !taken.contains(token)).collect();
        prop_assert_eq!(pick_beside(&selector, &head, &taken), best);
    }

    /// The search finds `size` tokens, or all that are left.
    #[test]
    fn a_search_finds_size_tokens(head in heads(200), size in 1_usize..60) {
        let taken: Vec<usize> = (0..head.tokens).step_by(3).collect();
        let selector = build_with_prompt(&config(size, None), &head, head.tokens);
        let found = pick_beside(&selector, &head, &taken);
        prop_assert_eq!(found.len(), size.min(head.tokens - taken.len()));
    }

    /// No key has more than `degree` links, a repeated link, or a link to itself.
    #[test]
    fn links_are_bounded_and_distinct(head in heads(120)) {
        let selector = build_with_prompt(&config(5, None), &head, head.tokens);
        for (token, links) in selector.graph.as_ref().unwrap().links().iter().enumerate() {
            let mut distinct = links.clone();
            distinct.sort_unstable();
            distinct.dedup();
            prop_assert!(links.len() <= 4 && distinct.len() == links.len());
            prop_assert!(!links.contains(&(token as u32)));
        }
    }
}

/// Before the end of a prompt everything is read; later tokens take no memory.
#[test]
fn a_prompt_builds_the_graph() {
    let head = Head::new(90, 8, 1, Texture::Gaussian);
    let mut selector = RetrievalAttentionSelector { config: config(5, None), graph: None };
    selector.append(&head.part(0..40));
    assert_eq!((pick_beside(&selector, &head, &[]).len(), selector.index_bytes()), (90, 0));
    selector.observe(&head.first(40).prompt());
    let prompt_bytes = selector.index_bytes();
    assert!((4..=40 * 4 * 4).contains(&prompt_bytes), "{prompt_bytes}");
    selector.append(&head.part(40..90));
    assert_eq!(selector.index_bytes(), prompt_bytes);
    assert_eq!(pick_beside(&selector, &head, &[]).len(), 5);
}

/// A query similar to the prompt's finds more of the best keys than a dissimilar one.
#[test]
fn queries_like_the_prompts_find_more() {
    let head = Head::new(600, 8, 3, Texture::Gaussian);
    let count_found = |queries| {
        let mut selector = RetrievalAttentionSelector { config: config(10, None), graph: None };
        selector.append(&head.part(0..600));
        selector.observe(&prompt(&head, 600, queries));
        let found = pick_beside(&selector, &head, &[]);
        let mut best = Picks::new(600);
        let mut scores = vec![0.0; 600];
        head.step(600).row(1).logits(&mut scores);
        best.take_top(10, &scores);
        found.iter().filter(|token| best.contains(**token)).count()
    };
    let query =
        vattention_core::ndarray::ArrayView1::from(head.step(600).row(1).query()).to_owned();
    let like = vattention_core::ndarray::Array3::from_shape_fn((2, 6, 8), |(member, i, x)| {
        query[x] * (1.0 + 0.05 * ((3 * member + 7 * i + x) % 5) as f32)
    });
    let (with, against) = (count_found(like.view()), count_found(like.mapv(|x| -x).view()));
    assert!(with >= 8 && against <= 2, "{with} and {against} of 10");
}
