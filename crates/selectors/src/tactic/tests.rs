//! Known outputs, laws of selectors, and the picks of exact clusters.

use proptest::prelude::*;
use vattention_testkit::{Head, Texture, heads};

use super::*;
use crate::clusters_golden::{Case, Golden, labels};

fn config(mass: f64, cluster: u16) -> Tactic {
    Tactic {
        mass: Fraction::try_from(mass).unwrap(),
        cluster: NonZeroU16::new(cluster).unwrap(),
        exact: exact(),
        iterations: 10,
    }
}

vattention_testkit::laws!(six_tokens_per_cluster, config(0.7, 6));
vattention_testkit::laws!(one_token_per_cluster, config(0.9, 1));

/// Returns a selector that has observed a head's tokens as a prompt.
fn build_with_prompt(config: &Tactic, head: &Head) -> TacticSelector {
    let mut selector = TacticSelector { config: config.clone(), site: *head.site(), index: None };
    selector.append(&head.part(0..head.tokens));
    selector.observe(&head.prompt());
    selector
}

fn pick(selector: &TacticSelector, head: &Head, taken: &[usize]) -> Vec<usize> {
    let mut picks = Picks::new(head.tokens);
    picks.take_all(taken.iter().copied());
    selector.select(&head.step(head.tokens).row(1), &mut picks);
    picks.iter().collect()
}

