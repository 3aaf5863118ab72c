//! Merge of the items of a list into the sums of each query head.

use vattention_core::{Result, step::Softmax};

use super::attend::{ITEM, expect_room};
use super::{Array, Lists, Records, Work, along_y, expect};
use crate::kernels::COMBINE;
use crate::{Device, Grid, Program};

/// Merges the partial sums of [`AttendLists`](super::AttendLists).
#[derive(Clone, Debug)]
pub struct CombineSums<D: Device> {
    device: D,
    module: D::Module,
}

/// Softmax sums of every query head, on the device.
#[derive(Debug)]
pub struct Sums<D: Device> {
    /// `[lists, group, 2 + value_dim]`: shift, denominator, numerator.
    pub(super) numbers: Array<D, f64>,
    pub(super) value_dim: usize,
}

impl<D: Device> CombineSums<D> {
    /// Returns the program to compile.
    pub fn program() -> Program {
        Program { source: COMBINE, constants: Vec::new() }
    }

    /// Compiles the program.
    ///
    /// # Errors
    /// If the program cannot be compiled.
    pub fn new(device: &D) -> Result<Self> {
        Ok(Self { device: device.clone(), module: device.compile(&Self::program())? })
    }

    /// Merges the items of each list in order, in f64, and starts the work immediately.
    ///
    /// # Errors
    /// If the sizes of arguments do not agree, there is no memory, or the device fails.
    pub fn run(&self, records: &Records<D>, lists: &Lists<D>) -> Result<Sums<D>> {
        let value_dim = records.layout.value_dim();
        let sums = Sums::new(&self.device, lists.len() * records.group, value_dim)?;
        let mut work = Work::new(&self.device);
        self.add(&mut work, records, lists, &sums, false)?;
        work.run()?;
        Ok(sums)
    }

    /// Adds a launch that merges the items of each list in order, in f64. With `more`, it adds them
    /// to `sums`; otherwise it overwrites `sums`.
    ///
    /// # Errors
    /// If the sizes of arguments do not agree.
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
        expect_room("records", lists.longest, items * ITEM)?;
        expect("elements of sums", lists.len() * group * (2 + value_dim), sums.numbers.len())?;
        let blocks = [group as u32, along_y("lists", lists.len())?];
        let grid = Grid { blocks, threads: (value_dim as u32 + 1).next_multiple_of(32) };
        let arguments = [
            numbers.argument(),
            lists.lengths.argument(),
            sums.numbers.argument(),
            ITEM.into(),
            items.into(),
            value_dim.into(),
            layout.value_padded().into(),
            u32::from(more).into(),
        ];
        // SAFETY: the arguments match the kernel's parameters. There are records of each list, and
        // sums for each query head of each list.
        unsafe { work.add(&self.module, "combine", grid, arguments) };
        Ok(())
    }
}

impl<D: Device> Sums<D> {
    /// Allocates the sums of `heads` query heads, list by list.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(device: &D, heads: usize, value_dim: usize) -> Result<Self> {
        Ok(Self::within(Array::zeros(device, heads * (2 + value_dim))?, value_dim))
    }

    /// Wraps the numbers `[heads, 2 + value_dim]`.
    pub(crate) fn within(numbers: Array<D, f64>, value_dim: usize) -> Self {
        Self { numbers, value_dim }
    }

    /// Returns the sums of each query head, list by list, `[lists · group]`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&self) -> Result<Vec<Softmax>> {
        Ok(softmax(&self.numbers.read()?, self.value_dim))
    }
}

/// Converts sums `[heads, 2 + value_dim]` to core's type.
pub(crate) fn softmax(numbers: &[f64], value_dim: usize) -> Vec<Softmax> {
    let head = |sums: &[f64]| Softmax::from_sums(sums[0], sums[1], sums[2..].to_vec());
    numbers.chunks_exact(2 + value_dim).map(head).collect()
}
