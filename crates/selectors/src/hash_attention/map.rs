//! From vectors to codes: small networks whose last signs are the code.

use multiversion::multiversion;
use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};

use super::codes::{Code, pack};

/// A function between the layers of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Activation {
    /// `x / (1 + exp(−x))`.
    #[default]
    Silu,
    /// `max(x, 0)`.
    Relu,
    /// `x Φ(x)`, exact.
    Gelu,
    /// The hyperbolic tangent.
    Tanh,
}

impl Activation {
    /// The library's functions are the same on every machine, the system's are not.
    fn of(self, x: f32) -> f32 {
        match self {
            Self::Silu => x / (1.0 + libm::expf(-x)),
            Self::Relu => x.max(0.0),
            Self::Gelu => 0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2)),
            Self::Tanh => libm::tanhf(x),
        }
    }
}

/// The maps of queries and of keys to codes that can be compared.
#[derive(Debug)]
pub(super) struct Map {
    pub(super) query: Mlp,
    /// `None`: the queries'.
    pub(super) key: Option<Mlp>,
    /// What queries were multiplied by on their way to the selector.
    pub(super) scale: f32,
}

impl Map {
    /// One layer for both, of hyperplanes with normals `[dim, bits]`.
    pub(super) fn of_hyperplanes(planes: Vec<f32>, dim: usize) -> Self {
        let bias = vec![0.0; planes.len() / dim];
        let layers = vec![Affine { weight: planes, bias }];
        Self { query: Mlp { layers, activation: Activation::Relu }, key: None, scale: 1.0 }
    }

    /// Signs in a code.
    pub(super) fn bits(&self) -> usize {
        self.query.outputs()
    }

    /// The code of a scaled query `[head_dim]`.
    pub(super) fn query_code(&self, query: &[f32]) -> Code {
        let query: Vec<f32> = query.iter().map(|x| x / self.scale).collect();
        self.query.code(&query)
    }

    /// The code of a key `[head_dim]`.
    pub(super) fn key_code(&self, key: &[f32]) -> Code {
        self.key.as_ref().unwrap_or(&self.query).code(key)
    }
}

/// Affine layers with an activation between them.
#[derive(Debug)]
pub(super) struct Mlp {
    /// At least one.
    pub(super) layers: Vec<Affine>,
    pub(super) activation: Activation,
}

/// `x · weight + bias`.
#[derive(Debug)]
pub(super) struct Affine {
    /// `[in, out]`.
    pub(super) weight: Vec<f32>,
    /// `[out]`.
    pub(super) bias: Vec<f32>,
}

impl Mlp {
    /// Numbers that come out.
    pub(super) fn outputs(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.bias.len())
    }

    fn code(&self, x: &[f32]) -> Code {
        let (last, before) = self.layers.split_last().expect("a network has a layer");
        let mut x = x.to_vec();
        for layer in before {
            x = layer.of(&x);
            for x in &mut x {
                *x = self.activation.of(*x);
            }
        }
        pack(&last.of(&x))
    }
}

impl Affine {
    fn of(&self, x: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; self.bias.len()];
        add_product(x, &self.weight, &mut out);
        out.iter_mut().zip(&self.bias).for_each(|(out, bias)| *out += bias);
        out
    }
}

/// Adds `x · weight`, row by row of the weight: the same sums however many vectors are mapped at a
/// time.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
fn add_product(x: &[f32], weight: &[f32], out: &mut [f32]) {
    for (x, row) in x.iter().zip(weight.chunks_exact(out.len())) {
        for (out, w) in out.iter_mut().zip(row) {
            *out += x * w;
        }
    }
}
