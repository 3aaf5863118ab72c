//! What a routine is told at each step, in one copy.

use std::ops::Range;

use vattention_core::{Plan, Recipe, Result, Score, Shape, Step};

use super::kind::{Kind, Stage};
use super::words::{Place, Places};
use crate::Device;
use crate::launch::{Array, Now};

/// Where the numbers of a step are.
#[derive(Debug)]
pub(super) struct Inputs {
    places: Places,
    now: Place<u32>,
    /// Tables of pages, `[kv_heads]`, for each list and for each row.
    list_tables: Place<u64>,
    row_tables: Place<u64>,
    /// `[query_heads, head_dim]`
    queries: Place<f32>,
    stages: Vec<StageInputs>,
    /// Keys of the random order of each list, `[lists, 8]`.
    orders: Place<u32>,
    /// One over the largest value norm, and that norm, `[lists]`.
    units: Place<f32>,
    longest: Place<f64>,
}

#[derive(Debug)]
enum StageInputs {
    /// `[rows, count, 2]`
    Ranges(Place<u32>),
    /// `[rows]`, and `[rows, head_dim]`
    Logits { counts: Place<u32>, queries: Place<f32> },
    /// `[rows]`, addresses `[rows, compared]`, and `[rows, compared, words]`
    Codes { counts: Place<u32>, keys: Place<u64>, queries: Place<u32> },
}

/// The same on the device.
pub(super) struct OnDevice<D: Device> {
    pub(super) all: Array<D, u32>,
    pub(super) now: Now<D>,
    pub(super) list_tables: Array<D, u64>,
    pub(super) row_tables: Array<D, u64>,
    pub(super) queries: Array<D, f32>,
    pub(super) stages: Vec<StageOnDevice<D>>,
    pub(super) orders: Array<D, u32>,
    pub(super) units: Array<D, f32>,
    pub(super) longest: Array<D, f64>,
}

pub(super) enum StageOnDevice<D: Device> {
    Ranges(Array<D, u32>),
    Logits { counts: Array<D, u32>, queries: Array<D, f32> },
    Codes { counts: Array<D, u32>, keys: Array<D, u64>, queries: Array<D, u32> },
}

/// One KV head at a step.
pub(crate) struct Told<'a> {
    pub(crate) plan: Plan<'a>,
    pub(crate) step: &'a Step<'a>,
    /// Keys of the random order of each of its lists, and the sides of all of them.
    pub(crate) orders: Vec<([u32; 8], [u32; 2])>,
    /// Its table of pages.
    pub(crate) table: u64,
    /// Of each selector, the addresses of the keys' codes, if it picks by them.
    pub(crate) codes: Vec<Vec<u64>>,
}

impl Inputs {
    pub(super) fn new(kind: &Kind) -> Self {
        let (lists, rows) = (kind.lists(), kind.rows());
        let Shape { query_heads, head_dim, .. } = kind.shape;
        let mut places = Places::default();
        let now = places.add(Now::<crate::Driver>::LEN);
        let (list_tables, row_tables) = (places.add(lists), places.add(rows));
        let queries = places.add(query_heads * head_dim);
        let stage = |stage: &Stage| match *stage {
            Stage::Ranges(count) => StageInputs::Ranges(places.add(rows * count * 2)),
            Stage::Logits(_) => StageInputs::Logits {
                counts: places.add(rows),
                queries: places.add(rows * head_dim),
            },
            Stage::Codes { bits, .. } => {
                let codes = rows * stage.compared(kind.shape.group());
                StageInputs::Codes {
                    counts: places.add(rows),
                    keys: places.add(codes),
                    queries: places.add(codes * bits.div_ceil(32)),
                }
            }
        };
        let stages = kind.stages.iter().map(stage).collect();
        let (orders, units) = (places.add(lists * 8), places.add(lists));
        let longest = places.add(lists);
        Self { places, now, list_tables, row_tables, queries, stages, orders, units, longest }
    }

    pub(super) fn on_device<D: Device>(&self, device: &D, capacity: usize) -> Result<OnDevice<D>> {
        let all = self.places.array(device)?;
        let stage = |stage: &StageInputs| match stage {
            StageInputs::Ranges(ranges) => StageOnDevice::Ranges(ranges.of(&all)),
            StageInputs::Logits { counts, queries } => {
                StageOnDevice::Logits { counts: counts.of(&all), queries: queries.of(&all) }
            }
            StageInputs::Codes { counts, keys, queries } => StageOnDevice::Codes {
                counts: counts.of(&all),
                keys: keys.of(&all),
                queries: queries.of(&all),
            },
        };
        Ok(OnDevice {
            now: Now::new(self.now.of(&all), capacity)?,
            list_tables: self.list_tables.of(&all),
            row_tables: self.row_tables.of(&all),
            queries: self.queries.of(&all),
            stages: self.stages.iter().map(stage).collect(),
            orders: self.orders.of(&all),
            units: self.units.of(&all),
            longest: self.longest.of(&all),
            all,
        })
    }

