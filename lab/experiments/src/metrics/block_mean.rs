//! Mean of dependent numbers, with an interval from the means of blocks.

use schemars::JsonSchema;
use serde::Serialize;
use statrs::function::beta::inv_beta_reg;

/// Mean of numbers that depend on each other, such as those of successive tokens, with a 95 %
/// interval.
///
/// The numbers form blocks of equal size, and the interval is Student's for the means of the blocks
/// (batch means: Schmeiser 1982, "Batch size effects in the analysis of simulation output",
/// Operations Research 30). The numbers of a block may depend on each other in any way. The means
/// of blocks must be independent and normally distributed, which is approximately true if blocks
/// are long compared with the range of the dependence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct BlockMean {
    /// Number of blocks.
    pub blocks: usize,
    /// Mean over all numbers.
    pub mean: f64,
    /// 95 % interval; `None` with fewer than 2 blocks.
    pub interval: Option<MeanInterval>,
}

/// 95 % interval of a mean.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct MeanInterval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl BlockMean {
    /// Summarizes the means of blocks of equal size; `None` without a block.
    ///
    /// Cost: two passes over the means.
    pub fn new(means: &[f64]) -> Option<Self> {
        let blocks = means.len();
        if blocks == 0 {
            return None;
        }
        let mean = means.iter().sum::<f64>() / blocks as f64;
        let interval = (blocks > 1).then(|| {
            let squares: f64 = means.iter().map(|x| (x - mean).powi(2)).sum();
            let freedom = (blocks - 1) as f64;
            let margin = student_quantile(freedom) * (squares / freedom / blocks as f64).sqrt();
            MeanInterval { low: mean - margin, high: mean + margin }
        });
        Some(Self { blocks, mean, interval })
    }
}

/// 97.5 % quantile of Student's distribution.
fn student_quantile(freedom: f64) -> f64 {
    // |T| exceeds t with the probability I(x; freedom / 2, 1 / 2) at x = freedom / (freedom + t²).
    let x = inv_beta_reg(freedom / 2.0, 0.5, 0.05);
    (freedom * (1.0 - x) / x).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binomial;

    /// Pseudo-random numbers (xorshift64*), uniform in `(0, 1)`.
    struct Numbers(u64);

    impl Numbers {
        fn uniform(&mut self) -> f64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            let bits = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11;
            (bits as f64 + 0.5) / (1_u64 << 53) as f64
        }

        fn normal(&mut self) -> f64 {
            let radius = (-2.0 * self.uniform().ln()).sqrt();
            radius * (std::f64::consts::TAU * self.uniform()).cos()
        }

        /// Skewed numbers of mean 0 and variance 1.
        fn exponential(&mut self) -> f64 {
            -self.uniform().ln() - 1.0
        }
    }

    /// Sequence of mean 0 in which each number depends on the previous one (AR(1)).
    fn dependent(
        numbers: &mut Numbers,
        draw: fn(&mut Numbers) -> f64,
        persistence: f64,
        count: usize,
    ) -> Vec<f64> {
        let scale = (1.0 - persistence * persistence).sqrt();
        let mut last = draw(numbers);
        let mut next = || {
            last = persistence * last + scale * draw(numbers);
            last
        };
        (0..count).map(|_| next()).collect()
    }

    fn block_means(all: &[f64], size: usize) -> Vec<f64> {
        all.chunks_exact(size).map(|block| block.iter().sum::<f64>() / size as f64).collect()
    }

    /// Number of trials in which the interval does not contain 0, the true mean.
    fn count_misses(trials: usize, mut means: impl FnMut() -> Vec<f64>) -> usize {
        let misses = |means: &[f64]| {
            let interval = BlockMean::new(means).unwrap().interval.unwrap();
            interval.low > 0.0 || interval.high < 0.0
        };
        (0..trials).filter(|_| misses(&means())).count()
    }

    /// Two-sided p-value of the hypothesis that 5 % of the intervals miss.
    fn p_value(misses: usize, trials: usize) -> f64 {
        let more = binomial::p_value(misses, trials, 0.05);
        let fewer = 1.0 - binomial::p_value(misses + 1, trials, 0.05);
        (2.0 * more.min(fewer)).min(1.0)
    }

    const TRIALS: usize = 4000;

    #[test]
    fn intervals_of_dependent_normal_numbers_have_their_confidence() {
        let mut numbers = Numbers(1);
        for blocks in [2, 3, 10] {
            // Each window of a text is a new sequence, so the dependence ends with the block.
            let misses = count_misses(TRIALS, || {
                let block = |_| dependent(&mut numbers, Numbers::normal, 0.9, 40);
                let all: Vec<f64> = (0..blocks).flat_map(block).collect();
                block_means(&all, 40)
            });
            assert!(p_value(misses, TRIALS) > 1e-6, "{misses} misses with {blocks} blocks");
        }
    }

    /// Tests numbers that are neither normal nor independent, in blocks that are much longer than
    /// the dependence.
    #[test]
    fn intervals_of_skewed_numbers_have_almost_their_confidence() {
        let mut numbers = Numbers(2);
        let misses = count_misses(TRIALS, || {
            block_means(&dependent(&mut numbers, Numbers::exponential, 0.8, 12 * 400), 400)
        });
        assert!(p_value(misses, TRIALS) > 1e-6, "{misses} misses");
    }

    /// Confirms that the tests above have the power to refuse wrong intervals.
    #[test]
    fn intervals_that_ignore_dependence_miss_too_often() {
        let mut numbers = Numbers(3);
        let misses = count_misses(TRIALS, || dependent(&mut numbers, Numbers::normal, 0.5, 400));
        assert!(p_value(misses, TRIALS) < 1e-6, "{misses} misses");
    }

    #[test]
    fn quantiles_match_tables() {
        for (freedom, expected) in
            [(1.0, 12.706_204_736), (2.0, 4.302_652_73), (9.0, 2.262_157_163), (1e4, 1.960_201_24)]
        {
            let found = student_quantile(freedom);
            assert!((found - expected).abs() < 1e-6 * expected, "{freedom}: {found}");
        }
    }

    #[test]
    fn few_blocks_have_no_interval() {
        assert_eq!(BlockMean::new(&[]), None);
        let one = BlockMean::new(&[2.0]).unwrap();
        assert_eq!((one.mean, one.interval), (2.0, None));
        let equal = BlockMean::new(&[0.0; 3]).unwrap();
        assert_eq!(equal.interval, Some(MeanInterval { low: 0.0, high: 0.0 }));
        let two = BlockMean::new(&[1.0, 3.0]).unwrap().interval.unwrap();
        assert!((two.high - (2.0 + 12.706_204_736)).abs() < 1e-6, "{two:?}");
    }
}
