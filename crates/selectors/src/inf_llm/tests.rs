use super::*;
use crate::prompt_attention::testing::{MEMBERS, pick, prompt, queries};
use proptest::prelude::*;
use vattention_testkit::{Head, Texture, heads, laws};

fn config(size: usize, block: usize, representatives: usize, window: usize) -> InfLlm {
    let [block, representatives, window] =
        [block, representatives, window].map(|x| NonZeroUsize::new(x).unwrap());
    InfLlm { size: Size::Tokens(size), block, representatives, window }
}

laws!(short_window, config(9, 8, 2, 20));
laws!(long_window, config(9, 8, 2, 4096));
laws!(all_tokens_represent, config(9, 8, 8, 20));

/// Returns the mean key of some tokens of a head.
fn mean_key(head: &Head, tokens: &[usize]) -> Vec<f64> {
    let mut sum = vec![0.0; head.dim];
    let mut key = vec![0.0; head.dim];
    for &token in tokens {
        head.part(0..head.tokens).keys.copy_row(token, &mut key);
        sum.iter_mut().zip(&key).for_each(|(sum, &x)| *sum += f64::from(x));
    }
    sum.into_iter().map(|sum| sum / tokens.len() as f64).collect()
}

/// Reference implementation: attention received, added row by row.
#[derive(Default)]
struct Model {
    received: Vec<f64>,
}

impl Model {
    fn add(&mut self, position: usize, window: usize, tokens: &[u32], weights: &[f32]) {
        for (&token, &weight) in tokens.iter().zip(weights) {
            if token as usize + window > position {
                self.received[token as usize] += round_weight(weight);
            }
        }
    }

