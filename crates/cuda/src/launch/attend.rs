//! Attention over token lists: partial sums of each item of a list.

use vattention_core::{Error, Result};

use super::{Array, LaunchArgument, Lists, Pages, RowLayout, Work, along_y, expect};
use crate::kernels::ATTEND;
use crate::{Device, Grid, Program};

/// Tokens of an item, the part of a list that a block sums in f32; items are then merged in f64.
/// The size is a constant, so that results do not depend on other work.
pub(super) const ITEM: usize = 256;

/// Threads in a block, as in `attend.cu`.
const THREADS: u32 = 128;

/// Largest group of query heads for which the kernel has registers.
const LARGEST_GROUP: usize = 16;

/// Weighted attention of a group of query heads, compiled for rows of one layout.
#[derive(Clone, Debug)]
pub struct AttendLists<D: Device> {
    device: D,
    module: D::Module,
    layout: RowLayout,
    group: usize,
}

/// Partial sums of each item of each list, the input of [`CombineSums`](super::CombineSums).
#[derive(Debug)]
pub struct Records<D: Device> {
    pub(super) numbers: Array<D, f32>,
    pub(super) layout: RowLayout,
    pub(super) lists: usize,
    pub(super) group: usize,
    /// Items for which each list has memory.
    pub(super) items: usize,
}

/// Logits of the tokens of each list.
#[derive(Clone, Debug)]
pub struct Logits<D: Device> {
    /// `[lists, group, places]`
    pub(super) numbers: Array<D, f32>,
    /// Place of each list's first token, `[lists]`; 0 if missing.
    pub(super) firsts: Option<Array<D, u32>>,
    pub(super) places: usize,
}

impl<D: Device> Logits<D> {
    /// Allocates memory for `places` tokens of each list.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(device: &D, lists: usize, group: usize, places: usize) -> Result<Self> {
        Ok(Self { numbers: Array::zeros(device, lists * group * places)?, firsts: None, places })
    }

    /// Returns a view of the same memory in which lists begin at places `firsts` `[lists]`.
    pub(crate) fn beginning_at(&self, firsts: &Array<D, u32>) -> Self {
        Self { firsts: Some(firsts.clone()), ..self.clone() }
    }

    /// Returns all logits, `[lists, group, places]`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&self) -> Result<Vec<f32>> {
        self.numbers.read()
    }
}

impl<D: Device> AttendLists<D> {
    /// Returns the program to compile for these rows and this group.
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

    /// Compiles the program.
    ///
    /// # Errors
    /// If [`program`](Self::program) fails, or the program cannot be compiled.
    pub fn new(device: &D, layout: RowLayout, group: usize) -> Result<Self> {
        let module = device.compile(&Self::program(layout, group)?)?;
        Ok(Self { device: device.clone(), module, layout, group })
    }

    /// Allocates memory for the results of `lists` lists of at most `longest` tokens.
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

    /// Runs attention over list `i` with the rows of `heads[i]`, for scaled `queries`
    /// `[lists, group, head_dim]`, and starts it immediately.
    ///
    /// # Errors
    /// If the sizes of arguments do not agree, a list needs more rows than there are, there is no
    /// memory, or the device fails.
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

    /// Adds a launch of attention over list `i` with the rows of `heads[i]`, for scaled `queries`
    /// `[lists, group, head_dim]`. The work shares ownership of the heads.
    ///
    /// It reads O(tokens · (head_dim + value_dim)) numbers, each once for the group.
    ///
    /// # Errors
    /// If the sizes of arguments do not agree, a list needs more rows than there are, there is no
    /// memory, or the device fails.
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

    /// Addresses of the page tables of heads, `[lists]`, after a check that head `i` has the rows
    /// that list `i` needs.
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

    /// Adds a launch of attention over list `i` with the rows of page table `tables[i]`, which must
    /// have the rows that the list needs when the kernel runs.
    ///
    /// It reads O(tokens · (head_dim + value_dim)) numbers, each once for the group.
    ///
    /// # Errors
    /// If the sizes of arguments do not agree.
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
        expect_room("records", lists.longest, records.items * ITEM)?;
        if logits.is_some() {
            expect_room("logits", lists.longest, places)?;
        }
        let blocks = [records.items as u32, along_y("lists", lists.len())?];
        let grid = Grid { blocks, threads: THREADS };
        let arguments = [
            tables.argument(),
            lists.starts.argument(),
            lists.lengths.argument(),
            LaunchArgument::optional(lists.tokens.as_ref()),
            LaunchArgument::optional(lists.probabilities.as_ref()),
            queries.argument(),
            records.numbers.argument(),
            LaunchArgument::optional(logits.map(|logits| &logits.numbers)),
            LaunchArgument::optional(logits.and_then(|logits| logits.firsts.as_ref())),
            places.into(),
        ];
        // SAFETY: the arguments match the kernel's parameters. Lists lie within their arrays, and
        // their tokens within the rows of their heads; there are records for `items` items of each
        // list, and logits for all tokens.
        unsafe { work.add(&self.module, "attend", grid, arguments) };
        Ok(())
    }
}

/// Fails unless `got`, the tokens for which each list has memory, is at least `tokens`.
pub(super) fn expect_room(what: &str, tokens: usize, got: usize) -> Result<()> {
    if tokens <= got {
        return Ok(());
    }
    Err(Error::shape(what, format_args!("room for {tokens} tokens"), got))
}
