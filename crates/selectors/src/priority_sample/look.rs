//! What a sample says of its own error.

use super::design::Design;
use super::sample::{Sample, Sums, square};

/// One look at a sample: estimates, and how far they are from the truth.
///
/// With `w = e (v − o^)` the output's error is `W^ / D^`, whose two parts have the variances
/// `V = Σ x² (1/π − 1)`, `x = |w|` or `e`: from the sample, `V^ = Σ x² (1/π − 1)/π`. The sample
/// serves for any larger threshold `t'` too, where `V^ = Σ x² (1/π(t') − 1)/π`.
#[derive(Debug)]
pub(super) struct Look {
    /// `D^`.
    pub(super) d: f64,
    /// `|N|`, debiased: `|N^|²` less its variance, at least 5 % of `|N^|²` (eq. 8).
    pub(super) norm_n: f64,
    /// The estimate of `Σ e |v|`.
    pub(super) norms: f64,
    /// The effective rank of the covariance of `W^`, shrunk to be safe; at least 1.
    pub(super) rank: f64,
    terms: Vec<Term>,
}

/// A token that was drawn by chance.
#[derive(Clone, Copy, Debug)]
struct Term {
    place: usize,
    p: f64,
    /// `|w|²` and `e²`.
    squares: [f64; 2],
}

impl Look {
    /// Looks at a sample drawn at threshold `t`. O(drawn · value_dim²).
    pub(super) fn new(sample: &Sample<'_>, design: &Design, t: f64) -> Self {
        let Sums { d, n, norms } = sample.estimate(design, t);
        let out: Vec<f64> = n.iter().map(|n| n / d).collect();
        let mut covariance = Covariance::new(n.len());
        let mut terms = Vec::new();
        let mut excess = 0.0;
        for (drawn, value) in sample.tokens() {
            let p = f64::from(design.probability(drawn.place, t));
            if p < 1.0 {
                let w: Vec<f64> = value.iter().zip(&out).map(|(v, o)| drawn.e * (v - o)).collect();
                excess += drawn.e.powi(2) * square(value) * (1.0 / p - 1.0) / p;
                covariance.add(&w, p);
                let squares = [square(&w), drawn.e.powi(2)];
                terms.push(Term { place: drawn.place, p, squares });
            }
        }
        let norm_squared = square(&n);
        let norm_n = (norm_squared - excess).max(0.05 * norm_squared).sqrt();
        Self { d, norm_n, norms, rank: covariance.rank(), terms }
    }

    /// The variances of `W^` and `D^` at threshold `t`, at least that of the sample, `z` of their
    /// own standard errors larger than estimated.
    pub(super) fn variances(&self, design: &Design, t: f64, z: f64) -> [f64; 2] {
        let (mut sums, mut errors) = ([0.0; 2], [0.0; 2]);
        for term in &self.terms {
            let p = f64::from(design.probability(term.place, t));
            for (which, square) in term.squares.iter().enumerate() {
                let x = square * (1.0 / p - 1.0) / term.p;
                sums[which] += x;
                errors[which] += x * x * (1.0 - term.p);
            }
        }
        [0, 1].map(|which| sums[which] + z * errors[which].sqrt())
    }
}

/// The estimated covariance `A = Σ α w w'` of `W^`, `α = (1/π − 1)/π`.
struct Covariance {
    dim: usize,
    /// `A`, of which the upper triangle is kept up, `[dim · dim]`.
    sums: Vec<f64>,
    /// By how much `|A|²` exceeds `Tr(S²)` on average: `Σ α² |w|⁴ (1 − π)`.
    excess: f64,
    trace: f64,
    /// `Σ α² |w|⁴`.
    fourths: f64,
}

impl Covariance {
    fn new(dim: usize) -> Self {
        Self { dim, sums: vec![0.0; dim * dim], excess: 0.0, trace: 0.0, fourths: 0.0 }
    }

    fn add(&mut self, w: &[f64], p: f64) {
        let alpha = (1.0 / p - 1.0) / p;
        for (i, &x) in w.iter().enumerate() {
            let row = &mut self.sums[i * self.dim..][i..self.dim];
            row.iter_mut().zip(&w[i..]).for_each(|(sum, y)| *sum += alpha * x * y);
        }
        let part = alpha * square(w);
        self.trace += part;
        self.fourths += part * part;
        self.excess += part * part * (1.0 - p);
    }

    /// The unbiased estimate of `Tr(S²)`.
    fn trace_of_square(&self) -> f64 {
        let squares = |i: usize| {
            let row = &self.sums[i * self.dim..][i..self.dim];
            2.0 * square(row) - row[0] * row[0]
        };
        (0..self.dim).map(squares).sum::<f64>() - self.excess
    }

    /// `Tr(S)² / Tr(S²)`, with `1/b` added to its inverse so that it errs low (eq. 7), `b` being
    /// the number of tokens that would weigh as much if all weighed the same.
    fn rank(&self) -> f64 {
        let of_square = self.trace_of_square();
        let squared = self.trace * self.trace;
        let raw = if of_square > 0.0 { squared / of_square } else { f64::INFINITY };
        (1.0 / (1.0 / raw.max(1.0) + self.fourths / squared)).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Over all samples that can be drawn, the trace and the squared norm of the covariance
    /// average to the true ones.
    #[test]
    fn the_covariance_is_unbiased() {
        let w = [[1.0, 0.5, -0.2], [0.3, -1.0, 0.8], [2.0, 0.1, 0.1], [-0.4, 0.6, 1.1]];
        let p = [0.3, 0.6, 0.25, 0.9];
        let mut exact = [[0.0; 3]; 3];
        for (w, p) in w.iter().zip(p) {
            for (row, x) in exact.iter_mut().zip(w) {
                row.iter_mut().zip(w).for_each(|(sum, y)| *sum += (1.0 / p - 1.0) * x * y);
            }
        }
        let (mut trace, mut of_square) = (0.0, 0.0);
        for pattern in 0..1 << w.len() {
            let mut covariance = Covariance::new(3);
            let mut chance = 1.0;
            for (i, (w, p)) in w.iter().zip(p).enumerate() {
                let drawn = pattern >> i & 1 == 1;
                chance *= if drawn { p } else { 1.0 - p };
                if drawn {
                    covariance.add(w, p);
                }
            }
            trace += chance * covariance.trace;
            of_square += chance * covariance.trace_of_square();
        }
        let exact_trace: f64 = (0..3).map(|i| exact[i][i]).sum();
        let exact_of_square: f64 = exact.as_flattened().iter().map(|x| x * x).sum();
        assert!((trace / exact_trace - 1.0).abs() < 1e-12);
        assert!((of_square / exact_of_square - 1.0).abs() < 1e-12);
    }

    #[test]
    fn ranks_of_known_covariances() {
        let mut line = Covariance::new(2);
        (0..500).for_each(|i| line.add(&[f64::from(i % 7) - 3.0, 0.0], 0.5));
        assert_eq!(line.rank(), 1.0);
        let mut plane = Covariance::new(2);
        (0..500).for_each(|i| {
            plane.add(&[f64::from(i % 2), f64::from(1 - i % 2)], 0.5);
        });
        let rank = plane.rank();
        assert!((1.9..2.0).contains(&rank), "a little less than 2, not {rank}");
    }
}
