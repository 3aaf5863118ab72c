//! Rows whose residual is known, and samples of the residual.

use ndarray::{Array1, ArrayView1};
use vattention_core::{
    Row, SampleStats, Site,
    sample::{Order, Sample, scale_up},
    step::{Softmax, Stream},
};

use crate::Exact;
use crate::metrics::RowError;

/// One row: sums over the attention sink and the always-read tokens, and all residual tokens.
pub(super) struct ResidualPopulation {
    site: Site,
    member: usize,
    query: u32,
    visible: usize,
    max_norm_v: f64,
    /// Sums over the attention sink and the always-read tokens, relative to the row's largest
    /// logit.
    always_read: Softmax,
    /// `e` of the residual, `[n_s]`, relative to the row's largest logit.
    e: Vec<f64>,
    /// Values of the residual, `[n_s · value_dim]`.
    values: Vec<f32>,
    exact: Exact,
}

impl ResidualPopulation {
    /// Creates a row that always reads the tokens `taken`, ascending.
    pub(super) fn new(row: &Row<'_>, taken: &[u32]) -> Self {
        let dim = row.values().dim();
        let mut logits = vec![0.0; row.visible()];
        row.logits(&mut logits);
        let sink = row.sink_logit().unwrap_or(f32::NEG_INFINITY);
        let shift = f64::from(logits.iter().copied().fold(sink, f32::max));
        let (mut all, mut always_read) = (row.empty_sums(), row.empty_sums());
        let mut max_norm_v = 0.0_f64;
        let (mut e, mut values) = (Vec::new(), Vec::new());
        let mut value = vec![0.0; dim];
        for (token, &logit) in logits.iter().enumerate() {
            row.values().copy_row(token, &mut value);
            let logit = f64::from(logit);
            max_norm_v = max_norm_v.max(norm(&value));
            all.add(logit, 1.0, &value);
            if taken.binary_search(&(token as u32)).is_ok() {
                always_read.add(logit, 1.0, &value);
            } else {
                e.push((logit - shift).exp());
                values.extend_from_slice(&value);
            }
        }
        always_read.rebase(shift);
        Self {
            site: *row.site(),
            member: row.member(),
            query: row.step(),
            visible: row.visible(),
            max_norm_v,
            always_read,
            e,
            values,
            exact: Exact {
                output: Array1::from(all.output()),
                log_denominator: all.log_denominator(),
            },
        }
    }

    /// Layer and query head.
    pub(super) fn head(&self) -> (usize, usize) {
        (self.site.layer, self.site.kv_head * self.site.shape.group() + self.member)
    }

    /// Number of residual tokens, `n_s`.
    pub(super) fn len(&self) -> usize {
        self.e.len()
    }

    /// Number of visible tokens.
    pub(super) fn visible(&self) -> usize {
        self.visible
    }

    /// Residual tokens in the order in which the sampler of sequence `trial` draws them, `[n_s]`.
    pub(super) fn draw_order(&self, trial: u32) -> Vec<usize> {
        let site = Site { sequence: trial, ..self.site };
        let stream = Stream::new(&site, 0, self.query, self.member);
        Order::new(self.len(), &stream).tokens().collect()
    }

    /// Statistics of a sample that contains the whole residual: the true moments.
    pub(super) fn truth(&self) -> SampleStats {
        self.stats(&self.e, &self.values)
    }

    /// Statistics of the sample of the first `b` tokens of an order.
    pub(super) fn sample_stats(&self, order: &[usize], b: usize) -> SampleStats {
        let e: Vec<f64> = order[..b].iter().map(|&token| self.e[token]).collect();
        let values: Vec<f32> =
            order[..b].iter().flat_map(|&token| self.value(token)).copied().collect();
        self.stats(&e, &values)
    }

    fn stats(&self, e: &[f64], values: &[f32]) -> SampleStats {
        SampleStats::new(&Sample {
            e,
            values,
            certain: &self.always_read,
            n_s: self.len(),
            visible: self.visible,
            query_heads: self.site.shape.query_heads,
            max_norm_v: self.max_norm_v,
            bound: self.e.iter().copied().reduce(f64::max),
        })
    }

