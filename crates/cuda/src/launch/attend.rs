//! Attention over lists of rows: the sums of each item.

use vattention_core::{Error, Result};

use super::{Array, Given, Lists, Pages, RowLayout, Work, along_y, expect};
use crate::kernels::ATTEND;
use crate::{Device, Grid, Program};

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

/// What [`Attend`] leaves for [`CombineSums`](super::CombineSums).
#[derive(Debug)]
pub struct Records<D: Device> {
    pub(super) numbers: Array<D, f32>,
    pub(super) layout: RowLayout,
    pub(super) lists: usize,
    pub(super) group: usize,
    /// Items that each list has room for.
    pub(super) items: usize,
}

/// The logits of lists.
#[derive(Clone, Debug)]
pub struct Logits<D: Device> {
    /// `[lists, group, places]`
    pub(super) numbers: Array<D, f32>,
    /// Where each list begins, `[lists]`; without, at place 0.
    pub(super) firsts: Option<Array<D, u32>>,
    pub(super) places: usize,
}

impl<D: Device> Logits<D> {
    /// Room for `places` tokens of each list.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(device: &D, lists: usize, group: usize, places: usize) -> Result<Self> {
        Ok(Self { numbers: Array::zeros(device, lists * group * places)?, firsts: None, places })
    }

    /// The same room, in which lists begin at these places, `[lists]`.
    pub(crate) fn beginning_at(&self, firsts: &Array<D, u32>) -> Self {
        Self { firsts: Some(firsts.clone()), ..self.clone() }
    }

    /// All of them, `[lists, group, places]`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&self) -> Result<Vec<f32>> {
        self.numbers.read()
    }
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
        let mut constants = layout.constants();
        constants.extend([("GROUP", group.to_string()), ("ITEM", ITEM.to_string())]);
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

    /// Room for the results of `lists` lists of at most `longest` tokens.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn records(&self, lists: usize, longest: usize) -> Result<Records<D>> {
        let Self { ref device, layout, group, .. } = *self;
        let items = longest.div_ceil(ITEM);
        let record = layout.value_padded() + 4;
        let numbers = Array::zeros(device, lists * items * group * record)?;
        Ok(Records { numbers, layout, lists, group, items })
    }

    /// Reads each list from the head of the same place, for `queries` `[lists, group, head_dim]`,
    /// scaled, now.
    ///
    /// # Errors
    /// If a size does not fit another, a list needs more rows than there are, there is no memory, or
    /// the device fails.
    pub fn run(
        &self,
        heads: &[&Pages<D>],
        lists: &Lists<D>,
        queries: &Array<D, f32>,
        logits: Option<&Logits<D>>,
    ) -> Result<Records<D>> {
        let tables = self.tables(heads, lists)?;
        let records = self.records(lists.len(), lists.longest)?;
        let mut work = Work::new(&self.device);
        self.add(&mut work, &tables, lists, queries, &records, logits)?;
        work.run()?;
        Ok(records)
    }

    /// Adds a launch that reads each list from the head of the same place, `heads` `[lists]`, which
    /// are kept, for `queries` `[lists, group, head_dim]`, scaled.
    ///
    /// O(tokens · (head_dim + value_dim)) numbers read, each once for the group.
    ///
    /// # Errors
    /// If a size does not fit another, a list needs more rows than there are, there is no memory, or
    /// the device fails.
    pub fn add_heads(
        &self,
        work: &mut Work<D>,
        heads: &[&Pages<D>],
        lists: &Lists<D>,
        queries: &Array<D, f32>,
        records: &Records<D>,
        logits: Option<&Logits<D>>,
    ) -> Result<()> {
        let tables = self.tables(heads, lists)?;
        for head in heads {
            head.keep(work);
        }
        self.add(work, &tables, lists, queries, records, logits)
    }

    /// The tables of heads that have the rows that the lists of the same places need, `[lists]`.
    fn tables(&self, heads: &[&Pages<D>], lists: &Lists<D>) -> Result<Array<D, u64>> {
        expect("heads", lists.len(), heads.len())?;
        for (list, (head, &needed)) in heads.iter().zip(&lists.rows).enumerate() {
            head.expect_layout(self.layout)?;
            if needed > head.rows() {
                let expected = format_args!("tokens below {}", head.rows());
                return Err(Error::shape(format!("list {list}"), expected, needed - 1));
            }
        }
        let tables: Vec<u64> = heads.iter().map(|head| head.table()).collect();
        Array::new(&self.device, &tables)
    }

    /// Adds a launch that reads each list from the head whose table of pages is at the same place
    /// of `tables`, `[lists]`. By then they have the rows that the lists need.
    ///
    /// O(tokens · (head_dim + value_dim)) numbers read, each once for the group.
    ///
    /// # Errors
    /// If a size does not fit another.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub(crate) fn add(
        &self,
        work: &mut Work<D>,
        tables: &Array<D, u64>,
        lists: &Lists<D>,
        queries: &Array<D, f32>,
        records: &Records<D>,
        logits: Option<&Logits<D>>,
    ) -> Result<()> {
        expect("tables", lists.len(), tables.len())?;
        expect("queries", lists.len() * self.group * self.layout.head_dim(), queries.len())?;
        expect("lists of records", lists.len(), records.lists)?;
        expect("query heads of records", self.group, records.group)?;
        if records.layout != self.layout {
            let expected = format!("{:?}", self.layout);
            return Err(Error::shape("rows of records", expected, records.layout));
        }
        let places = logits.map_or(0, |logits| logits.places);
        if let Some(logits) = logits {
            expect("logits", lists.len() * self.group * places, logits.numbers.len())?;
        }
        room("records", lists.longest, records.items * ITEM)?;
        if logits.is_some() {
            room("logits", lists.longest, places)?;
        }
        let blocks = [records.items as u32, along_y("lists", lists.len())?];
        let grid = Grid { blocks, threads: THREADS };
        let given = [
            tables.given(),
            lists.starts.given(),
            lists.lengths.given(),
            Given::maybe(lists.tokens.as_ref()),
            Given::maybe(lists.probabilities.as_ref()),
            queries.given(),
            records.numbers.given(),
            Given::maybe(logits.map(|logits| &logits.numbers)),
            Given::maybe(logits.and_then(|logits| logits.firsts.as_ref())),
            places.into(),
        ];
        // SAFETY: the arguments are those of the kernel. Lists lie within their arrays, and their
        // tokens within the rows of their heads; there are records for `items` items of each list,
        // and logits for all tokens.
        unsafe { work.add(&self.module, "attend", grid, given) };
        Ok(())
    }
}

/// Fails unless there is room for `tokens` tokens of each list.
pub(super) fn room(what: &str, tokens: usize, got: usize) -> Result<()> {
    if tokens <= got {
        return Ok(());
    }
    Err(Error::shape(what, format_args!("room for {tokens} tokens"), got))
}
