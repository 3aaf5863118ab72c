//! What a routine is told at each step, in one copy.

use vattention_core::{Result, Shape};

use super::head::HeadInputs;
use super::kind::{RoutineKind, Stage};
use super::stage::{StageInputs, StageOnDevice};
use super::words::{Place, Places};
use crate::Device;
use crate::launch::{Array, Now};

/// Where the inputs of a step are.
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

impl Inputs {
    pub(super) fn new(kind: &RoutineKind) -> Self {
        let (lists, rows) = (kind.lists(), kind.rows());
        let Shape { query_heads, head_dim, .. } = kind.shape;
        let mut places = Places::default();
        let now = places.add(Now::<crate::Driver>::LEN);
        let (list_tables, row_tables) = (places.add(lists), places.add(rows));
        let queries = places.add(query_heads * head_dim);
        let stages =
            kind.stages.iter().map(|stage| StageInputs::new(&mut places, kind, stage)).collect();
        let (orders, units) = (places.add(lists * 8), places.add(lists));
        let longest = places.add(lists);
        Self { places, now, list_tables, row_tables, queries, stages, orders, units, longest }
    }

    pub(super) fn on_device<D: Device>(&self, device: &D, capacity: usize) -> Result<OnDevice<D>> {
        let all = self.places.array(device)?;
        Ok(OnDevice {
            now: Now::new(self.now.of(&all), capacity)?,
            list_tables: self.list_tables.of(&all),
            row_tables: self.row_tables.of(&all),
            queries: self.queries.of(&all),
            stages: self.stages.iter().map(|stage| stage.on_device(&all)).collect(),
            orders: self.orders.of(&all),
            units: self.units.of(&all),
            longest: self.longest.of(&all),
            all,
        })
    }

    /// The inputs of a step.
    pub(super) fn of_step(&self, kind: &RoutineKind, heads: &[HeadInputs<'_>]) -> Vec<u32> {
        let mut all = self.places.zeros();
        let first = &heads[0];
        let sample = first.plan.sample.as_ref();
        let base = sample.map_or(0, |sample| sample.base.to_tokens(first.step.visible));
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
        let longest: Vec<f64> =
            heads.iter().flat_map(|head| std::iter::repeat_n(head.longest, lists)).collect();
        let units: Vec<f32> = longest.iter().map(|&longest| unit(longest)).collect();
        self.units.put(&units, &mut all);
        self.longest.put(&longest, &mut all);
        let mut ops = 0;
        for (i, stage) in self.stages.iter().enumerate() {
            let used = if let Stage::Ranges(count) = kind.stages[i] { count } else { 1 };
            stage.put(kind, heads, ops..ops + used, &mut all);
            ops += used;
        }
        all
    }
}

/// What values are multiplied by, lest their squares be too large.
fn unit(longest: f64) -> f32 {
    (1.0 / longest.max(1e-37)) as f32
}
