//! A look at samples: what their statistics follow from.

use vattention_core::{Result, sample::LAGS};

use super::attend::ITEM;
use super::{Array, Logits, Now, Progress, RowLayout, Sums, Work, along_y, expect};
use crate::kernels::LOOK;
use crate::{Device, Grid, Program};

/// As `look.cu` says.
const THREADS: u32 = 128;
const _: () = assert!(LAGS == 4, "the kernel sums four products at a time");

/// Numbers that a look leaves for each item.
pub(super) const MOMENTS: usize = 8;

/// Looks at what is drawn, compiled for rows of one layout.
#[derive(Clone, Debug)]
pub struct Look<D: Device> {
    device: D,
    module: D::Module,
    layout: RowLayout,
}

/// What a look reads. A sample's tokens are read from one head, by a group of query heads.
#[derive(Clone, Copy, Debug)]
pub struct Looked<'a, D: Device> {
    /// The table of pages of each list's head, `[lists]`.
    pub tables: &'a Array<D, u64>,
    /// 1 / the largest norm of a value of that head, or near to it, `[lists]`; a number above 0.
    pub units: &'a Array<D, f32>,
    /// Tokens that each list has for certain, `[lists]`, of those visible.
    pub certain_lengths: &'a Array<D, u32>,
    /// The sums over them, of each reader.
    pub certain: &'a Sums<D>,
    /// The sums over the sample, all of weight 1.
    pub sample: &'a Sums<D>,
    /// The sample's logits, all from place 0 on.
    pub logits: &'a Logits<D>,
}

/// What [`Look`] leaves for [`BudgetCheck`](super::BudgetCheck).
#[derive(Clone, Debug)]
pub struct SampleMoments<D: Device> {
    /// `[lists, group, items, MOMENTS]`
    pub(super) numbers: Array<D, f64>,
    pub(super) group: usize,
    /// Items that each list has room for.
    pub(super) items: usize,
}

impl<D: Device> SampleMoments<D> {
    /// What each item of each reader of each list has come to, `[lists · group][items]`: `D^` and
    /// `|N^|²`, which are the first item's; the squared deviations of e, of e v and of w; the squared
    /// products of differences of w. Items without tokens have anything.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&self) -> Result<Vec<Vec<[f64; MOMENTS]>>> {
        let numbers = self.numbers.read()?;
        let (items, _) = numbers.as_chunks();
        Ok(items.chunks_exact(self.items).map(<[_]>::to_vec).collect())
    }
}

impl<D: Device> Look<D> {
    /// What is compiled for such rows.
    pub fn program(layout: RowLayout) -> Program {
        let mut constants = layout.constants();
        constants.extend([
            ("VALUE_DIM", layout.value_dim().to_string()),
            ("ITEM", ITEM.to_string()),
            ("MOMENTS", MOMENTS.to_string()),
        ]);
        Program { source: LOOK, constants }
    }

    /// Compiles it.
    ///
    /// # Errors
    /// If it cannot be compiled.
    pub fn new(device: &D, layout: RowLayout) -> Result<Self> {
        let module = device.compile(&Self::program(layout))?;
        Ok(Self { device: device.clone(), module, layout })
    }

    /// Room for the moments of `lists` lists of at most `capacity` tokens, by `group` readers each.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn moments(&self, lists: usize, group: usize, capacity: usize) -> Result<SampleMoments<D>> {
        let items = capacity.div_ceil(ITEM);
        let numbers = Array::zeros(&self.device, lists * group * items * MOMENTS)?;
        Ok(SampleMoments { numbers, group, items })
    }

    /// Adds a launch that looks at all drawn tokens of the lists that are not done.
    ///
    /// O(drawn · group · value_dim): values are read once for each reader.
    ///
    /// # Errors
    /// If a size does not fit another.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub(crate) fn add(
        &self,
        work: &mut Work<D>,
        now: &Now<D>,
        looked: &Looked<'_, D>,
        progress: &Progress<D>,
        moments: &SampleMoments<D>,
    ) -> Result<()> {
        let (lists, capacity, group) = (progress.lists(), progress.capacity(), moments.group);
        let (readers, logits) = (lists * group, looked.logits);
        let sums = readers * (2 + self.layout.value_dim());
        expect("room for a sample", now.capacity, capacity)?;
        expect("tables", lists, looked.tables.len())?;
        expect("units", lists, looked.units.len())?;
        expect("certain lists", lists, looked.certain_lengths.len())?;
        expect("elements of certain sums", sums, looked.certain.numbers.len())?;
        expect("elements of sums of the sample", sums, looked.sample.numbers.len())?;
        expect("places of logits", capacity, logits.places)?;
        expect("logits", readers * logits.places, logits.numbers.len())?;
        expect("items of moments", capacity.div_ceil(ITEM), moments.items)?;
        expect("moments", readers * moments.items * MOMENTS, moments.numbers.len())?;
        let blocks = [moments.items as u32, along_y("readers of lists", readers)?];
        let given = [
            now.numbers.given(),
            looked.tables.given(),
            progress.tokens.given(),
            progress.end().given(),
            progress.done().given(),
            looked.certain_lengths.given(),
            looked.units.given(),
            looked.certain.numbers.given(),
            looked.sample.numbers.given(),
            logits.numbers.given(),
            moments.numbers.given(),
            group.into(),
            capacity.into(),
            logits.places.into(),
        ];
        // SAFETY: the arguments are those of the kernel. Samples have no more than `capacity` tokens,
        // for which there are logits and, item by item, room for moments, of each of their readers.
        unsafe { work.add(&self.module, "look", Grid { blocks, threads: THREADS }, given) };
        Ok(())
    }
}