    /// Estimates `D^` from the first `sizes[i]` tokens of an order, relative to the row's largest
    /// logit.
    pub(super) fn denominators(&self, order: &[usize], sizes: &[usize]) -> Vec<f64> {
        let mut sums = vec![0.0];
        for &token in &order[..largest(sizes)] {
            sums.push(sums[sums.len() - 1] + self.e[token]);
        }
        let total = |&b: &usize| self.always_read.denominator() + scale_up(b, self.len()) * sums[b];
        sizes.iter().map(total).collect()
    }

    /// Errors of the estimates from the first `sizes[i]` tokens of an order.
    ///
    /// Cost: O(largest size · value_dim).
    pub(super) fn errors(&self, order: &[usize], sizes: &[usize]) -> Vec<RowError> {
        let error = |estimate: Softmax| {
            let output: Vec<f32> = estimate.output().into_iter().map(|x| x as f32).collect();
            RowError::new(ArrayView1::from(&output), estimate.log_denominator(), &self.exact)
        };
        self.estimates(order, sizes).into_iter().map(error).collect()
    }

    /// Deviations from the exact output of the outputs `[value_dim]` that are estimated from the
    /// first `sizes[i]` tokens of an order.
    pub(super) fn deviations(&self, order: &[usize], sizes: &[usize]) -> Vec<Array1<f64>> {
        let deviation = |estimate: Softmax| Array1::from(estimate.output()) - &self.exact.output;
        self.estimates(order, sizes).into_iter().map(deviation).collect()
    }

    /// Estimated sums from the first `sizes[i]` tokens of an order.
    fn estimates(&self, order: &[usize], sizes: &[usize]) -> Vec<Softmax> {
        let mut ascending: Vec<usize> = (0..sizes.len()).collect();
        ascending.sort_by_key(|&i| sizes[i]);
        let mut estimates = vec![None; sizes.len()];
        let (mut d, mut n) = (0.0, vec![0.0; self.exact.output.len()]);
        let mut drawn = 0;
        for i in ascending {
            for &token in &order[drawn..sizes[i]] {
                d += self.e[token];
                for (n, &v) in n.iter_mut().zip(self.value(token)) {
                    *n += self.e[token] * f64::from(v);
                }
            }
            drawn = sizes[i];
            let mut sums = Softmax::from_sums(self.always_read.shift(), d, n.clone());
            sums.scale(scale_up(drawn, self.len()));
            sums.merge(&self.always_read);
            estimates[i] = Some(sums);
        }
        estimates.into_iter().flatten().collect()
    }

    /// Squared norm of the exact output.
    pub(super) fn square(&self) -> f64 {
        self.exact.output.dot(&self.exact.output)
    }

    /// Residual tokens, in descending order of their weights.
    pub(super) fn sort_by_weight(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_by(|&a, &b| self.e[b].total_cmp(&self.e[a]));
        order
    }

    /// Attention weight of the always-read tokens together with some residual tokens.
    pub(super) fn mass(&self, tokens: &[usize]) -> f64 {
        let all = (self.exact.log_denominator - self.always_read.shift()).exp();
        let weights: f64 = tokens.iter().map(|&token| self.e[token]).sum();
        (self.always_read.denominator() + weights) / all
    }

    /// Returns the row that also always reads these tokens of the residual.
    pub(super) fn with_always_read(&self, tokens: &[usize]) -> Self {
        let mut taken = vec![false; self.len()];
        for &token in tokens {
            taken[token] = true;
        }
        let mut always_read = self.always_read.clone();
        let (mut e, mut values) = (Vec::new(), Vec::new());
        for (token, &weight) in self.e.iter().enumerate() {
            let value = self.value(token);
            if taken[token] {
                always_read.add(self.always_read.shift(), weight, value);
            } else {
                e.push(weight);
                values.extend_from_slice(value);
            }
        }
        Self { always_read, e, values, exact: self.exact.clone(), ..*self }
    }

    fn value(&self, token: usize) -> &[f32] {
        let dim = self.exact.output.len();
        &self.values[token * dim..][..dim]
    }
}

fn norm(value: &[f32]) -> f64 {
    value.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt()
}

