//! What a sample says of its own error.

use super::design::Design;
use super::sample::Sample;
use crate::asymptotic::Estimate;
use crate::covariance::Covariance;
use crate::sums::square;

/// One look at a sample: estimates, and how far they are from the truth.
///
/// With `w = e (v − o^)` the output's error is `W^ / D^`, whose two parts have the variances
/// `V = Σ x² (1/π − 1)`, `x = |w|` or `e`: from the sample, `V^ = Σ x² (1/π − 1)/π`. The sample
/// serves for any larger threshold `t'` too, where `V^ = Σ x² (1/π(t') − 1)/π`.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) estimate: Estimate,
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
        let sums = sample.estimate(design, t);
        let out = sums.output();
        let mut covariance = Covariance::new(out.len());
        let mut terms = Vec::new();
        let mut variance_n = 0.0;
        for (drawn, value) in sample.tokens() {
            let p = f64::from(design.probability(drawn.place, t));
            if p < 1.0 {
                let w: Vec<f64> = value.iter().zip(&out).map(|(v, o)| drawn.e * (v - o)).collect();
                let alpha = (1.0 / p - 1.0) / p;
                variance_n += alpha * drawn.e.powi(2) * square(value);
                covariance.add(&w, alpha, 1.0 - p);
                let squares = [square(&w), drawn.e.powi(2)];
                terms.push(Term { place: drawn.place, p, squares });
            }
        }
        Self { estimate: Estimate::new(&sums, variance_n, covariance.rank()), terms }
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
