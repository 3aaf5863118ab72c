//! Small networks of affine layers with an activation between them, and the binary codes that they
//! compute.

use std::sync::Arc;

use multiversion::multiversion;
use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{Error, Result};

/// Activation function between the layers of a network.
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
    /// Hyperbolic tangent.
    Tanh,
}

impl Activation {
    /// Applies the function. It uses `libm`, whose results are the same on every machine, unlike
    /// those of the system's library.
    fn apply(self, x: f32) -> f32 {
        match self {
            Self::Silu => x / (1.0 + libm::expf(-x)),
            Self::Relu => x.max(0.0),
            Self::Gelu => 0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2)),
            Self::Tanh => libm::tanhf(x),
        }
    }
}

/// Affine layer `x · weight + bias`.
#[derive(Clone, Debug, PartialEq)]
pub struct Affine {
    /// Weight, `[in, out]`.
    pub weight: Vec<f32>,
    /// Bias, `[out]`.
    pub bias: Vec<f32>,
}

/// Network of at least one affine layer, with an activation between the layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    layers: Vec<Affine>,
    activation: Activation,
}

impl Network {
    /// Creates a network from its layers, in order.
    ///
    /// # Errors
    /// Returns an error if there are no layers, if a layer has no outputs, or if its
    /// number of inputs differs from the number of outputs of the layer before.
    pub fn new(layers: Vec<Affine>, activation: Activation) -> Result<Self> {
        if layers.is_empty() {
            return Err(Error::shape("layers of a network", "at least 1", 0));
        }
        let first = &layers[0];
        let mut inputs = first.weight.len().checked_div(first.bias.len()).unwrap_or(0).max(1);
        for Affine { weight, bias } in &layers {
            let outputs = bias.len().max(1);
            if weight.len() != inputs * outputs {
                let what = format!("numbers of a weight [{inputs}, {outputs}]");
                return Err(Error::shape(what, inputs * outputs, weight.len()));
            }
            inputs = outputs;
        }
        Ok(Self { layers, activation })
    }

    /// Layers, in order.
    pub fn layers(&self) -> &[Affine] {
        &self.layers
    }

    /// Activation between the layers.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// Number of inputs.
    pub fn inputs(&self) -> usize {
        self.layers[0].weight.len() / self.layers[0].bias.len()
    }

    /// Number of outputs.
    pub fn outputs(&self) -> usize {
        self.layers[self.layers.len() - 1].bias.len()
    }

    /// Number of inputs, followed by the number of outputs of each layer.
    pub fn widths(&self) -> Vec<usize> {
        let outputs = self.layers.iter().map(|layer| layer.bias.len());
        std::iter::once(self.inputs()).chain(outputs).collect()
    }

    /// Computes the outputs `[out]` for inputs `x` `[in]`, to the same bits on every machine:
    /// rounded products are added in the order of the inputs, and the bias last.
    ///
    /// # Panics
    /// Panics in debug builds if the length of `x` is not the number of inputs.
    pub fn forward(&self, x: &[f32]) -> Vec<f32> {
        let mut out = self.layers[0].forward(x);
        for layer in &self.layers[1..] {
            for x in &mut out {
                *x = self.activation.apply(*x);
            }
            out = layer.forward(&out);
        }
        out
    }
}

impl Affine {
    fn forward(&self, x: &[f32]) -> Vec<f32> {
        assert_eq!(x.len() * self.bias.len(), self.weight.len());
        let mut out = vec![0.0; self.bias.len()];
        add_product(x, &self.weight, &mut out);
        out.iter_mut().zip(&self.bias).for_each(|(out, bias)| *out += bias);
        out
    }
}

/// Adds `x · weight` to `out`, row by row of the weight, so that the sums do not depend on how many
/// vectors are mapped together.
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

/// Pair of networks that map queries and keys to comparable binary codes. A bit is set if the
/// output of the network is positive.
#[derive(Clone, Debug)]
pub struct CodeMap {
    query: Arc<Network>,
    key: Arc<Network>,
    scale: f32,
}