    /// Returns the representatives of the block that starts at `first`.
    fn representatives(&self, first: usize, block: usize, count: usize) -> Vec<usize> {
        let mut tokens: Vec<usize> = (first..self.received.len().min(first + block)).collect();
        if tokens.iter().any(|&token| self.received[token] > 0.0) {
            tokens
                .sort_by(|&a, &b| (self.received[b] as f32).total_cmp(&(self.received[a] as f32)));
            tokens.truncate(count);
        }
        tokens
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// After a prompt, and after every later step and token, each block's key is the mean of the
    /// keys of its representatives.
    #[test]
    fn block_keys_are_the_means_of_the_most_attended(
        head in heads(80),
        (block, representatives, window) in (1_usize..20, 1_usize..6, 1_usize..50),
        observed in 0_usize..6,
        steps in prop::collection::vec(prop::collection::vec(0_u8..6, 80), 0..10),
    ) {
        let mut selector = InfLlmSelector {
            size: Size::Tokens(5),
            window,
            blocks: MemoryBlocks::new(block, representatives, head.dim),
        };
        let mut tokens = head.tokens.saturating_sub(steps.len()).max(1);
        selector.append(&head.part(0..tokens));
        let mut model = Model { received: vec![0.0; tokens] };
        if observed > 0 {
            let queries = queries(&head, observed.min(tokens));
            let prompt = prompt(&head, tokens, queries.view());
            selector.observe(&prompt);
            let all: Vec<u32> = (0..tokens as u32).collect();
            for_each_row(&prompt, observed, &all, |row| {
                model.add(row.position, window, &all, row.weights);
            });
        }
        for weights in steps {
            if tokens < head.tokens {
                selector.append(&head.part(tokens..tokens + 1));
                model.received.push(0.0);
                tokens += 1;
            }
            // Some tokens are appended without a step in between.
            if weights[0] % 2 == 0 {
                continue;
            }
            for (member, shift) in [0_u8, 3].into_iter().enumerate() {
                let all = weights[..tokens].iter().map(|&w| (w + shift) % 6).zip(0_u32..);
                let (read, weights): (Vec<u32>, Vec<f32>) =
                    all.filter(|&(w, _)| w < 4).map(|(w, t)| (t, f32::from(w) / 64.0)).unzip();
                selector.feedback(
                    &head.step(tokens).row(member),
                    &AttentionWeights { tokens: &read, weights: &weights, sink: 0.0 },
                );
                model.add(tokens - 1, window, &read, &weights);
            }
        }
        for first in (0..tokens).step_by(block) {
            let chosen = model.representatives(first, block, representatives);
            let all = block.min(tokens - first);
            prop_assert!(chosen.len() == all || chosen.len() == representatives);
            for (j, want) in mean_key(&head, &chosen).into_iter().enumerate() {
                let mut unit = vec![0.0; head.dim];
                unit[j] = 1.0;
                let keys = head.part(0..tokens).keys;
                let got = f64::from(selector.blocks.scores(&unit, keys)[first]);
                prop_assert!((got - want).abs() <= 1e-5 * want.abs().max(1.0), "{got} {want}");
            }
        }
    }

    /// If all tokens of a block represent it, attention changes nothing.
    #[test]
    fn attention_is_irrelevant_if_all_tokens_represent(head in heads(80), block in 1_usize..20) {
        let mut attended = config(9, block, block, 4096).build(head.site()).unwrap();
        attended.append(&head.part(0..head.tokens));
        let fresh = attended.clone();
        attended.observe(&head.prompt());
        let all = |selector: &dyn Selector| pick(selector, &head, head.tokens);
        prop_assert_eq!(all(&*attended), all(&*fresh));
    }

    /// Blocks are picked in the order of their scores, the last one in part. Tokens that are
    /// already picked do not count.
    #[test]
    fn blocks_are_picked_in_order_of_their_scores(
        head in heads(80), block in 1_usize..20, size in 1_usize..60,
    ) {
        let mut selector = InfLlmSelector {
            size: Size::Tokens(size), window: 1, blocks: MemoryBlocks::new(block, 1, head.dim),
        };
        selector.append(&head.part(0..head.tokens));
        let row = head.step(head.tokens).row(1);
        let query: Vec<f32> = row.group().sum_axis(vattention_core::ndarray::Axis(0)).to_vec();
        let scores = selector.blocks.scores(&query, head.part(0..head.tokens).keys);
        let mut picks = Picks::new(head.tokens);
        picks.take_range(3..7);
        let before = picks.len();
        selector.select(&row, &mut picks);
        prop_assert_eq!(picks.len() - before, size.min(head.tokens - before));
        let mut order: Vec<usize> = (0..head.tokens).filter(|t| !(3..7).contains(t)).collect();
        order.sort_by(|&a, &b| (scores[b] + 0.0).total_cmp(&(scores[a] + 0.0)));
        order.truncate(size);
        prop_assert!(order.iter().all(|&token| picks.contains(token)));
    }

    #[test]
    fn scores_are_linear_in_the_query(head in heads(80), block in 1_usize..20) {
        let mut blocks = MemoryBlocks::new(block, 2, head.dim);
        let keys = head.part(0..head.tokens).keys;
        blocks.append(keys);
        let queries = queries(&head, 2);
        let query = |i: usize| queries.slice(vattention_core::ndarray::s![0, i, ..]).to_vec();
        let sum: Vec<f32> = query(0).iter().zip(query(1)).map(|(a, b)| 2.0 * a - b).collect();
        let [a, b, sum] = [query(0), query(1), sum].map(|q| blocks.scores(&q, keys));
        for ((a, b), sum) in a.iter().zip(&b).zip(&sum) {
            let scale = a.abs().max(b.abs()).max(1.0);
            prop_assert!((2.0 * a - b - sum).abs() <= 1e-4 * scale);
        }
    }
}

/// Attention is dropped once no query can add to it.
#[test]
fn attention_is_stored_for_the_window_only() {
    let head = Head::new(64, 2, 1, Texture::Gaussian);
    let mut selector = config(9, 8, 2, 20).build(head.site()).unwrap();
    selector.append(&head.part(0..64));
    let keys = 8 * (2 * 4 + size_of_val(&(0_usize, true, true)));
    assert_eq!(selector.index_bytes(), keys + 64 * 8);
    selector.observe(&head.prompt());
    assert_eq!(selector.index_bytes(), keys + 24 * 8, "20 tokens are in three blocks");
    for member in 0..MEMBERS {
        let attended =
            AttentionWeights { tokens: &[3, 39, 60, 63], weights: &[0.25; 4], sink: 0.0 };
        selector.feedback(&head.step(64).row(member), &attended);
    }
    assert_eq!(selector.index_bytes(), keys + 24 * 8);
}

#[test]
fn a_block_may_be_larger_than_the_context() {
    let head = Head::new(10, 2, 1, Texture::Gaussian);
    let mut selector = config(4, usize::MAX, usize::MAX, usize::MAX).build(head.site()).unwrap();
    selector.append(&head.part(0..10));
    selector.observe(&head.prompt());
    assert_eq!(pick(&*selector, &head, 10), [0, 1, 2, 3]);
}