fn largest(sizes: &[usize]) -> usize {
    sizes.iter().copied().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vattention_core::{Shape, Step, Target, Tokens};

    /// Creates a row of six tokens with logits 0 to 5 and values 1, 2, 4, ..., which always reads
    /// the first and the fourth.
    fn population() -> ResidualPopulation {
        let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: 1, value_dim: 1 };
        let site = Site { seed: 0, sequence: 0, layer: 0, kv_head: 0, shape };
        let keys = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
        let values = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0];
        let step = Step::new(&site, &[1.0], Tokens::new(&keys, 6, 1), Tokens::new(&values, 6, 1));
        ResidualPopulation::new(&step.row(0), &[0, 3])
    }

    /// Returns `Σ e` and `Σ e v` of tokens, relative to the largest logit.
    fn sums(tokens: &[i32]) -> (f64, f64) {
        let e = |&token: &i32| f64::from(token - 5).exp();
        let d = tokens.iter().map(e).sum();
        (d, tokens.iter().map(|token| e(token) * 2_f64.powi(*token)).sum())
    }

    #[test]
    fn estimates_follow_their_definitions() {
        let row = population();
        // The residual is tokens 1, 2, 4 and 5.
        let order = [2, 0, 3, 1];
        let (all, always_read, drawn) = (sums(&[0, 1, 2, 3, 4, 5]), sums(&[0, 3]), sums(&[4, 1]));
        let (d, n) = (always_read.0 + 2.0 * drawn.0, always_read.1 + 2.0 * drawn.1);
        let [two, none] = row.denominators(&order, &[2, 0])[..] else { panic!("two sizes") };
        assert!((two - d).abs() < 1e-9 && (none - always_read.0).abs() < 1e-9);
        let errors = row.errors(&order, &[4, 2]);
        assert!(
            errors[0].relative(Target::Sdpa) < 1e-6 && errors[0].denominator < 1e-9,
            "{errors:?}"
        );
        let relative = |a: f64, b: f64| (a - b).abs() / b;
        assert!((errors[1].denominator - relative(d, all.0)).abs() < 1e-6);
        assert!((errors[1].relative(Target::Numerator) - relative(n, all.1)).abs() < 1e-6);
        assert!((errors[1].relative(Target::Sdpa) - relative(n / d, all.1 / all.0)).abs() < 1e-6);
    }

    #[test]
    fn residual_tokens_may_become_always_read() {
        let row = population();
        assert_eq!(row.sort_by_weight(), [3, 2, 1, 0], "tokens 5, 4, 2 and 1");
        let mass = |tokens: &[i32]| sums(tokens).0 / sums(&[0, 1, 2, 3, 4, 5]).0;
        assert!((row.mass(&[]) - mass(&[0, 3])).abs() < 1e-9);
        assert!((row.mass(&[3, 1]) - mass(&[0, 2, 3, 5])).abs() < 1e-9);
        let always_read = row.with_always_read(&[3, 1]);
        assert!((always_read.mass(&[]) - mass(&[0, 2, 3, 5])).abs() < 1e-9);
        // The residual is tokens 1 and 4, and token 4 is drawn.
        let exact = sums(&[0, 1, 2, 3, 4, 5]);
        let (read, drawn) = (sums(&[0, 2, 3, 5]), sums(&[4]));
        let output = (read.1 + 2.0 * drawn.1) / (read.0 + 2.0 * drawn.0);
        let deviation = &always_read.deviations(&[1, 0], &[1])[0];
        assert!((deviation[0] - (output - exact.1 / exact.0)).abs() < 1e-6, "{deviation}");
        assert!((always_read.square() - (exact.1 / exact.0).powi(2)).abs() < 1e-6);
    }

    #[test]
    fn a_sample_of_the_whole_residual_has_the_true_moments() {
        let row = population();
        let (truth, sample) = (row.truth(), row.sample_stats(&[3, 1, 0, 2], 4));
        assert!((truth.d - sums(&[0, 1, 2, 3, 4, 5]).0).abs() < 1e-9);
        assert!((truth.var_e - sample.var_e).abs() < 1e-12 && truth.n_s == 4);
        assert_eq!(truth.bound, Some(1.0), "the largest of the residual");
        assert!((truth.norm_n / truth.d - row.exact.output[0]).abs() < 1e-9);
    }

    #[test]
    fn an_order_holds_each_token_once_and_changes_with_the_trial() {
        let row = population();
        let mut order = row.draw_order(1);
        assert!((0..10).any(|trial| row.draw_order(trial) != order));
        order.sort_unstable();
        assert_eq!(order, [0, 1, 2, 3]);
    }
}
