//! Attention over lists of rows: the sums of each item.

use vattention_core::{Error, Result, Storage};

use super::{Array, Lists, Pages, RowLayout, along_y, expect};
use crate::kernels::ATTEND;
use crate::{Argument, Device, Grid, Program};

/// Rows that a block reads: what is summed in f32 before items are merged in f64. It does not depend
/// on what else is computed, so results do not either.
pub(super) const ITEM: usize = 256;

/// As `attend.cu` says.
const THREADS: u32 = 128;

/// The largest group that the kernel has registers for.
const LARGEST_GROUP: usize = 16;

/// Weighted attention of a group of query heads, compiled for rows of one layout.
#[derive(Clone, Debug)]
pub struct Attend<D: Device> {
    device: D,
    module: D::Module,
    layout: RowLayout,
    group: usize,
}

/// What [`Attend::run`] leaves for [`Combine`](super::Combine).
#[derive(Debug)]
pub struct Records<'a, D: Device> {
    pub(super) sums: Array<D, f32>,
    pub(super) lists: &'a Lists<D>,
    pub(super) layout: RowLayout,
    pub(super) group: usize,
    /// Items that each list has room for.
    pub(super) items: usize,
}

impl<D: Device> Attend<D> {
    /// What is compiled for such rows and such a group.
    ///
    /// # Errors
    /// If the group is not of 1 to 16 query heads.
    pub fn program(layout: RowLayout, group: usize) -> Result<Program> {
        if !(1..=LARGEST_GROUP).contains(&group) {
            let expected = format_args!("1 to {LARGEST_GROUP} on CUDA");
            return Err(Error::shape("query heads for each KV head", expected, group));
        }
        let element = match layout.storage() {
            Storage::F32 => "f32",
            Storage::F16 => "f16",
            Storage::Bf16 => "bf16",
        };
        let constants = vec![
            ("ELEMENT", element.to_owned()),
            ("HEAD_DIM", layout.head_dim().to_string()),
            ("HEAD_PADDED", layout.value_offset().to_string()),
            ("VALUE_PADDED", layout.value_padded().to_string()),
            ("LOG2_PAGE", layout.log2_page().to_string()),
            ("GROUP", group.to_string()),
            ("ITEM", ITEM.to_string()),
        ];
        Ok(Program { source: ATTEND, constants })
    }

    /// Compiles it.
    ///
    /// # Errors
    /// As [`program`](Self::program), or if it cannot be compiled.
    pub fn new(device: &D, layout: RowLayout, group: usize) -> Result<Self> {
        let module = device.compile(&Self::program(layout, group)?)?;
        Ok(Self { device: device.clone(), module, layout, group })
    }

    /// Reads each list from the head of the same place, for `queries`
    /// `[lists, group, head_dim]`, scaled. Where `logits` are wanted, those of the list that begins
    /// at `start` are written to `group · start`, `[group, length]`.
    ///
    /// O(tokens · (head_dim + value_dim)) numbers read, each once for the group.
    ///
    /// # Errors
    /// If a size does not fit another, a list needs more rows than there are, or the device fails.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub fn run<'a>(
        &self,
        heads: &[&Pages<D>],
        lists: &'a Lists<D>,
        queries: &Array<D, f32>,
        logits: Option<&Array<D, f32>>,
    ) -> Result<Records<'a, D>> {
        self.check(heads, lists, queries, logits)?;
        let items = lists.longest.div_ceil(ITEM);
        let record = self.layout.value_padded() + 4;
        let records = Array::zeros(&self.device, lists.len() * items * self.group * record)?;
        let tables: Vec<u64> = heads.iter().map(|head| head.table()).collect();
        let tables = Array::new(&self.device, &tables)?;
        let blocks = [items as u32, along_y("lists", lists.len())?];
        let arguments = [
            tables.address(),
            lists.starts.address(),
            lists.lengths.address(),
            lists.tokens.as_ref().map_or(0, Array::address),
            lists.probabilities.as_ref().map_or(0, Array::address),
            queries.address(),
            records.address(),
            logits.map_or(0, Array::address),
        ]
        .map(Argument::Address);
        if blocks.iter().all(|&count| count > 0) {
            let grid = Grid { blocks, threads: THREADS };
            // SAFETY: the arguments are those of the kernel. Lists lie within their arrays, and
            // their tokens within the rows of their heads, as was checked; there are records for
            // `items` items of each list, and logits for all tokens.
            unsafe { self.device.launch(&self.module, "attend", grid, &arguments) }?;
        }
        Ok(Records { sums: records, lists, layout: self.layout, group: self.group, items })
    }

    fn check(
        &self,
        heads: &[&Pages<D>],
        lists: &Lists<D>,
        queries: &Array<D, f32>,
        logits: Option<&Array<D, f32>>,
    ) -> Result<()> {
        expect("heads", lists.len(), heads.len())?;
        expect("queries", lists.len() * self.group * self.layout.head_dim(), queries.len())?;
        for (list, (head, &needed)) in heads.iter().zip(&lists.rows).enumerate() {
            if head.layout() != self.layout {
                return Err(Error::shape("rows", format!("{:?}", self.layout), head.layout()));
            }
            if needed > head.rows() {
                let expected = format_args!("tokens below {}", head.rows());
                return Err(Error::shape(format!("list {list}"), expected, needed - 1));
            }
        }
        match logits {
            Some(logits) => expect("logits", self.group * lists.total, logits.len()),
            None => Ok(()),
        }
    }
}
