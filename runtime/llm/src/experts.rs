//! Feed-forward network of experts, of which each token uses the few that its router prefers.

use crate::Result;
use crate::config::{Config, ExpertWeights, Experts};
use crate::gated::Gated;
use crate::inputs::LinearInputs;
use crate::linear::{Linear, LinearScratch};
use crate::weights::{CheckpointTensors, ExpertMaps};

/// Router, and the experts that it chooses from.
#[derive(Clone, Debug)]
pub(crate) struct ExpertNetwork {
    router: Linear,
    all: Vec<Gated>,
    /// Expert that all tokens use.
    shared: Option<Gated>,
    per_token: usize,
    weights: ExpertWeights,
}

/// Token that an expert was chosen for, and the weight of the expert's input or output.
#[derive(Clone, Copy, Debug, PartialEq)]
struct RoutedToken {
    token: usize,
    weight: f32,
}

impl ExpertNetwork {
    pub(crate) fn open(
        weights: &mut CheckpointTensors,
        layer: usize,
        config: &Config,
        experts: &Experts,
    ) -> Result<Self> {
        let Experts { count, per_token, inner, biased, shared, .. } = *experts;
        let outer = config.hidden_size;
        let name = format!("blk.{layer}.ffn_gate_inp");
        let router = Linear::open(weights, &name, [outer, count], biased)?;
        let ExpertMaps { gates, ups, downs } = weights.experts(layer, outer, experts)?;
        let activation = config.block.activation;
        let mut all = Vec::with_capacity(count);
        for (gate, (up, down)) in gates.into_iter().zip(ups.into_iter().zip(downs)) {
            let [gate, up, down] =
                [gate, up, down].map(|map| Linear::with_bias(map.weight, map.bias));
            all.push(Gated { gate, up, down, activation });
        }
        let open_shared = || Gated::open(weights, layer, "_shexp", inner, config);
        let shared = shared.then(open_shared).transpose()?;
        Ok(Self { router, all, shared, per_token, weights: experts.weights })
    }

    /// Adds the network's output for `x`, `[n, hidden_size]`, to `y` of the same shape, expert by
    /// expert in ascending order. Reads only the weights of experts that some row chose.
    pub(crate) fn add(&self, x: &LinearInputs<'_>, y: &mut [f32], scratch: &mut LinearScratch) {
        let (numbers, n) = (x.numbers(), x.rows());
        let size = numbers.len() / n;
        let mut logits = vec![0.0; n * self.all.len()];
        self.router.apply(x, &mut logits, scratch);
        if let Some(shared) = &self.shared {
            shared.add(x, y, scratch);
        }
        let scales_inputs = self.weights == ExpertWeights::InputSigmoid;
        let (mut rows, mut out) = (Vec::new(), Vec::new());
        for (expert, chosen) in self.all.iter().zip(self.choose(&logits)) {
            if chosen.is_empty() {
                continue;
            }
            rows.clear();
            for &RoutedToken { token, weight } in &chosen {
                let factor = if scales_inputs { weight } else { 1.0 };
                let row = &numbers[token * size..(token + 1) * size];
                rows.extend(row.iter().map(|x| factor * x));
            }
            out.clear();
            out.resize(rows.len(), 0.0);
            expert.add(&LinearInputs::new(&rows, chosen.len()), &mut out, scratch);
            for (RoutedToken { token, weight }, out) in chosen.iter().zip(out.chunks_exact(size)) {
                let factor = if scales_inputs { 1.0 } else { *weight };
                let y = &mut y[token * size..(token + 1) * size];
                y.iter_mut().zip(out).for_each(|(y, out)| *y += factor * out);
            }
        }
    }

    /// Returns for each expert the tokens that chose it, from the router's logits `[n, experts]`.
    fn choose(&self, logits: &[f32]) -> Vec<Vec<RoutedToken>> {
        let mut chosen = vec![Vec::new(); self.all.len()];
        for (token, logits) in logits.chunks_exact(self.all.len()).enumerate() {
            for (expert, weight) in choose_experts(logits, self.per_token, self.weights) {
                chosen[expert].push(RoutedToken { token, weight });
            }
        }
        chosen
    }
}

