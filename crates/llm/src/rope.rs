//! Rotary position embeddings: a pair of numbers of a query or key is turned by an angle that
//! grows with the token's position.
//!
//! Number `i` of a head pairs with `i + head_dim / 2`, as Hugging Face lays them out. Frequencies
//! and angles are computed in f32, as models were trained: at long positions that differs from
//! their exact values.

use std::f32::consts::TAU;

use candle_core::{D, Device, Result, Tensor};

/// How frequencies are changed to reach further than a model was first trained for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// Not at all.
    None,
    /// All are divided by a factor (`linear`).
    Linear {
        /// The factor.
        factor: f32,
    },
    /// Low frequencies are divided by a factor, high ones stay, those between are mixed
    /// (`llama3`).
    Llama3 {
        /// The factor of low frequencies.
        factor: f32,
        /// Frequencies of fewer turns than this within `original` are low.
        low: f32,
        /// Frequencies of more turns than this within `original` are high.
        high: f32,
        /// The context that the model was first trained for.
        original: f32,
    },
}

/// The frequencies of a model.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    /// Radians per position, `[head_dim / 2]`.
    frequencies: Vec<f32>,
}

/// Cosines and sines of a run of positions, `[positions, head_dim / 2]` each.
#[derive(Clone, Debug)]
pub(crate) struct Angles {
    cos: Tensor,
    sin: Tensor,
}

impl Rope {
    /// For heads of an even `head_dim`.
    pub(crate) fn new(head_dim: usize, theta: f32, scaling: Scaling) -> Self {
        let frequency = |i: usize| 1.0 / theta.powf((2 * i) as f32 / head_dim as f32);
        let frequencies = (0..head_dim / 2).map(|i| scaling.apply(frequency(i))).collect();
        Self { frequencies }
    }

    /// Of positions `first .. first + count`.
    pub(crate) fn angles(&self, first: usize, count: usize) -> Result<Angles> {
        let positions = (first..first + count).map(|position| position as f32);
        let angles: Vec<f32> =
            positions.flat_map(|p| self.frequencies.iter().map(move |f| p * f)).collect();
        let angles = Tensor::from_vec(angles, (count, self.frequencies.len()), &Device::Cpu)?;
        Ok(Angles { cos: angles.cos()?, sin: angles.sin()? })
    }
}

impl Angles {
    /// Of `count` of these positions, from `first` on.
    pub(crate) fn narrow(&self, first: usize, count: usize) -> Result<Self> {
        Ok(Self { cos: self.cos.narrow(0, first, count)?, sin: self.sin.narrow(0, first, count)? })
    }

    /// Turns queries or keys `[heads, positions, head_dim]`.
    pub(crate) fn turn(&self, rows: &Tensor) -> Result<Tensor> {
        let half = rows.dim(D::Minus1)? / 2;
        let (a, b) = (rows.narrow(D::Minus1, 0, half)?, rows.narrow(D::Minus1, half, half)?);
        let times = |x: &Tensor, y: &Tensor| x.broadcast_mul(y);
        let first = (times(&a, &self.cos)? - times(&b, &self.sin)?)?;
        let second = (times(&b, &self.cos)? + times(&a, &self.sin)?)?;
        Tensor::cat(&[first, second], D::Minus1)
    }
}

impl Scaling {
    fn apply(self, frequency: f32) -> f32 {
        match self {
            Self::None => frequency,
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 { factor, low, high, original } => {
                let turns = original * frequency / TAU;
                if turns < low {
                    frequency / factor
                } else if turns > high {
                    frequency
                } else {
                    let high_share = (turns - low) / (high - low);
                    (1.0 - high_share) * frequency / factor + high_share * frequency
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA3: Scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };

    #[test]
    fn llama3_keeps_high_frequencies_divides_low_ones_and_joins_them() {
        let turns = |count: f32| count * TAU / 8192.0;
        assert_eq!(LLAMA3.apply(turns(5.0)), turns(5.0));
        assert_eq!(LLAMA3.apply(turns(0.5)), turns(0.5) / 8.0);
        let middle = LLAMA3.apply(turns(2.5));
        assert!((middle / turns(2.5) - 0.5625).abs() < 1e-6);
        for edge in [1.0_f32, 4.0] {
            let (below, above) =
                (LLAMA3.apply(turns(edge * 0.9999)), LLAMA3.apply(turns(edge * 1.0001)));
            assert!((above / below - 1.0).abs() < 2e-3, "{below} {above}");
        }
    }

    #[test]
    fn positions_are_the_same_in_any_runs() {
        let rope = Rope::new(16, 10000.0, LLAMA3);
        let all = rope.angles(3, 7).unwrap().narrow(4, 2).unwrap();
        let few = rope.angles(7, 2).unwrap();
        assert_eq!(all.cos.to_vec2::<f32>().unwrap(), few.cos.to_vec2::<f32>().unwrap());
        assert_eq!(all.sin.to_vec2::<f32>().unwrap(), few.sin.to_vec2::<f32>().unwrap());
    }

    #[test]
    fn products_of_turned_rows_depend_on_the_distance_alone() {
        let rope = Rope::new(8, 100.0, Scaling::Linear { factor: 2.0 });
        let row =
            Tensor::from_vec((1..=8).map(|i| i as f32).collect(), (1, 1, 8), &Device::Cpu).unwrap();
        let product = |p, q| {
            let turn = |p| rope.angles(p, 1).unwrap().turn(&row).unwrap();
            (turn(p) * turn(q)).unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap()
        };
        assert!((product(5, 2) - product(13, 10)).abs() < 1e-3);
        assert!((product(5, 2) - product(5, 5)).abs() > 1.0);
    }
}
