//! What a stratified sample says of its own error.

use super::strata::{Strata, Stratum};
use crate::asymptotic::{Asymptotic, Estimate};
use crate::covariance::Covariance;
use crate::sums::{Sums, square};

/// By how much the sample grows at least, so that a few looks suffice.
const GROWTH: f64 = 1.0 + 1.0 / 16.0;

/// One look at a sample.
pub(super) struct Look {
    estimate: Estimate,
    spreads: Vec<Spread>,
}

/// How the drawn tokens of a stratum spread.
#[derive(Clone, Copy, Debug)]
struct Spread {
    /// `N_h` and `n_h`.
    size: usize,
    drawn: usize,
    /// `S_h²` of `w` and of `e`.
    variances: [f64; 2],
    /// The estimated variances of these two.
    errors: [f64; 2],
}

impl Look {
    /// Looks at what has been drawn. O(drawn · value_dim²).
    pub(super) fn new(strata: &Strata<'_>) -> Self {
        let sums = estimate(strata);
        let out = sums.output();
        let mut covariance = Covariance::new(out.len());
        let (mut spreads, mut variance_n) = (Vec::new(), 0.0);
        for stratum in strata.iter() {
            let alpha = stratum.alpha();
            let tokens = || strata.tokens(stratum);
            let ev = tokens().map(|(e, v)| v.iter().map(|v| e * v).collect());
            variance_n += alpha * squares(&centred(ev.collect())).iter().sum::<f64>();
            let w = tokens().map(|(e, v)| v.iter().zip(&out).map(|(v, o)| e * (v - o)).collect());
            let w = centred(w.collect());
            for w in &w {
                covariance.add(w, alpha, 1.0);
            }
            let e = centred(stratum.e.iter().map(|&e| vec![e]).collect());
            spreads.push(Spread::new(stratum, [squares(&w), squares(&e)]));
        }
        let estimate = Estimate::new(&sums, variance_n, covariance.rank());
        Self { estimate, spreads }
    }

    /// How many must be drawn of each stratum, which is what has been drawn if that suffices;
    /// `None` if nothing does.
    pub(super) fn needed(&self, rule: &Asymptotic, strata: &Strata<'_>) -> Option<Vec<usize>> {
        let enough = |draws: &[usize]| rule.suffices(&self.estimate, self.variances(draws, rule.z));
        let drawn: Vec<usize> = self.spreads.iter().map(|spread| spread.drawn).collect();
        if enough(&drawn) {
            return Some(drawn);
        }
        let size: usize = self.spreads.iter().map(|spread| spread.size).sum();
        let (mut low, mut high) = (drawn.iter().sum(), 2 * size);
        if !enough(&strata.allocate(high)) {
            return None;
        }
        let least = (low as f64 * GROWTH) as usize + 1;
        while high - low > 1 {
            let middle = usize::midpoint(low, high);
            if enough(&strata.allocate(middle)) {
                high = middle;
            } else {
                low = middle;
            }
        }
        Some(strata.allocate(high.max(least)))
    }

    /// The variances of `W^` and `D^` with so many draws, `z` of their own standard errors larger
    /// than estimated.
    pub(super) fn variances(&self, draws: &[usize], z: f64) -> [f64; 2] {
        let (mut sums, mut errors) = ([0.0; 2], [0.0; 2]);
        for (spread, &draws) in self.spreads.iter().zip(draws) {
            let factor = factor(spread.size, draws);
            for which in [0, 1] {
                sums[which] += factor * spread.variances[which];
                errors[which] += factor * factor * spread.errors[which];
            }
        }
        [0, 1].map(|which| sums[which] + z * errors[which].sqrt())
    }
}

impl Spread {
    /// From the squared distances of `w` and of `e` from their means.
    fn new(stratum: &Stratum, squares: [Vec<f64>; 2]) -> Self {
        let n = stratum.e.len() as f64;
        let divide = |sum: f64, by: f64| if by > 0.0 { sum / by } else { 0.0 };
        let variances = [0, 1].map(|which| divide(squares[which].iter().sum(), n - 1.0));
        let errors = [0, 1].map(|which| {
            let mean = divide(squares[which].iter().sum(), n);
            let apart = squares[which].iter().map(|square| (square - mean).powi(2)).sum();
            divide(apart, n * (n - 1.0))
        });
        Self { size: stratum.size, drawn: stratum.e.len(), variances, errors }
    }
}

impl Stratum {
    /// What the squared distances from the mean are multiplied by in a variance.
    fn alpha(&self) -> f64 {
        let n = self.e.len();
        if n > 1 { factor(self.size, n) / (n - 1) as f64 } else { 0.0 }
    }
}

/// `N_h² (1/n_h − 1/N_h)`
fn factor(size: usize, draws: usize) -> f64 {
    if draws == 0 { 0.0 } else { (size * (size - draws)) as f64 / draws as f64 }
}

/// `D^`, `N^` and the estimate of `Σ e |v|`.
pub(super) fn estimate(strata: &Strata<'_>) -> Sums {
    let mut sums = strata.certain.clone();
    for stratum in strata.iter() {
        let weight = stratum.size as f64 / stratum.e.len() as f64;
        for (e, value) in strata.tokens(stratum) {
            sums.add(weight * e, value);
        }
    }
    sums
}

/// Rows less their mean.
fn centred(mut rows: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
    let count = rows.len() as f64;
    for j in 0..rows.first().map_or(0, Vec::len) {
        let mean = rows.iter().map(|row| row[j]).sum::<f64>() / count;
        for row in &mut rows {
            row[j] -= mean;
        }
    }
    rows
}

fn squares(rows: &[Vec<f64>]) -> Vec<f64> {
    rows.iter().map(|row| square(row)).collect()
}
