//! Known outputs, the laws, and what the graph and a search promise.

use proptest::prelude::*;
use vattention_testkit::{Head, Texture, heads};

use super::*;
use crate::clusters_golden::Golden;
use crate::learned::testing::{prompt, queries};
use crate::picked::picked;

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

/// What a member of the group picks beside what is taken.
fn picked_beside(worker: &RetrievalAttentionSelector, head: &Head, taken: &[usize]) -> Vec<usize> {
    let mut found = picked(worker, &head.step(head.tokens).row(1), taken);
    found.retain(|token| !taken.contains(token));
    found
}

/// A worker that has seen a head's first tokens as a prompt, with its last queries.
fn shown(config: &RetrievalAttention, head: &Head, tokens: usize) -> RetrievalAttentionSelector {
    let mut worker = RetrievalAttentionSelector { config: config.clone(), graph: None };
    worker.append(&head.part(0..tokens));
    let queries = queries(head, 12.min(tokens));
    worker.observe(&prompt(head, tokens, queries.view()));
    worker.append(&head.part(tokens..head.tokens));
    worker
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
        let mut worker = RetrievalAttentionSelector { config: case.config.clone(), graph: None };
        golden.head.show(&mut worker);
        assert_eq!(worker.graph.as_ref().unwrap().links(), case.links);
        assert_eq!(golden.head.picks(&worker, &case.taken), case.picks, "{:?}", case.config);
        let built = golden.head.built(&case.config);
        assert_eq!(
            golden.head.picks(&*built, &case.taken),
            case.picks,
            "as the registry builds it"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    /// A beam of all tokens reaches them all, those after the prompt too: its picks are the exact top-k.
    #[test]
    fn a_beam_of_all_tokens_finds_the_best(head in heads(200), size in 1_usize..60, after in 0_usize..40) {
        let taken: Vec<usize> = (0..head.tokens).step_by(7).collect();
        let all = config(size, Some(head.tokens));
        let worker = shown(&all, &head, head.tokens - after.min(head.tokens - 1));
        let row = head.step(head.tokens).row(1);
        let mut scores = vec![0.0; head.tokens];
        row.logits(&mut scores);
        let mut best = Picks::new(head.tokens);
        best.take_all(taken.iter().copied());
        best.take_top(size, &scores);
        let best: Vec<usize> = best.iter().filter(|token| !taken.contains(token)).collect();
        prop_assert_eq!(picked_beside(&worker, &head, &taken), best);
    }

    /// As many as are asked for, of those that are left.
    #[test]
    fn as_many_are_taken_as_are_asked_for(head in heads(200), size in 1_usize..60) {
        let taken: Vec<usize> = (0..head.tokens).step_by(3).collect();
        let found = picked_beside(&shown(&config(size, None), &head, head.tokens), &head, &taken);
        prop_assert_eq!(found.len(), size.min(head.tokens - taken.len()));
    }

    /// No key has more links than `degree`, each once, and none to itself; links go to keys that a query has in its list.
    #[test]
    fn links_are_few_and_each_once(head in heads(120)) {
        let worker = shown(&config(5, None), &head, head.tokens);
        for (token, links) in worker.graph.as_ref().unwrap().links().iter().enumerate() {
            let mut distinct = links.clone();
            distinct.sort_unstable();
            distinct.dedup();
            prop_assert!(links.len() <= 4 && distinct.len() == links.len() && !links.contains(&(token as u32)));
        }
    }
}

/// Until a prompt ends everything is read; later tokens take no bytes.
#[test]
fn a_prompt_makes_the_graph() {
    let head = Head::new(90, 8, 1, Texture::Gaussian);
    let mut worker = RetrievalAttentionSelector { config: config(5, None), graph: None };
    worker.append(&head.part(0..40));
    assert_eq!((picked_beside(&worker, &head, &[]).len(), worker.index_bytes()), (90, 0));
    worker.observe(&head.first(40).prompt());
    let of_prompt = worker.index_bytes();
    assert!((4..=40 * 4 * 4).contains(&of_prompt), "{of_prompt}");
    worker.append(&head.part(40..90));
    assert_eq!(worker.index_bytes(), of_prompt);
    assert_eq!(picked_beside(&worker, &head, &[]).len(), 5);
}

/// Where the prompt's queries lead, another query like them finds more than where they do not.
#[test]
fn a_search_finds_what_the_prompts_queries_attended_to() {
    let head = Head::new(600, 8, 3, Texture::Gaussian);
    let of = |queries| {
        let mut worker = RetrievalAttentionSelector { config: config(10, None), graph: None };
        worker.append(&head.part(0..600));
        worker.observe(&prompt(&head, 600, queries));
        let found = picked_beside(&worker, &head, &[]);
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
    let (with, against) = (of(like.view()), of(like.mapv(|x| -x).view()));
    assert!(with >= 8 && against <= 2, "{with} and {against} of 10");
}