impl CodeMap {
    /// Creates a map from the network for queries, whose inputs are divided by `scale`, and the
    /// network for keys.
    ///
    /// # Errors
    /// Returns an error if the numbers of inputs or outputs of the networks differ.
    pub fn new(query: Arc<Network>, key: Arc<Network>, scale: f32) -> Result<Self> {
        let [query_sizes, key_sizes] =
            [&query, &key].map(|network| format!("{} to {}", network.inputs(), network.outputs()));
        if query_sizes != key_sizes {
            return Err(Error::shape("sizes of the network of keys", query_sizes, key_sizes));
        }
        Ok(Self { query, key, scale })
    }

    /// Number of bits in a code.
    pub fn bits(&self) -> usize {
        self.key.outputs()
    }

    /// Network for queries.
    pub fn query(&self) -> &Arc<Network> {
        &self.query
    }

    /// Network for keys.
    pub fn key(&self) -> &Arc<Network> {
        &self.key
    }

    /// Returns the inputs of the network for a query `[head_dim]`: the query divided by the scale.
    pub fn unscaled<'q>(&self, query: &'q [f32]) -> impl Iterator<Item = f32> + use<'q> {
        let scale = self.scale;
        query.iter().map(move |x| x / scale)
    }

    /// Computes the numbers whose signs are the code of a query `[head_dim]`, `[bits]`.
    pub fn project_query(&self, query: &[f32]) -> Vec<f32> {
        self.query.forward(&self.unscaled(query).collect::<Vec<_>>())
    }

    /// Computes the numbers whose signs are the code of a key `[head_dim]`, `[bits]`.
    pub fn project_key(&self, key: &[f32]) -> Vec<f32> {
        self.key.forward(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn affine(weight: &[f32], bias: &[f32]) -> Affine {
        Affine { weight: weight.to_vec(), bias: bias.to_vec() }
    }

    #[test]
    fn layers_are_applied_in_order() {
        let first = affine(&[1.0, -2.0, 3.0, 4.0, 0.0, -1.0], &[0.5, -20.0, 1.0]);
        let second = affine(&[1.0, 10.0, 100.0], &[-7.0]);
        let network = Network::new(vec![first, second], Activation::Relu).unwrap();
        // [1 + 8 + .5, max(−2 + 0 − 20, 0), 3 − 2 + 1], then 9.5 + 200 − 7
        assert_eq!(network.forward(&[1.0, 2.0]), [202.5]);
        assert_eq!(network.widths(), [2, 3, 1]);
    }

    #[test]
    fn activations_have_known_values() {
        for (activation, at_one) in [
            (Activation::Silu, 0.731_058_6),
            (Activation::Relu, 1.0),
            (Activation::Gelu, 0.841_344_7),
            (Activation::Tanh, 0.761_594_2),
        ] {
            let identity = affine(&[1.0], &[0.0]);
            let network = Network::new(vec![identity.clone(), identity], activation).unwrap();
            assert!((network.forward(&[1.0])[0] - at_one).abs() < 1e-6, "{activation:?}");
            assert!(network.forward(&[-30.0])[0].abs() <= 1.0, "{activation:?}");
        }
    }

    #[test]
    fn layers_of_mismatched_sizes_are_refused() {
        for (layers, because) in [
            (vec![], "layers of a network: expected at least 1, got 0"),
            (vec![affine(&[], &[])], "a weight [1, 1]: expected 1, got 0"),
            (vec![affine(&[1.0; 5], &[0.0; 2])], "a weight [2, 2]: expected 4, got 5"),
            (
                vec![affine(&[1.0; 6], &[0.0; 3]), affine(&[1.0; 4], &[0.0; 2])],
                "a weight [3, 2]: expected 6, got 4",
            ),
        ] {
            let refused = Network::new(layers, Activation::Silu).unwrap_err().to_string();
            assert!(refused.contains(because), "{refused}");
        }
    }
}