    /// The numbers of a step.
    pub(super) fn of_step(&self, kind: &Kind, heads: &[Told<'_>]) -> Vec<u32> {
        let mut all = self.places.zeros();
        let first = &heads[0];
        let base = first.plan.sample.as_ref().map_or(0, |sample| sample.base);
        let sides = first.orders.first().map_or([2, 2], |&(_, sides)| sides);
        self.now.put(&Now::<crate::Driver>::numbers(first.step.visible, sides, base), &mut all);
        let repeated = |count: usize| -> Vec<u64> {
            heads.iter().flat_map(|head| std::iter::repeat_n(head.table, count)).collect()
        };
        let lists = kind.lists() / heads.len();
        self.list_tables.put(&repeated(lists), &mut all);
        self.row_tables.put(&repeated(kind.rows_of_head()), &mut all);
        let queries: Vec<f32> = heads.iter().flat_map(|head| head.step.queries).copied().collect();
        self.queries.put(&queries, &mut all);
        let orders: Vec<u32> =
            heads.iter().flat_map(|head| &head.orders).flat_map(|&(keys, _)| keys).collect();
        if !orders.is_empty() {
            self.orders.put(&orders, &mut all);
        }
        let of_head =
            |head: &Told<'_>| head.plan.sample.as_ref().map_or(1.0, |sample| sample.max_norm_v);
        let longest: Vec<f64> =
            heads.iter().flat_map(|head| std::iter::repeat_n(of_head(head), lists)).collect();
        let units: Vec<f32> = longest.iter().map(|&longest| unit(longest)).collect();
        self.units.put(&units, &mut all);
        self.longest.put(&longest, &mut all);
        let mut recipes = 0;
        for (i, stage) in self.stages.iter().enumerate() {
            let used = if let Stage::Ranges(count) = kind.stages[i] { count } else { 1 };
            stage.put(kind, heads, recipes..recipes + used, &mut all);
            recipes += used;
        }
        all
    }
}

/// What values are multiplied by, lest their squares be too large.
fn unit(longest: f64) -> f32 {
    (1.0 / longest.max(1e-15)) as f32
}

impl StageInputs {
    /// Puts what `recipes` of each head say.
    fn put(&self, kind: &Kind, heads: &[Told<'_>], recipes: Range<usize>, all: &mut [u32]) {
        let counts = || -> Vec<u32> {
            let count = |row: PickRow<'_>| row.head.plan.recipes[recipes.start].count() as u32;
            rows(kind, heads).map(count).collect()
        };
        match self {
            Self::Ranges(place) => {
                let ranges = rows(kind, heads)
                    .flat_map(|row| row.head.plan.recipes[recipes.clone()].iter().flat_map(ends));
                place.put(&ranges.collect::<Vec<_>>(), all);
            }
            Self::Logits { counts: place, queries } => {
                place.put(&counts(), all);
                let of_row = |row: PickRow<'_>| row.query(&row.head.plan.recipes[recipes.start]);
                queries.put(&rows(kind, heads).flat_map(of_row).collect::<Vec<_>>(), all);
            }
            Self::Codes { counts: place, keys, queries } => {
                place.put(&counts(), all);
                let (mut addresses, mut codes) = (Vec::new(), Vec::new());
                for row in rows(kind, heads) {
                    let Recipe::TopCodes { score, codes: hashed, .. } =
                        &row.head.plan.recipes[recipes.start]
                    else {
                        continue;
                    };
                    for member in row.counting(*score) {
                        addresses.push(row.head.codes[recipes.start][hashed.keys_of(member)]);
                        codes.extend_from_slice(&hashed.queries[member]);
                    }
                }
                keys.put(&addresses, all);
                queries.put(&codes, all);
            }
        }
    }
}

/// A row that picks: a member of a group, or the first for all of them.
#[derive(Clone, Copy)]
struct PickRow<'a> {
    head: &'a Told<'a>,
    member: usize,
}

fn rows<'a>(kind: &Kind, heads: &'a [Told<'a>]) -> impl Iterator<Item = PickRow<'a>> {
    let members = kind.rows_of_head();
    heads.iter().flat_map(move |head| (0..members).map(move |member| PickRow { head, member }))
}

impl PickRow<'_> {
    /// The members whose queries count.
    fn counting(&self, score: Score) -> Range<usize> {
        match score {
            Score::Head => self.member..self.member + 1,
            Score::Group => 0..self.head.step.site.shape.group(),
        }
    }

    /// What logits are computed of: the row's own query, or the sum over the group.
    fn query(&self, recipe: &Recipe<'_>) -> Vec<f32> {
        let row = self.head.step.row(self.member);
        match recipe {
            Recipe::TopLogits { score: Score::Group, .. } => row.query_of_group(),
            _ => row.query().to_vec(),
        }
    }
}

/// Where a range begins and ends.
fn ends(recipe: &Recipe<'_>) -> [u32; 2] {
    match recipe {
        Recipe::Range(range) => [range.start as u32, range.end as u32],
        Recipe::TopLogits { .. } | Recipe::TopCodes { .. } => [0, 0],
    }
}
