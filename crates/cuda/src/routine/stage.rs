//! Inputs of one stage at each step.

use std::ops::Range;

use vattention_core::step::Score;

use super::head::HeadInputs;
use super::kind::{RoutineKind, Stage};
use super::words::{WordSlot, WordSlots};
use crate::Device;
use crate::index::{IndexSpan, MapInputs};
use crate::launch::Array;
use crate::plan::Op;

/// Places of the inputs of a stage.
#[derive(Debug)]
pub(super) enum StageInputs {
    /// `[rows, count, 2]`
    Ranges(WordSlot<u32>),
    /// Counts `[rows]`, and queries `[rows, head_dim]`.
    Logits {
        counts: WordSlot<u32>,
        queries: WordSlot<f32>,
    },
    /// Counts `[rows]`; queries `[2, rows, head_dim]`; bounds of each row `[rows]`; the index of
    /// each KV head.
    Pages {
        counts: WordSlot<u32>,
        queries: WordSlot<f32>,
        bounds: WordSlot<u64>,
        index: SpanInputs,
    },
    Codes(CodesInputs),
}

/// Places of the inputs of a stage that compares codes.
#[derive(Debug)]
pub(super) struct CodesInputs {
    /// Number of tokens to take, `[rows]`.
    counts: WordSlot<u32>,
    /// Queries `[rows, compared, head_dim]`, and the networks that encode them.
    queries: WordSlot<f32>,
    query_networks: WordSlot<u64>,
    /// Codes that the queries are compared with, `[rows, compared]`.
    codes: WordSlot<u64>,
    /// Codes of each KV head and map, and the networks that encode keys.
    index: SpanInputs,
    key_networks: WordSlot<u64>,
}

/// Places of index parts: addresses of page tables and of the parts, and the number of tokens or
/// pages indexed so far.
#[derive(Debug)]
pub(super) struct SpanInputs {
    tables: WordSlot<u64>,
    addresses: WordSlot<u64>,
    indexed: WordSlot<u32>,
}

/// Views of a stage's inputs on the device.
pub(super) enum StageOnDevice<D: Device> {
    Ranges(Array<D, u32>),
    Logits {
        counts: Array<D, u32>,
        queries: Array<D, f32>,
    },
    Pages {
        counts: Array<D, u32>,
        queries: Array<D, f32>,
        bounds: Array<D, u64>,
        index: SpansOnDevice<D>,
    },
    Codes(CodesOnDevice<D>),
}

pub(super) struct CodesOnDevice<D: Device> {
    pub(super) counts: Array<D, u32>,
    pub(super) queries: Array<D, f32>,
    pub(super) query_networks: Array<D, u64>,
    pub(super) codes: Array<D, u64>,
    pub(super) index: SpansOnDevice<D>,
    pub(super) key_networks: Array<D, u64>,
}

pub(super) struct SpansOnDevice<D: Device> {
    pub(super) tables: Array<D, u64>,
    pub(super) addresses: Array<D, u64>,
    pub(super) indexed: Array<D, u32>,
}

impl StageInputs {
    pub(super) fn new(places: &mut WordSlots, kind: &RoutineKind, stage: &Stage) -> Self {
        let (rows, heads, dim) = (kind.rows(), kind.shape.kv_heads, kind.shape.head_dim);
        match stage {
            &Stage::Ranges(count) => Self::Ranges(places.add(rows * count * 2)),
            Stage::Logits(_) => {
                Self::Logits { counts: places.add(rows), queries: places.add(rows * dim) }
            }
            Stage::Pages { .. } => Self::Pages {
                counts: places.add(rows),
                queries: places.add(2 * rows * dim),
                bounds: places.add(rows),
                index: SpanInputs::new(places, heads),
            },
            Stage::Codes(stage) => {
                let compared = rows * stage.compared(kind.shape.group());
                let maps = heads * stage.maps;
                Self::Codes(CodesInputs {
                    counts: places.add(rows),
                    queries: places.add(compared * dim),
                    query_networks: places.add(compared),
                    codes: places.add(compared),
                    index: SpanInputs::new(places, maps),
                    key_networks: places.add(maps),
                })
            }
        }
    }

