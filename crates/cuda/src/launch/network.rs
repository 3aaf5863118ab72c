//! Networks, on the device.

use vattention_core::Result;
use vattention_selectors::{Activation, Affine, Network};

use super::Array;
use crate::Device;

/// Shape and activation of a network, which kernels are compiled for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkShape {
    /// Number of inputs, then number of outputs of each layer.
    pub widths: Vec<usize>,
    /// Activation between layers.
    pub activation: Activation,
}

impl NetworkShape {
    /// Returns the shape of a network.
    pub fn from_network(network: &Network) -> Self {
        Self { widths: network.widths(), activation: network.activation() }
    }

    /// Returns true if a network has this shape.
    pub fn matches(&self, network: &Network) -> bool {
        let outputs = network.layers().iter().map(|layer| layer.bias.len());
        let widths = std::iter::once(network.inputs()).chain(outputs);
        self.activation == network.activation() && widths.eq(self.widths.iter().copied())
    }

    /// Largest number of inputs or outputs of a layer.
    pub fn widest(&self) -> usize {
        self.widths.iter().copied().max().unwrap_or(0)
    }

    /// Number of outputs, the bits of a code.
    pub fn outputs(&self) -> usize {
        self.widths.last().copied().unwrap_or(0)
    }
}

/// A network on the device: its layers in order, each `[inputs + 1, outputs]` with the bias last.
#[derive(Debug)]
pub struct DeviceNetwork<D: Device> {
    numbers: Array<D, f32>,
    shape: NetworkShape,
}

impl<D: Device> DeviceNetwork<D> {
    /// Copies a network to the device.
    ///
    /// # Errors
    /// If there is no memory, or the device fails.
    pub fn new(device: &D, network: &Network) -> Result<Self> {
        let layer = |Affine { weight, bias }: &Affine| [&weight[..], bias].concat();
        let numbers: Vec<f32> = network.layers().iter().flat_map(layer).collect();
        Ok(Self {
            numbers: Array::new(device, &numbers)?,
            shape: NetworkShape::from_network(network),
        })
    }

    /// Shape that kernels have to be compiled for.
    pub fn shape(&self) -> &NetworkShape {
        &self.shape
    }

    /// Address of the network, for [`Encode`](super::Encode).
    pub(crate) fn address(&self) -> u64 {
        self.numbers.address()
    }

    /// Memory of the network, for work to share.
    pub(super) fn numbers(&self) -> &Array<D, f32> {
        &self.numbers
    }
}
