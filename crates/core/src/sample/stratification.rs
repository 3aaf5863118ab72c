//! Strata of a sample, and the centres that deviations within a stratum are measured from.
//!
//! The few tokens drawn from a stratum may be equal although the stratum varies, and would then
//! suggest a variance of 0. Deviations are therefore measured from a centre that includes the means
//! of neighbouring strata, so that differences between strata count as deviations
//! (docs/guarantees.md, theorem 8).

/// Strata that tokens were drawn from, uniformly without replacement within each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stratification {
    /// Stratum of each token drawn so far, in draw order, `[b]`.
    pub strata: Vec<usize>,
    /// Neighbours of each stratum, whose means its centre includes, `[strata]`. Tokens have been
    /// drawn from each neighbour.
    pub neighbours: Vec<Vec<usize>>,
}

impl Stratification {
    /// A single stratum, from which `drawn` tokens were drawn.
    pub fn single(drawn: usize) -> Self {
        Self { strata: vec![0; drawn], neighbours: vec![Vec::new()] }
    }

    /// Number of tokens drawn from each stratum, `[strata]`.
    pub fn drawn(&self) -> Vec<usize> {
        let mut drawn = vec![0; self.neighbours.len()];
        for &stratum in &self.strata {
            drawn[stratum] += 1;
        }
        drawn
    }

    /// Centre of each stratum, `[strata]`: the average of the `means` of the stratum itself and of
    /// its neighbours, each `[dim]`.
    pub fn average_neighbours(&self, means: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let average = |(stratum, neighbours): (usize, &Vec<usize>)| {
            let mut centre = means[stratum].clone();
            for &neighbour in neighbours {
                centre.iter_mut().zip(&means[neighbour]).for_each(|(sum, x)| *sum += x);
            }
            let count = (1 + neighbours.len()) as f64;
            for x in &mut centre {
                *x /= count;
            }
            centre
        };
        self.neighbours.iter().enumerate().map(average).collect()
    }

    /// Degrees of freedom of `Σ |x − m|²` over the `drawn` tokens of a stratum of `size` tokens,
    /// where `m` is the average of the stratum's mean and the means of its `neighbours`. The sum
    /// divided by this number is on average at least the stratum's variance (docs/guarantees.md,
    /// theorem 8).
    pub fn degrees_of_freedom(drawn: usize, size: usize, neighbours: usize) -> f64 {
        let others = neighbours as f64 / (1 + neighbours) as f64;
        drawn as f64 - 1.0 + others * others * (1.0 - drawn as f64 / size as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A neighbouring stratum is constant and has the same mean as the sampled stratum. In this
    /// case theorem 8 holds with equality: averaged over all pairs drawn from the three tokens, the
    /// estimated variance equals the true one.
    #[test]
    fn variance_about_a_shared_centre_is_not_too_small() {
        let (tokens, neighbour) = ([1.0, 2.0, 6.0], 3.0);
        let strata = Stratification { strata: vec![0, 0, 1], neighbours: vec![vec![1], vec![]] };
        assert_eq!(strata.drawn(), [2, 1]);
        let mut sum = 0.0;
        for [a, b] in [[0, 1], [0, 2], [1, 2]].map(|pair| pair.map(|token| tokens[token])) {
            let centres = strata.average_neighbours(&[vec![f64::midpoint(a, b)], vec![neighbour]]);
            let centre: f64 = centres[0][0];
            sum += (a - centre).powi(2) + (b - centre).powi(2);
        }
        let variance = sum / 3.0 / Stratification::degrees_of_freedom(2, 3, 1);
        assert!((variance - 7.0).abs() < 1e-12, "7, not {variance}");
    }

    #[test]
    fn centres_average_a_stratum_and_its_neighbours() {
        let neighbours = vec![vec![1, 2], vec![], vec![0]];
        let strata = Stratification { strata: Vec::new(), neighbours };
        let centres = strata.average_neighbours(&[vec![1.0], vec![5.0], vec![3.0]]);
        assert_eq!(centres, [[3.0], [5.0], [2.0]]);
    }
}
