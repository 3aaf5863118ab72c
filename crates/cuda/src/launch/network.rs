//! Networks, on the device.

use vattention_core::Result;
use vattention_selectors::{Activation, Affine, Network};

use super::Array;
use crate::Device;

/// What the kernels of networks are compiled for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkShape {
    /// Numbers that go in, leave each layer, and come out.
    pub widths: Vec<usize>,
    /// What is between layers.
    pub activation: Activation,
}

impl NetworkShape {
    /// Of a network.
    pub fn of(network: &Network) -> Self {
        Self { widths: network.widths(), activation: network.activation() }
    }

    /// Whether a network is of this shape.
    pub fn is_of(&self, network: &Network) -> bool {
        let outputs = network.layers().iter().map(|layer| layer.bias.len());
        let widths = std::iter::once(network.inputs()).chain(outputs);
        self.activation == network.activation() && widths.eq(self.widths.iter().copied())
    }

    /// The most numbers that a layer takes or gives.
    pub fn widest(&self) -> usize {
        self.widths.iter().copied().max().unwrap_or(0)
    }

    /// How many numbers come out: bits of a code.
    pub fn outputs(&self) -> usize {
        self.widths.last().copied().unwrap_or(0)
    }
}

/// A network: its layers one after the other, each `[inputs + 1, outputs]`, the bias last.
#[derive(Debug)]
pub struct DeviceNetwork<D: Device> {
    numbers: Array<D, f32>,
    shape: NetworkShape,
}

impl<D: Device> DeviceNetwork<D> {
    /// Copies a network.
    ///
    /// # Errors
    /// If there is no memory, or the device fails.
    pub fn new(device: &D, network: &Network) -> Result<Self> {
        let layer = |Affine { weight, bias }: &Affine| [&weight[..], bias].concat();
        let numbers: Vec<f32> = network.layers().iter().flat_map(layer).collect();
        Ok(Self { numbers: Array::new(device, &numbers)?, shape: NetworkShape::of(network) })
    }

    /// What kernels have to be compiled for.
    pub fn shape(&self) -> &NetworkShape {
        &self.shape
    }

    /// Where it is, for [`Encode`](super::Encode).
    pub(crate) fn address(&self) -> u64 {
        self.numbers.address()
    }

    /// The numbers, to be kept.
    pub(super) fn numbers(&self) -> &Array<D, f32> {
        &self.numbers
    }
}
