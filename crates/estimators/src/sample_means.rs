//! Means over the drawn tokens, computed from the statistics of a sample.

use vattention_core::SampleStats;

/// Means over the drawn tokens, relative to the same shift as the statistics, with
/// `w = e (v − o^)`.
pub(crate) struct SampleMeans {
    /// `|o^|`.
    pub(crate) output: f64,
    /// `|mean w|`. The estimated sum of `w` over all tokens, always-read ones included, is 0.
    pub(crate) mean_w: f64,
    /// Upper bound on `|mean e v|`, from `N^ − N_f = (D^ − D_f) o^ + D_f (o^ − c)`.
    pub(crate) mean_ev: f64,
    /// `√(mean e²)`.
    pub(crate) rms_e: f64,
    /// `√(mean |w|²)`.
    pub(crate) rms_w: f64,
    /// Upper bound on `√(mean |e v|²)`.
    pub(crate) rms_ev: f64,
}

impl SampleMeans {
    pub(crate) fn new(stats: &SampleStats) -> Self {
        let (b, n_s) = (stats.drawn as f64, stats.n_s as f64);
        let rms = |variance: f64, mean: f64| (variance * (b - 1.0) / b + mean * mean).sqrt();
        let output = stats.norm_n / stats.d;
        let mean_e = (stats.d - stats.d_certain) / n_s;
        let mean_w = stats.d_certain * stats.drift / n_s;
        let mean_ev = mean_e * output + mean_w;
        Self {
            output,
            mean_w,
            mean_ev,
            rms_e: rms(stats.var_e, mean_e),
            rms_w: rms(stats.trace_w, mean_w),
            rms_ev: rms(stats.trace_ev, mean_ev),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use vattention_core::{sample::Sample, step::Softmax};

    fn norm(x: [f64; 2]) -> f64 {
        x[0].hypot(x[1])
    }

    /// Length of the mean of pairs, and the root of their mean square.
    fn moments(x: &[[f64; 2]]) -> (f64, f64) {
        let count = x.len() as f64;
        let mean = [0, 1].map(|j| x.iter().map(|x| x[j]).sum::<f64>() / count);
        (norm(mean), (x.iter().map(|&x| norm(x).powi(2)).sum::<f64>() / count).sqrt())
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        #[test]
        fn means_are_those_of_the_sample(
            drawn in prop::collection::vec((0.01..1.0_f64, -4..5_i8, -4..5_i8), 2..20),
            d_certain in 0.1..20.0_f64,
            certain in [-2.0..2.0_f64, -2.0..2.0_f64],
            undrawn in 0usize..50,
        ) {
            let e: Vec<f64> = drawn.iter().map(|drawn| drawn.0).collect();
            let values: Vec<[f64; 2]> =
                drawn.iter().map(|&(_, x, y)| [f64::from(x), f64::from(y)]).collect();
            let n_s = drawn.len() + undrawn;
            let n_certain = certain.map(|c| c * d_certain);
            let stats = SampleStats::new(&Sample {
                e: &e,
                values: &values.as_flattened().iter().map(|&x| x as f32).collect::<Vec<_>>(),
                certain: &Softmax::from_sums(0.0, d_certain, n_certain.to_vec()),
                n_s,
                visible: n_s + 1,
                query_heads: 1,
                max_norm_v: 10.0,
                bound: None,
            });
            let scale = n_s as f64 / drawn.len() as f64;
            let d = d_certain + scale * e.iter().sum::<f64>();
            let out = [0, 1].map(|j| {
                let sum: f64 = e.iter().zip(&values).map(|(e, v)| e * v[j]).sum();
                (n_certain[j] + scale * sum) / d
            });
            let weighted = |centre: [f64; 2]| -> Vec<[f64; 2]> {
                let minus = |v: &[f64; 2]| [v[0] - centre[0], v[1] - centre[1]];
                e.iter().zip(&values).map(|(e, v)| minus(v).map(|x| e * x)).collect()
            };
            let means = SampleMeans::new(&stats);
            let close = |got: f64, want: f64| (got - want).abs() <= 1e-9 * (1.0 + want);
            let (mean_w, rms_w) = moments(&weighted(out));
            prop_assert!(close(means.output, norm(out)));
            prop_assert!(close(means.mean_w, mean_w) && close(means.rms_w, rms_w));
            let (_, rms_e) = moments(&e.iter().map(|&e| [e, 0.0]).collect::<Vec<_>>());
            prop_assert!(close(means.rms_e, rms_e));
            let (mean_ev, rms_ev) = moments(&weighted([0.0; 2]));
            prop_assert!(means.mean_ev >= mean_ev - 1e-9 && means.rms_ev >= rms_ev - 1e-9);
        }
    }
}
