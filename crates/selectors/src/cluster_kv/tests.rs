//! Known outputs, laws of selectors, and the picks of exact clusters.

use vattention_testkit::{Head, Texture, laws};

use super::*;
use crate::OracleTopK;
use crate::clusters_golden::{Case, Golden, labels};
use crate::test_picks::pick;

fn config(cluster: u16, block: u16) -> ClusterKv {
    let [cluster, block] = [cluster, block].map(|tokens| NonZeroU16::new(tokens).unwrap());
    ClusterKv { size: Size::Tokens(9), cluster, block, iterations: 10 }
}

laws!(small_blocks, config(5, 6));
laws!(one_token_per_cluster, config(1, 3));
laws!(no_later_block, config(4, u16::MAX));

#[test]
fn golden_clusters_and_picks() {
    #[derive(Deserialize)]
    struct Taken {
        taken: Vec<usize>,
    }
    let golden = Golden::load();
    assert_eq!(golden.cluster_kv.len(), 3);
    for value in &golden.cluster_kv {
        let case: Case<ClusterKv> = serde_json::from_value(value.clone()).unwrap();
        let Taken { taken } = serde_json::from_value(value.clone()).unwrap();
        let mut selector = case.config.build_selector(&golden.head.site());
        golden.head.feed(&mut selector);
        assert_eq!(labels(&selector.blocks[0].clusters), case.labels);
        assert_eq!(golden.head.picks(&selector, &taken), case.picks, "{:?}", case.config);
    }
}

/// With a cluster for each token, picks are the largest logits.
#[test]
fn clusters_of_one_token_give_the_largest_logits() {
    let head = Head::new(60, 8, 3, Texture::Gaussian);
    let mut selector = config(1, 1).build_selector(head.site());
    selector.append(&head.part(0..40));
    selector.observe(&head.first(40).prompt());
    selector.append(&head.part(40..60));
    assert_eq!(selector.blocks.len(), 21);
    for row in head.step(60).rows() {
        let exact = OracleTopK { size: Size::Tokens(9), score: Score::Head };
        let exact = exact.build(head.site()).unwrap();
        assert_eq!(pick(&selector, &row, &[3, 4]), pick(&*exact, &row, &[3, 4]));
    }
}

#[test]
fn tokens_after_the_last_block_are_picked() {
    let head = Head::new(60, 8, 3, Texture::Gaussian);
    let mut selector = config(4, 16).build_selector(head.site());
    selector.append(&head.part(0..30));
    selector.observe(&head.first(30).prompt());
    selector.append(&head.part(30..60));
    for (visible, after) in [(60, 46), (50, 46), (45, 30), (31, 30)] {
        let picks = pick(&selector, &head.step(visible).row(0), &[]);
        assert!((after..visible).all(|token| picks.contains(&token)), "{visible}: {picks:?}");
        assert_eq!(picks.len(), 9 + visible - after, "{visible}: {picks:?}");
    }
}
