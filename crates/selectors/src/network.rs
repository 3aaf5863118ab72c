//! Small networks, affine layers with an activation between them, and the codes that they make.

use std::sync::Arc;

use multiversion::multiversion;
use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{Error, Result};

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

/// `x · weight + bias`.
#[derive(Clone, Debug, PartialEq)]
pub struct Affine {
    /// `[in, out]`.
    pub weight: Vec<f32>,
    /// `[out]`.
    pub bias: Vec<f32>,
}

/// Affine layers with an activation between them, at least one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    layers: Vec<Affine>,
    activation: Activation,
}

impl Network {
    /// The layers, in order.
    ///
    /// # Errors
    /// If there are none, one has no outputs, or not as many inputs as the one before has outputs.
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

    /// The layers, in order.
    pub fn layers(&self) -> &[Affine] {
        &self.layers
    }

    /// What is between them.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// How many numbers go in.
    pub fn inputs(&self) -> usize {
        self.layers[0].weight.len() / self.layers[0].bias.len()
    }

    /// How many come out.
    pub fn outputs(&self) -> usize {
        self.layers[self.layers.len() - 1].bias.len()
    }

    /// How many go in, leave each layer, and come out.
    pub fn widths(&self) -> Vec<usize> {
        let outputs = self.layers.iter().map(|layer| layer.bias.len());
        std::iter::once(self.inputs()).chain(outputs).collect()
    }

    /// What comes out for `x` `[in]`, `[out]`: the same bits on every machine. Products are rounded,
    /// and added in the order of what goes in; the bias comes last.
    ///
    /// # Panics
    /// In debug builds, if `x` is not as long.
    pub fn of(&self, x: &[f32]) -> Vec<f32> {
        let mut out = self.layers[0].of(x);
        for layer in &self.layers[1..] {
            for x in &mut out {
                *x = self.activation.of(*x);
            }
            out = layer.of(&out);
        }
        out
    }
}

impl Affine {
    fn of(&self, x: &[f32]) -> Vec<f32> {
        debug_assert_eq!(x.len() * self.bias.len(), self.weight.len());
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

/// Codes of queries and keys that can be compared: bits, each the sign of an output of a network, set
/// if the output is positive.
#[derive(Clone, Debug)]
pub struct CodeMap {
    query: Arc<Network>,
    key: Arc<Network>,
    scale: f32,
}

impl CodeMap {
    /// Codes of queries, divided by `scale`, and of keys.
    ///
    /// # Errors
    /// If the networks do not have the same numbers of inputs and outputs.
    pub fn new(query: Arc<Network>, key: Arc<Network>, scale: f32) -> Result<Self> {
        let [query_sizes, key_sizes] =
            [&query, &key].map(|network| format!("{} to {}", network.inputs(), network.outputs()));
        if query_sizes != key_sizes {
            return Err(Error::shape("sizes of the network of keys", query_sizes, key_sizes));
        }
        Ok(Self { query, key, scale })
    }

    /// Bits of a code.
    pub fn bits(&self) -> usize {
        self.key.outputs()
    }

    /// The network of queries.
    pub fn query(&self) -> &Arc<Network> {
        &self.query
    }

    /// The network of keys.
    pub fn key(&self) -> &Arc<Network> {
        &self.key
    }

    /// The input of the network for a query `[head_dim]`.
    pub fn unscaled<'q>(&self, query: &'q [f32]) -> impl Iterator<Item = f32> + use<'q> {
        let scale = self.scale;
        query.iter().map(move |x| x / scale)
    }

    /// The numbers whose signs are the code of a query `[head_dim]`, `[bits]`.
    pub fn of_query(&self, query: &[f32]) -> Vec<f32> {
        self.query.of(&self.unscaled(query).collect::<Vec<_>>())
    }

    /// The numbers whose signs are the code of a key `[head_dim]`, `[bits]`.
    pub fn of_key(&self, key: &[f32]) -> Vec<f32> {
        self.key.of(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn affine(weight: &[f32], bias: &[f32]) -> Affine {
        Affine { weight: weight.to_vec(), bias: bias.to_vec() }
    }

    #[test]
    fn layers_follow_each_other() {
        let first = affine(&[1.0, -2.0, 3.0, 4.0, 0.0, -1.0], &[0.5, -20.0, 1.0]);
        let second = affine(&[1.0, 10.0, 100.0], &[-7.0]);
        let network = Network::new(vec![first, second], Activation::Relu).unwrap();
        // [1 + 8 + .5, max(−2 + 0 − 20, 0), 3 − 2 + 1], then 9.5 + 200 − 7
        assert_eq!(network.of(&[1.0, 2.0]), [202.5]);
        assert_eq!(network.widths(), [2, 3, 1]);
    }

    #[test]
    fn activations_are_what_they_are_called() {
        for (activation, at_one) in [
            (Activation::Silu, 0.731_058_6),
            (Activation::Relu, 1.0),
            (Activation::Gelu, 0.841_344_7),
            (Activation::Tanh, 0.761_594_2),
        ] {
            let one = affine(&[1.0], &[0.0]);
            let network = Network::new(vec![one.clone(), one], activation).unwrap();
            assert!((network.of(&[1.0])[0] - at_one).abs() < 1e-6, "{activation:?}");
            assert!(network.of(&[-30.0])[0].abs() <= 1.0, "{activation:?}");
        }
    }

    #[test]
    fn layers_that_do_not_fit_are_refused() {
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