/// Returns the `count` experts of the largest logits with their weights; of equal logits, the lower
/// number comes first.
fn choose_experts(logits: &[f32], count: usize, weights: ExpertWeights) -> Vec<(usize, f32)> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let most = logits[order[0]];
    let exponential = |expert: &usize| (logits[*expert] - most).exp();
    let all: f32 = (0..logits.len()).map(|expert| exponential(&expert)).sum();
    order.truncate(count);
    let chosen: f32 = order.iter().map(exponential).sum();
    let weight = |expert: usize| match weights {
        ExpertWeights::ChosenSoftmax => exponential(&expert) / chosen,
        ExpertWeights::Softmax => exponential(&expert) / all,
        ExpertWeights::InputSigmoid => 1.0 / (1.0 + (-logits[expert]).exp()),
    };
    order.into_iter().map(|expert| (expert, weight(expert))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::GateActivation;
    use crate::matrix::Matrix;

    #[test]
    fn the_largest_logits_are_chosen_and_the_lower_of_equals() {
        let ln = |x: f32| x.ln();
        let logits = [ln(1.0), ln(4.0), ln(3.0), ln(4.0), ln(4.0)];
        let close = |found: Vec<(usize, f32)>, expected: [(usize, f32); 2]| {
            assert_eq!(found.len(), 2);
            for (found, expected) in found.iter().zip(expected) {
                assert_eq!(found.0, expected.0);
                assert!((found.1 - expected.1).abs() < 1e-6, "{found:?}");
            }
        };
        let choose = |weights| choose_experts(&logits, 2, weights);
        close(choose(ExpertWeights::Softmax), [(1, 0.25), (3, 0.25)]);
        close(choose(ExpertWeights::ChosenSoftmax), [(1, 0.5), (3, 0.5)]);
        close(choose(ExpertWeights::InputSigmoid), [(1, 0.8), (3, 0.8)]);
    }

    /// Builds experts of 2 inputs and 1 inner element, which return `(number + 1) · silu(x0) · x0`;
    /// the weights of the expert `poisoned` are NaN.
    fn experts(poisoned: Option<usize>) -> ExpertNetwork {
        let linear = |numbers: Vec<f32>, shape| Linear::new(Matrix::f32(numbers, shape));
        let expert = |number: usize| {
            let one = if poisoned == Some(number) { f32::NAN } else { 1.0 };
            let scale = one * (number + 1) as f32;
            let [gate, up] = [0, 1].map(|_| linear(vec![one, 0.0], [1, 2]));
            let down = linear(vec![scale, 0.0], [2, 1]);
            Gated { gate, up, down, activation: GateActivation::Silu }
        };
        // Expert 0 prefers a large second input, expert 1 a small one, expert 2 is indifferent.
        let router = linear(vec![0.0, 1.0, 0.0, -1.0, 0.0, 0.0], [3, 2]);
        let weights = ExpertWeights::ChosenSoftmax;
        let all = (0..3).map(expert).collect();
        ExpertNetwork { router, all, shared: None, per_token: 1, weights }
    }

    fn added(experts: &ExpertNetwork, x: &[f32]) -> Vec<f32> {
        let mut y = vec![10.0; x.len()];
        experts.add(&LinearInputs::new(x, x.len() / 2), &mut y, &mut LinearScratch::default());
        y
    }

    #[test]
    fn weights_of_experts_that_were_not_chosen_are_not_read() {
        let silu = 2.0 / (1.0 + (-2.0_f32).exp());
        for (poisoned, x, expert) in [(1, 3.0, 0), (2, 3.0, 0), (0, -3.0, 1), (2, -3.0, 1)] {
            let y = added(&experts(Some(poisoned)), &[2.0, x]);
            let expected = 10.0 + 2.0 * silu * (expert + 1) as f32;
            assert!((y[0] - expected).abs() < 1e-5 && y[1] == 10.0, "{y:?}; expected {expected}");
        }
        assert!(added(&experts(Some(0)), &[2.0, 3.0])[0].is_nan(), "what is chosen is read");
    }

    #[test]
    fn rows_together_equal_single_rows() {
        let rows = [[2.0, 3.0], [1.0, -3.0], [-1.0, 0.5], [0.5, -0.1], [3.0, 2.0]];
        let together = added(&experts(None), rows.as_flattened());
        for (row, together) in rows.iter().zip(together.chunks_exact(2)) {
            let alone = added(&experts(None), row);
            assert!((alone[0] - together[0]).abs() < 1e-6 && together[1] == 10.0);
        }
    }

    #[test]
    fn large_logits_stay_finite() {
        assert_eq!(choose_experts(&[1e4, -1e4], 2, ExpertWeights::Softmax), [(0, 1.0), (1, 0.0)]);
    }
}
