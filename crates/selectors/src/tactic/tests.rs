//! Known outputs, the laws, and what is expected where the clusters say everything.

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

vattention_testkit::laws!(by_mass, config(0.7, 6));
vattention_testkit::laws!(of_small_clusters, config(0.9, 1));

/// A worker that has seen a head's tokens as a prompt.
fn shown(config: &Tactic, head: &Head) -> TacticSelector {
    let mut worker = TacticSelector { config: config.clone(), site: *head.site(), index: None };
    worker.append(&head.part(0..head.tokens));
    worker.observe(&head.prompt());
    worker
}

fn picked(worker: &TacticSelector, head: &Head, taken: &[usize]) -> Vec<usize> {
    let mut picks = Picks::new(head.tokens);
    picks.take_all(taken.iter().copied());
    worker.select(&head.step(head.tokens).row(1), &mut picks);
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
        let mut worker =
            TacticSelector { config: case.config.clone(), site: golden.head.site(), index: None };
        golden.head.show(&mut worker);
        assert_eq!(labels(&worker.index.as_ref().unwrap().clusters), case.labels);
        assert_eq!(golden.head.picks(&worker, &taken), case.picks, "{:?}", case.config);
        let built = golden.head.built(&case.config);
        assert_eq!(golden.head.picks(&*built, &taken), case.picks, "as the registry builds it");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    /// With a cluster for each key and all weights exact, the picks are the fewest tokens that hold the mass.
    #[test]
    fn where_clusters_say_everything_it_is_top_p(tokens in 1_usize..150, seed in 0_u64..1000, mass in 0.05..0.95) {
        let head = Head::new(tokens, 8, seed, Texture::Gaussian);
        let taken: Vec<usize> = (0..tokens).step_by(5).collect();
        let all = Tactic { exact: Size::Tokens(tokens), ..config(mass, 1) };
        let found = picked(&shown(&all, &head), &head, &taken);
        let row = head.step(tokens).row(1);
        let left: Vec<usize> = (0..tokens).filter(|token| !taken.contains(token)).collect();
        let weight = |token: &usize| f64::from(row.logit(*token)).exp();
        let total: f64 = left.iter().map(weight).sum();
        let (inside, outside): (Vec<usize>, Vec<usize>) = left.into_iter().partition(|token| found.contains(token));
        let lightest = inside.iter().map(weight).fold(f64::INFINITY, f64::min);
        let held: f64 = inside.iter().map(weight).sum();
        prop_assert!(outside.iter().map(weight).all(|heaviest| heaviest <= lightest * (1.0 + 1e-5)));
        prop_assert!(held >= (mass - 1e-5) * total);
        prop_assert!(inside.is_empty() || held - lightest <= (mass + 1e-5) * total);
    }

    /// More mass picks no less.
    #[test]
    fn more_mass_picks_no_less(head in heads(200), a in 0.05..0.95, b in 0.05..0.95) {
        let of = |mass| picked(&shown(&config(mass, 8), &head), &head, &[2, 3]);
        let (few, many) = (of(f64::min(a, b)), of(f64::max(a, b)));
        prop_assert!(few.iter().all(|token| many.contains(token)));
    }

    /// Tokens are picked cluster by cluster, of which the last may be picked in part, the lower tokens first.
    #[test]
    fn clusters_are_picked_by_falling_scores(head in heads(200), mass in 0.05..0.95) {
        let worker = shown(&config(mass, 8), &head);
        let found = picked(&worker, &head, &[]);
        let clusters = &worker.index.as_ref().unwrap().clusters;
        let scores = clusters.logits(head.step(head.tokens).row(1).query());
        let of_tokens = clusters.per_token(&scores, head.tokens);
        let least = found.iter().map(|&token| of_tokens[token]).fold(f32::INFINITY, f32::min);
        for (cluster, &score) in scores.iter().enumerate() {
            let members = clusters.members(cluster);
            let count = members.iter().filter(|&&token| found.contains(&(token as usize))).count();
            prop_assert!(score >= least || count == 0);
            prop_assert!(score <= least || count == members.len());
            prop_assert!(members[..count].iter().all(|&token| found.contains(&(token as usize))));
        }
    }

    /// A token that comes after the prompt joins the cluster whose mean is nearest.
    #[test]
    fn later_tokens_join_the_nearest_cluster(head in heads(120)) {
        let mut worker = shown(&config(0.5, 8), &head);
        let before = worker.index.as_ref().unwrap().clusters.clone();
        let keys = head.part(0..head.tokens).keys;
        worker.append(&NewTokens { first: head.tokens, keys, values: keys, classes: None });
        let after = &worker.index.as_ref().unwrap().clusters;
        prop_assert_eq!(before.means(), after.means());
        let joined = labels(after).split_off(head.tokens);
        let mut key = vec![0.0; head.dim];
        for (token, &cluster) in joined.iter().enumerate() {
            keys.copy_row(token, &mut key);
            let distance = |mean: Vec<f32>| -> f32 { mean.iter().zip(&key).map(|(a, b)| (a - b).powi(2)).sum() };
            let distances: Vec<f32> = before.means().rows().into_iter().map(|mean| distance(mean.to_vec())).collect();
            let least = distances.iter().copied().fold(f32::INFINITY, f32::min);
            prop_assert!(distances[cluster] <= least * (1.0 + 1e-5));
        }
    }
}

/// Until a prompt ends everything is read; another one clusters all tokens anew.
#[test]
fn a_prompt_makes_the_clusters() {
    let head = Head::new(90, 8, 1, Texture::Gaussian);
    let mut worker = TacticSelector { config: config(0.5, 9), site: *head.site(), index: None };
    worker.append(&head.part(0..40));
    assert_eq!((picked(&worker, &head, &[]).len(), worker.index_bytes()), (90, 0));
    worker.observe(&head.first(40).prompt());
    let of_prompt = worker.index_bytes();
    assert_eq!(of_prompt, 40 * 4 + 2 * 4 * 8 * 4);
    worker.append(&head.part(40..90));
    assert_eq!(worker.index_bytes(), of_prompt + 50 * 4);
    worker.observe(&head.prompt());
    assert_eq!(worker.index_bytes(), 90 * 4 + 2 * 10 * 8 * 4);
    assert!(picked(&worker, &head, &[]).len() < 90);
}

#[test]
fn samplers_are_told_the_clusters_scores() {
    let head = Head::new(60, 8, 1, Texture::Gaussian);
    let worker = shown(&config(0.5, 8), &head);
    let row = head.step(60).row(0);
    let mut picks = Picks::new(60);
    picks.keep_scores();
    worker.select(&row, &mut picks);
    let clusters = &worker.index.as_ref().unwrap().clusters;
    let expected = clusters.per_token(&clusters.logits(row.query()), 60);
    assert_eq!(picks.scores().unwrap(), expected);
}
