//! The effective rank of what a sample's errors spread over.

use crate::sums::square;

/// The estimated covariance `A = Σ α w w'` of an estimated sum of `w`, over drawn tokens.
pub(crate) struct Covariance {
    dim: usize,
    /// `A`, of which the upper triangle is kept up, `[dim · dim]`.
    sums: Vec<f64>,
    /// By how much `|A|²` exceeds `Tr(S²)` on average: `Σ α² |w|⁴ share`.
    excess: f64,
    trace: f64,
    /// `Σ α² |w|⁴`.
    fourths: f64,
}

impl Covariance {
    pub(crate) fn new(dim: usize) -> Self {
        Self { dim, sums: vec![0.0; dim * dim], excess: 0.0, trace: 0.0, fourths: 0.0 }
    }

    /// Adds `α w w'`. By a `share` of its own square, `|A|²` exceeds `Tr(S²)` on average.
    pub(crate) fn add(&mut self, w: &[f64], alpha: f64, share: f64) {
        for (i, &x) in w.iter().enumerate() {
            let row = &mut self.sums[i * self.dim..][i..self.dim];
            row.iter_mut().zip(&w[i..]).for_each(|(sum, y)| *sum += alpha * x * y);
        }
        let part = alpha * square(w);
        self.trace += part;
        self.fourths += part * part;
        self.excess += part * part * share;
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
    pub(crate) fn rank(&self) -> f64 {
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
                    covariance.add(w, (1.0 / p - 1.0) / p, 1.0 - p);
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
        (0..500).for_each(|i| line.add(&[f64::from(i % 7) - 3.0, 0.0], 2.0, 0.5));
        assert_eq!(line.rank(), 1.0);
        let mut plane = Covariance::new(2);
        (0..500).for_each(|i| {
            plane.add(&[f64::from(i % 2), f64::from(1 - i % 2)], 2.0, 0.5);
        });
        let rank = plane.rank();
        assert!((1.9..2.0).contains(&rank), "a little less than 2, not {rank}");
    }
}
