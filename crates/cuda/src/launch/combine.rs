//! The merge of items into the sums of each query head.

use vattention_core::{Result, Softmax};

use super::attend::ITEM;
use super::{Array, Records, along_y};
use crate::kernels::COMBINE;
use crate::{Argument, Device, Grid, Program};

/// Merges what [`Attend`](super::Attend) found.
#[derive(Clone, Debug)]
pub struct Combine<D: Device> {
    device: D,
    module: D::Module,
}

/// Sums of every query head, on the device.
#[derive(Debug)]
pub struct Sums<D: Device> {
    /// `[lists, group, 2 + value_dim]`: shift, denominator, numerator.
    sums: Array<D, f64>,
    value_dim: usize,
}

impl<D: Device> Combine<D> {
    /// What is compiled.
    pub fn program() -> Program {
        Program { source: COMBINE, constants: Vec::new() }
    }

    /// Compiles it.
    ///
    /// # Errors
    /// If it cannot be compiled.
    pub fn new(device: &D) -> Result<Self> {
        Ok(Self { device: device.clone(), module: device.compile(&Self::program())? })
    }

    /// Merges the items of each list in their order, in f64.
    ///
    /// # Errors
    /// If there are too many lists, or the device fails.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub fn run(&self, records: &Records<'_, D>) -> Result<Sums<D>> {
        let &Records { sums: ref records, lists, layout, group, items } = records;
        let value_dim = layout.value_dim();
        let sums = Array::zeros(&self.device, lists.len() * group * (2 + value_dim))?;
        let arguments = [
            Argument::Address(records.address()),
            Argument::Address(lists.lengths.address()),
            Argument::Address(sums.address()),
            Argument::U32(ITEM as u32),
            Argument::U32(items as u32),
            Argument::U32(value_dim as u32),
            Argument::U32(layout.value_padded() as u32),
        ];
        if !lists.is_empty() {
            let blocks = [group as u32, along_y("lists", lists.len())?];
            let grid = Grid { blocks, threads: (value_dim as u32 + 1).next_multiple_of(32) };
            // SAFETY: the arguments are those of the kernel. The records are of these lists, and
            // there are sums for each query head of each.
            unsafe { self.device.launch(&self.module, "combine", grid, &arguments) }?;
        }
        Ok(Sums { sums, value_dim })
    }
}

impl<D: Device> Sums<D> {
    /// The sums of each query head, list by list, `[lists · group]`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&self) -> Result<Vec<Softmax>> {
        let softmax = |sums: &[f64]| Softmax::from_sums(sums[0], sums[1], sums[2..].to_vec());
        Ok(self.sums.read()?.chunks_exact(2 + self.value_dim).map(softmax).collect())
    }
}
