//! The merge of items into the sums of each query head.

use vattention_core::{Result, step::Softmax};

use super::attend::{ITEM, room};
use super::{Array, Lists, Records, Work, along_y, expect};
use crate::kernels::COMBINE;
use crate::{Device, Grid, Program};

/// Merges what [`Attend`](super::Attend) found.
#[derive(Clone, Debug)]
pub struct CombineSums<D: Device> {
    device: D,
    module: D::Module,
}

/// Sums of every query head, on the device.
#[derive(Debug)]
pub struct Sums<D: Device> {
    /// `[lists, group, 2 + value_dim]`: shift, denominator, numerator.
    pub(super) numbers: Array<D, f64>,
    pub(super) value_dim: usize,
}

impl<D: Device> CombineSums<D> {
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

    /// Merges the items of each list in their order, in f64, now.
    ///
    /// # Errors
    /// If a size does not fit another, there is no memory, or the device fails.
    pub fn run(&self, records: &Records<D>, lists: &Lists<D>) -> Result<Sums<D>> {
        let value_dim = records.layout.value_dim();
        let sums = Sums::new(&self.device, lists.len() * records.group, value_dim)?;
        let mut work = Work::new(&self.device);
        self.add(&mut work, records, lists, &sums, false)?;
        work.run()?;
        Ok(sums)
    }

    /// Adds a launch that merges the items of each list in their order, in f64; with what `sums`
    /// have been, if `more`.
    ///
    /// # Errors
    /// If a size does not fit another.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub fn add(
        &self,
        work: &mut Work<D>,
        records: &Records<D>,
        lists: &Lists<D>,
        sums: &Sums<D>,
        more: bool,
    ) -> Result<()> {
        let &Records { ref numbers, layout, group, items, .. } = records;
        let value_dim = layout.value_dim();
        expect("lists of records", lists.len(), records.lists)?;
        room("records", lists.longest, items * ITEM)?;
        expect("elements of sums", lists.len() * group * (2 + value_dim), sums.numbers.len())?;
        let blocks = [group as u32, along_y("lists", lists.len())?];
        let grid = Grid { blocks, threads: (value_dim as u32 + 1).next_multiple_of(32) };
        let given = [
            numbers.given(),
            lists.lengths.given(),
            sums.numbers.given(),
            ITEM.into(),
            items.into(),
            value_dim.into(),
            layout.value_padded().into(),
            u32::from(more).into(),
        ];
        // SAFETY: the arguments are those of the kernel. The records are of as many lists, and
        // there are sums for each query head of each.
        unsafe { work.add(&self.module, "combine", grid, given) };
        Ok(())
    }
}

impl<D: Device> Sums<D> {
    /// Room for the sums of `heads` query heads, list by list.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(device: &D, heads: usize, value_dim: usize) -> Result<Self> {
        Ok(Self::within(Array::zeros(device, heads * (2 + value_dim))?, value_dim))
    }

    /// Those that are in these numbers, `[heads, 2 + value_dim]`.
    pub(crate) fn within(numbers: Array<D, f64>, value_dim: usize) -> Self {
        Self { numbers, value_dim }
    }

    /// The sums of each query head, list by list, `[lists · group]`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&self) -> Result<Vec<Softmax>> {
        Ok(softmax(&self.numbers.read()?, self.value_dim))
    }
}

/// Sums `[heads, 2 + value_dim]`, as core has them.
pub(crate) fn softmax(numbers: &[f64], value_dim: usize) -> Vec<Softmax> {
    let head = |sums: &[f64]| Softmax::from_sums(sums[0], sums[1], sums[2..].to_vec());
    numbers.chunks_exact(2 + value_dim).map(head).collect()
}