    pub(super) fn on_device<D: Device>(&self, all: &Array<D, u32>) -> StageOnDevice<D> {
        match self {
            Self::Ranges(ranges) => StageOnDevice::Ranges(ranges.view(all)),
            Self::Logits { counts, queries } => {
                StageOnDevice::Logits { counts: counts.view(all), queries: queries.view(all) }
            }
            Self::Pages { counts, queries, bounds, index } => StageOnDevice::Pages {
                counts: counts.view(all),
                queries: queries.view(all),
                bounds: bounds.view(all),
                index: index.on_device(all),
            },
            Self::Codes(codes) => StageOnDevice::Codes(codes.on_device(all)),
        }
    }

    /// Writes the inputs from the operations `ops` of each head.
    pub(super) fn put(
        &self,
        kind: &RoutineKind,
        heads: &[HeadInputs<'_>],
        ops: Range<usize>,
        all: &mut [u32],
    ) {
        let first = ops.start;
        let counts = |place: &WordSlot<u32>, all: &mut [u32]| {
            let count = |row: PickRow<'_>| row.op(first).count(row.head.step.visible) as u32;
            place.put(&rows(kind, heads).map(count).collect::<Vec<_>>(), all);
        };
        match self {
            Self::Ranges(place) => {
                let ends = |row: PickRow<'_>, op| {
                    let range = row.op(op).range(row.head.step.visible).unwrap_or_default();
                    [range.start as u32, range.end as u32]
                };
                let ranges =
                    rows(kind, heads).flat_map(|row| ops.clone().flat_map(move |op| ends(row, op)));
                place.put(&ranges.collect::<Vec<_>>(), all);
            }
            Self::Logits { counts: place, queries } => {
                counts(place, all);
                let query = |row: PickRow<'_>| row.query(row.op(first));
                queries.put(&rows(kind, heads).flat_map(query).collect::<Vec<_>>(), all);
            }
            Self::Pages { counts: place, queries, bounds, index } => {
                counts(place, all);
                let parts = [f32::min, f32::max].map(|part| {
                    let query = |row: PickRow<'_>| row.signed_query(row.op(first), part);
                    rows(kind, heads).flat_map(query).collect::<Vec<_>>()
                });
                queries.put(&parts.concat(), all);
                let span = |head: &HeadInputs<'_>| head.indexes[first].bounds();
                let row_spans = rows(kind, heads).filter_map(|row| span(row.head));
                bounds.put(&row_spans.map(|span| span.address).collect::<Vec<_>>(), all);
                let head_spans = heads.iter().filter_map(|head| Some((head.table, span(head)?)));
                index.put(&head_spans.collect::<Vec<_>>(), all);
            }
            Self::Codes(codes) => {
                counts(&codes.counts, all);
                codes.put(kind, heads, first, all);
            }
        }
    }
}

impl CodesInputs {
    fn on_device<D: Device>(&self, all: &Array<D, u32>) -> CodesOnDevice<D> {
        CodesOnDevice {
            counts: self.counts.view(all),
            queries: self.queries.view(all),
            query_networks: self.query_networks.view(all),
            codes: self.codes.view(all),
            index: self.index.on_device(all),
            key_networks: self.key_networks.view(all),
        }
    }

