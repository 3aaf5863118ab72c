//! Inputs of a routine at each step, written in one copy.

use vattention_core::{Result, Shape};

use super::head::HeadInputs;
use super::kind::{RoutineKind, Stage};
use super::stage::{StageInputs, StageOnDevice};
use super::words::{WordSlot, WordSlots};
use crate::Device;
use crate::launch::{Array, StepNumbers};

/// Places of the inputs of a step.
#[derive(Debug)]
pub(super) struct Inputs {
    places: WordSlots,
    step: WordSlot<u32>,
    /// Addresses of page tables, one for each list and one for each row of picks.
    list_tables: WordSlot<u64>,
    row_tables: WordSlot<u64>,
    /// `[query_heads, head_dim]`
    queries: WordSlot<f32>,
    stages: Vec<StageInputs>,
    /// Keys of the random order of each list, `[lists, 8]`.
    orders: WordSlot<u32>,
    /// Inverse of the largest value norm, and that norm, `[lists]`.
    units: WordSlot<f32>,
    longest: WordSlot<f64>,
}

/// Views of the inputs on the device.
pub(super) struct InputsOnDevice<D: Device> {
    pub(super) all: Array<D, u32>,
    pub(super) step: StepNumbers<D>,
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
        let mut places = WordSlots::default();
        let step = places.add(StepNumbers::<crate::Driver>::LEN);
        let (list_tables, row_tables) = (places.add(lists), places.add(rows));
        let queries = places.add(query_heads * head_dim);
        let stages =
            kind.stages.iter().map(|stage| StageInputs::new(&mut places, kind, stage)).collect();
        let (orders, units) = (places.add(lists * 8), places.add(lists));
        let longest = places.add(lists);
        Self { places, step, list_tables, row_tables, queries, stages, orders, units, longest }
    }

    pub(super) fn on_device<D: Device>(
        &self,
        device: &D,
        capacity: usize,
    ) -> Result<InputsOnDevice<D>> {
        let all = self.places.array(device)?;
        Ok(InputsOnDevice {
            step: StepNumbers::new(self.step.view(&all), capacity)?,
            list_tables: self.list_tables.view(&all),
            row_tables: self.row_tables.view(&all),
            queries: self.queries.view(&all),
            stages: self.stages.iter().map(|stage| stage.on_device(&all)).collect(),
            orders: self.orders.view(&all),
            units: self.units.view(&all),
            longest: self.longest.view(&all),
            all,
        })
    }

    /// Encodes the inputs of a step.
    pub(super) fn encode(&self, kind: &RoutineKind, heads: &[HeadInputs<'_>]) -> Vec<u32> {
        let mut all = self.places.zeros();
        let first = &heads[0];
        let sample = first.plan.sample.as_ref();
        let base = sample.map_or(0, |sample| sample.base.to_tokens(first.step.visible));
        let sides = first.orders.first().map_or([2, 2], |&(_, sides)| sides);
        self.step
            .put(&StepNumbers::<crate::Driver>::numbers(first.step.visible, sides, base), &mut all);
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

/// Factor for values that keeps their squares finite.
fn unit(longest: f64) -> f32 {
    (1.0 / longest.max(1e-37)) as f32
}