#[test]
fn golden_clusters_and_picks() {
    #[derive(Deserialize)]
    struct Taken {
        taken: Vec<usize>,
    }
    let golden = Golden::load();
    assert_eq!(golden.tactic.len(), 4);
    for value in &golden.tactic {
        let case: Case<Tactic> = serde_json::from_value(value.clone()).unwrap();
        let Taken { taken } = serde_json::from_value(value.clone()).unwrap();
        let mut selector =
            TacticSelector { config: case.config.clone(), site: golden.head.site(), index: None };
        golden.head.feed(&mut selector);
        assert_eq!(labels(&selector.index.as_ref().unwrap().clusters), case.labels);
        assert_eq!(golden.head.picks(&selector, &taken), case.picks, "{:?}", case.config);
        let built = golden.head.build(&case.config);
        assert_eq!(golden.head.picks(&*built, &taken), case.picks, "as the registry builds it");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    /// With a cluster for each key and all weights exact, the picks are the fewest tokens that hold
    /// the mass.
    #[test]
    fn exact_clusters_give_top_p(
        tokens in 1_usize..150, seed in 0_u64..1000, mass in 0.05..0.95,
    ) {
        let head = Head::new(tokens, 8, seed, Texture::Gaussian);
        let taken: Vec<usize> = (0..tokens).step_by(5).collect();
        let all = Tactic { exact: Size::Tokens(tokens), ..config(mass, 1) };
        let found = pick(&build_with_prompt(&all, &head), &head, &taken);
        let row = head.step(tokens).row(1);
        let left: Vec<usize> = (0..tokens).filter(|token| !taken.contains(token)).collect();
        let weight = |token: &usize| f64::from(row.logit(*token)).exp();
        let total: f64 = left.iter().map(weight).sum();
        let (inside, outside): (Vec<usize>, Vec<usize>) =
            left.into_iter().partition(|token| found.contains(token));
        let lightest = inside.iter().map(weight).fold(f64::INFINITY, f64::min);
        let held: f64 = inside.iter().map(weight).sum();
        let heaviest = outside.iter().map(weight).fold(0.0, f64::max);
        prop_assert!(heaviest <= lightest * (1.0 + 1e-5));
        prop_assert!(held >= (mass - 1e-5) * total);
        prop_assert!(inside.is_empty() || held - lightest <= (mass + 1e-5) * total);
    }

    /// A larger mass picks all that a smaller one picks.
    #[test]
    fn more_mass_picks_no_less(head in heads(200), a in 0.05..0.95, b in 0.05..0.95) {
        let pick_mass = |mass| pick(&build_with_prompt(&config(mass, 8), &head), &head, &[2, 3]);
        let (few, many) = (pick_mass(f64::min(a, b)), pick_mass(f64::max(a, b)));
        prop_assert!(few.iter().all(|token| many.contains(token)));
    }

    /// Tokens are picked cluster by cluster; of the last cluster only the lower tokens may be
    /// picked.
    #[test]
    fn clusters_are_picked_by_falling_scores(head in heads(200), mass in 0.05..0.95) {
        let selector = build_with_prompt(&config(mass, 8), &head);
        let found = pick(&selector, &head, &[]);
        let clusters = &selector.index.as_ref().unwrap().clusters;
        let scores = clusters.logits(head.step(head.tokens).row(1).query());
        let token_scores = clusters.per_token(&scores, head.tokens);
        let least = found.iter().map(|&token| token_scores[token]).fold(f32::INFINITY, f32::min);
        for (cluster, &score) in scores.iter().enumerate() {
            let members = clusters.members(cluster);
            let count = members.iter().filter(|&&token| found.contains(&(token as usize))).count();
            prop_assert!(score >= least || count == 0);
            prop_assert!(score <= least || count == members.len());
            prop_assert!(members[..count].iter().all(|&token| found.contains(&(token as usize))));
        }
    }

    /// A token after the prompt joins the cluster whose mean is nearest.
    #[test]
    fn later_tokens_join_the_nearest_cluster(head in heads(120)) {
        let mut selector = build_with_prompt(&config(0.5, 8), &head);
        let before = selector.index.as_ref().unwrap().clusters.clone();
        let keys = head.part(0..head.tokens).keys;
        selector.append(&NewTokens { first: head.tokens, keys, values: keys, classes: None });
        let after = &selector.index.as_ref().unwrap().clusters;
        prop_assert_eq!(before.means(), after.means());
        let joined = labels(after).split_off(head.tokens);
        let mut key = vec![0.0; head.dim];
        for (token, &cluster) in joined.iter().enumerate() {
            keys.copy_row(token, &mut key);
            let distance = |mean: Vec<f32>| -> f32 {
                mean.iter().zip(&key).map(|(a, b)| (a - b).powi(2)).sum()
            };
            let means = before.means();
            let distances: Vec<f32> =
                means.rows().into_iter().map(|mean| distance(mean.to_vec())).collect();
            let least = distances.iter().copied().fold(f32::INFINITY, f32::min);
            prop_assert!(distances[cluster] <= least * (1.0 + 1e-5));
        }
    }
}

/// Before the end of a prompt everything is read; another prompt clusters all tokens again.
#[test]
fn a_prompt_builds_the_clusters() {
    let head = Head::new(90, 8, 1, Texture::Gaussian);
    let mut selector = TacticSelector { config: config(0.5, 9), site: *head.site(), index: None };
    selector.append(&head.part(0..40));
    assert_eq!((pick(&selector, &head, &[]).len(), selector.index_bytes()), (90, 0));
    selector.observe(&head.first(40).prompt());
    let prompt_bytes = selector.index_bytes();
    assert_eq!(prompt_bytes, 40 * 4 + 2 * 4 * 8 * 4);
    selector.append(&head.part(40..90));
    assert_eq!(selector.index_bytes(), prompt_bytes + 50 * 4);
    selector.observe(&head.prompt());
    assert_eq!(selector.index_bytes(), 90 * 4 + 2 * 10 * 8 * 4);
    assert!(pick(&selector, &head, &[]).len() < 90);
}

#[test]
fn samplers_receive_the_clusters_scores() {
    let head = Head::new(60, 8, 1, Texture::Gaussian);
    let selector = build_with_prompt(&config(0.5, 8), &head);
    let row = head.step(60).row(0);
    let mut picks = Picks::new(60);
    picks.store_scores();
    selector.select(&row, &mut picks);
    let clusters = &selector.index.as_ref().unwrap().clusters;
    let expected = clusters.per_token(&clusters.logits(row.query()), 60);
    assert_eq!(picks.scores().unwrap(), expected);
}
