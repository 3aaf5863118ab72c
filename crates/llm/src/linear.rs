//! The parts that every layer is made of: linear maps, norms, and the feed-forward network.

use candle_core::{D, Result as Numbers, Tensor};

use crate::config::Config;
use crate::weights::Weights;
use crate::widen::widened;
use crate::{Error, Result, row};

/// `x Wᵀ + b`
#[derive(Clone, Debug)]
pub(crate) struct Linear {
    /// `[out, in]`, in f32 or bf16.
    weight: Tensor,
    bias: Option<Tensor>,
}

/// `x / √(mean(x²) + epsilon) · w`, over the last dimension.
#[derive(Clone, Debug)]
pub(crate) struct Norm {
    weight: Tensor,
    epsilon: f64,
}

/// `down(silu(gate(x)) · up(x))`
#[derive(Clone, Debug)]
pub(crate) struct FeedForward {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Linear {
    /// From `{name}.weight` and, where there should be one, `{name}.bias`.
    pub(crate) fn open(
        weights: &mut Weights,
        name: &str,
        [inputs, outputs]: [usize; 2],
        biased: bool,
    ) -> Result<Self> {
        let weight = weights.take(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = biased.then(|| weights.take(&format!("{name}.bias"), &[outputs]));
        Ok(Self { weight, bias: bias.transpose()? })
    }

    /// With weights `[out, in]` that are there already.
    pub(crate) fn tied(weight: Tensor) -> Self {
        Self { weight, bias: None }
    }

    /// `[rows, in]` to `[rows, out]`, in f32. More than one row cost 4 bytes of memory for each
    /// weight that is not in f32, until this returns.
    pub(crate) fn apply(&self, x: &Tensor) -> Numbers<Tensor> {
        let y = match x.dim(0)? {
            1 => row::times(x, &self.weight)?,
            _ => x.matmul(&widened(&self.weight)?.t()?)?,
        };
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}

impl Norm {
    /// From `{name}.weight`.
    pub(crate) fn open(
        weights: &mut Weights,
        name: &str,
        size: usize,
        epsilon: f64,
    ) -> Result<Self> {
        Ok(Self { weight: weights.take(&format!("{name}.weight"), &[size])?, epsilon })
    }

    pub(crate) fn apply(&self, x: &Tensor) -> Numbers<Tensor> {
        let root = (x.sqr()?.mean_keepdim(D::Minus1)? + self.epsilon)?.sqrt()?;
        x.broadcast_div(&root)?.broadcast_mul(&self.weight)
    }
}

impl FeedForward {
    pub(crate) fn open(weights: &mut Weights, name: &str, config: &Config) -> Result<Self> {
        let (outer, inner) = (config.hidden_size, config.intermediate_size);
        let mut linear = |part: &str, sizes| {
            Linear::open(weights, &format!("{name}.{part}"), sizes, config.biases.feed_forward)
        };
        Ok::<_, Error>(Self {
            gate: linear("gate_proj", [outer, inner])?,
            up: linear("up_proj", [outer, inner])?,
            down: linear("down_proj", [inner, outer])?,
        })
    }

    pub(crate) fn apply(&self, x: &Tensor) -> Numbers<Tensor> {
        self.down.apply(&(self.gate.apply(x)?.silu()? * self.up.apply(x)?)?)
    }
}