    /// Writes the inputs from the operation `op` of each head.
    fn put(&self, kind: &RoutineKind, heads: &[HeadInputs<'_>], op: usize, all: &mut [u32]) {
        let (mut queries, mut networks, mut compared) = (Vec::new(), Vec::new(), Vec::new());
        for row in rows(kind, heads) {
            let Op::TopCodes { codes, maps, .. } = row.op(op) else { continue };
            let (head, kv_head) = (row.head, row.head.step.site.kv_head);
            for member in row.scored_members(codes.score) {
                let map = codes.map_of(member);
                let on_device = &head.indexes[op].maps()[map];
                queries.extend(maps[kv_head][map].unscaled(head.step.row(member).query()));
                networks.push(on_device.query_network);
                compared.push(on_device.codes.address);
            }
        }
        self.queries.put(&queries, all);
        self.query_networks.put(&networks, all);
        self.codes.put(&compared, all);
        let maps = |head: &HeadInputs<'_>| -> Vec<(u64, MapInputs)> {
            head.indexes[op].maps().iter().map(|&map| (head.table, map)).collect()
        };
        let maps: Vec<(u64, MapInputs)> = heads.iter().flat_map(maps).collect();
        let spans: Vec<_> = maps.iter().map(|(table, map)| (*table, map.codes)).collect();
        self.index.put(&spans, all);
        let networks: Vec<u64> = maps.iter().map(|(_, map)| map.key_network).collect();
        self.key_networks.put(&networks, all);
    }
}

impl SpanInputs {
    fn new(places: &mut WordSlots, count: usize) -> Self {
        let (tables, addresses) = (places.add(count), places.add(count));
        Self { tables, addresses, indexed: places.add(count) }
    }

    fn on_device<D: Device>(&self, all: &Array<D, u32>) -> SpansOnDevice<D> {
        SpansOnDevice {
            tables: self.tables.view(all),
            addresses: self.addresses.view(all),
            indexed: self.indexed.view(all),
        }
    }

    /// Writes pairs of a page table's address and a part of the index of its rows.
    fn put(&self, spans: &[(u64, IndexSpan)], all: &mut [u32]) {
        self.tables.put(&spans.iter().map(|&(table, _)| table).collect::<Vec<_>>(), all);
        self.addresses.put(&spans.iter().map(|(_, span)| span.address).collect::<Vec<_>>(), all);
        self.indexed.put(&spans.iter().map(|(_, span)| span.indexed).collect::<Vec<_>>(), all);
    }
}

/// A row of picks: of one query head, or of the whole group, which its first member represents.
#[derive(Clone, Copy)]
struct PickRow<'a> {
    head: &'a HeadInputs<'a>,
    member: usize,
}

fn rows<'a>(kind: &RoutineKind, heads: &'a [HeadInputs<'a>]) -> impl Iterator<Item = PickRow<'a>> {
    let members = kind.rows_of_head();
    heads.iter().flat_map(move |head| (0..members).map(move |member| PickRow { head, member }))
}

impl<'a> PickRow<'a> {
    /// The operation of a selector.
    fn op(&self, place: usize) -> &'a Op {
        &self.head.plan.ops[place]
    }

    /// Members whose queries enter the score.
    fn scored_members(&self, score: Score) -> Range<usize> {
        match score {
            Score::Head => self.member..self.member + 1,
            Score::Group => 0..self.head.step.site.shape.group(),
        }
    }

    /// Query for the logits: the row's own query, or the sum over the group.
    fn query(&self, op: &Op) -> Vec<f32> {
        let row = self.head.step.row(self.member);
        match op {
            Op::TopLogits { score: Score::Group, .. } => row.group_query(),
            _ => row.query().to_vec(),
        }
    }

    /// Factors for the smallest keys of pages, with `part` `f32::min`, or for the largest keys,
    /// with `f32::max`: the negative or the positive parts of the scored queries, summed.
    fn signed_query(&self, op: &Op, part: fn(f32, f32) -> f32) -> Vec<f32> {
        let Op::TopPages { score, .. } = op else { return Vec::new() };
        let mut sums = vec![0.0; self.head.step.site.shape.head_dim];
        for member in self.scored_members(*score) {
            let row = self.head.step.row(member);
            sums.iter_mut().zip(row.query()).for_each(|(sum, &q)| *sum += part(q, 0.0));
        }
        sums
    }
}
