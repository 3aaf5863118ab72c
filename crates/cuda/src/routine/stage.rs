//! What the kernels of one stage are told at each step.

use std::ops::Range;

use vattention_core::step::Score;

use super::head::HeadInputs;
use super::kind::{RoutineKind, Stage};
use super::words::{Place, Places};
use crate::Device;
use crate::index::{IndexSpan, MapInputs};
use crate::launch::Array;
use crate::plan::Op;

/// Where the inputs of a stage are.
#[derive(Debug)]
pub(super) enum StageInputs {
    /// `[rows, count, 2]`
    Ranges(Place<u32>),
    /// `[rows]`, and `[rows, head_dim]`
    Logits {
        counts: Place<u32>,
        queries: Place<f32>,
    },
    /// `[rows]`; `[2, rows, head_dim]`; the bounds of each row; and those of each KV head.
    Pages {
        counts: Place<u32>,
        queries: Place<f32>,
        bounds: Place<u64>,
        kept: SpanInputs,
    },
    Codes(CodesInputs),
}

/// Where the inputs of a stage that compares codes are.
#[derive(Debug)]
pub(super) struct CodesInputs {
    /// `[rows]`
    counts: Place<u32>,
    /// `[rows, compared, head_dim]`, and their networks.
    queries: Place<f32>,
    query_networks: Place<u64>,
    /// What they are compared with, `[rows, compared]`.
    codes: Place<u64>,
    /// The codes of each KV head by each map, and their networks.
    kept: SpanInputs,
    key_networks: Place<u64>,
}

/// Indexes of KV heads: tables of their pages, addresses, and how many tokens or pages each holds.
#[derive(Debug)]
pub(super) struct SpanInputs {
    tables: Place<u64>,
    addresses: Place<u64>,
    known: Place<u32>,
}

/// The same on the device.
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
        kept: SpansOnDevice<D>,
    },
    Codes(CodesOnDevice<D>),
}

pub(super) struct CodesOnDevice<D: Device> {
    pub(super) counts: Array<D, u32>,
    pub(super) queries: Array<D, f32>,
    pub(super) query_networks: Array<D, u64>,
    pub(super) codes: Array<D, u64>,
    pub(super) kept: SpansOnDevice<D>,
    pub(super) key_networks: Array<D, u64>,
}

pub(super) struct SpansOnDevice<D: Device> {
    pub(super) tables: Array<D, u64>,
    pub(super) addresses: Array<D, u64>,
    pub(super) known: Array<D, u32>,
}

impl StageInputs {
    pub(super) fn new(places: &mut Places, kind: &RoutineKind, stage: &Stage) -> Self {
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
                kept: SpanInputs::new(places, heads),
            },
            Stage::Codes(stage) => {
                let compared = rows * stage.compared(kind.shape.group());
                let maps = heads * stage.maps;
                Self::Codes(CodesInputs {
                    counts: places.add(rows),
                    queries: places.add(compared * dim),
                    query_networks: places.add(compared),
                    codes: places.add(compared),
                    kept: SpanInputs::new(places, maps),
                    key_networks: places.add(maps),
                })
            }
        }
    }

    pub(super) fn on_device<D: Device>(&self, all: &Array<D, u32>) -> StageOnDevice<D> {
        match self {
            Self::Ranges(ranges) => StageOnDevice::Ranges(ranges.of(all)),
            Self::Logits { counts, queries } => {
                StageOnDevice::Logits { counts: counts.of(all), queries: queries.of(all) }
            }
            Self::Pages { counts, queries, bounds, kept } => StageOnDevice::Pages {
                counts: counts.of(all),
                queries: queries.of(all),
                bounds: bounds.of(all),
                kept: kept.on_device(all),
            },
            Self::Codes(codes) => StageOnDevice::Codes(codes.on_device(all)),
        }
    }

    /// Puts what `ops` of each head say.
    pub(super) fn put(
        &self,
        kind: &RoutineKind,
        heads: &[HeadInputs<'_>],
        ops: Range<usize>,
        all: &mut [u32],
    ) {
        let first = ops.start;
        let counts = |place: &Place<u32>, all: &mut [u32]| {
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
                let of_row = |row: PickRow<'_>| row.query(row.op(first));
                queries.put(&rows(kind, heads).flat_map(of_row).collect::<Vec<_>>(), all);
            }
            Self::Pages { counts: place, queries, bounds, kept } => {
                counts(place, all);
                let parts = [f32::min, f32::max].map(|part| {
                    let of_row = |row: PickRow<'_>| row.part(row.op(first), part);
                    rows(kind, heads).flat_map(of_row).collect::<Vec<_>>()
                });
                queries.put(&parts.concat(), all);
                let of_head = |head: &HeadInputs<'_>| head.indexes[first].bounds();
                let of_rows = rows(kind, heads).filter_map(|row| of_head(row.head));
                bounds.put(&of_rows.map(|kept| kept.address).collect::<Vec<_>>(), all);
                let of_heads = heads.iter().filter_map(|head| Some((head.table, of_head(head)?)));
                kept.put(&of_heads.collect::<Vec<_>>(), all);
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
            counts: self.counts.of(all),
            queries: self.queries.of(all),
            query_networks: self.query_networks.of(all),
            codes: self.codes.of(all),
            kept: self.kept.on_device(all),
            key_networks: self.key_networks.of(all),
        }
    }

    /// Puts what each head's `op` says.
    fn put(&self, kind: &RoutineKind, heads: &[HeadInputs<'_>], op: usize, all: &mut [u32]) {
        let (mut queries, mut networks, mut compared) = (Vec::new(), Vec::new(), Vec::new());
        for row in rows(kind, heads) {
            let Op::TopCodes { codes, maps, .. } = row.op(op) else { continue };
            let (head, kv_head) = (row.head, row.head.step.site.kv_head);
            for member in row.counting(codes.score) {
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
        self.kept
            .put(&maps.iter().map(|(table, map)| (*table, map.codes)).collect::<Vec<_>>(), all);
        let networks: Vec<u64> = maps.iter().map(|(_, map)| map.key_network).collect();
        self.key_networks.put(&networks, all);
    }
}

impl SpanInputs {
    fn new(places: &mut Places, count: usize) -> Self {
        let (tables, addresses) = (places.add(count), places.add(count));
        Self { tables, addresses, known: places.add(count) }
    }

    fn on_device<D: Device>(&self, all: &Array<D, u32>) -> SpansOnDevice<D> {
        SpansOnDevice {
            tables: self.tables.of(all),
            addresses: self.addresses.of(all),
            known: self.known.of(all),
        }
    }

    /// Puts tables of pages, and what is kept of the rows there.
    fn put(&self, kept: &[(u64, IndexSpan)], all: &mut [u32]) {
        self.tables.put(&kept.iter().map(|&(table, _)| table).collect::<Vec<_>>(), all);
        self.addresses.put(&kept.iter().map(|(_, at)| at.address).collect::<Vec<_>>(), all);
        self.known.put(&kept.iter().map(|(_, at)| at.known).collect::<Vec<_>>(), all);
    }
}

/// A row that picks: a member of a group, or the first for all of them.
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

    /// The members whose queries count.
    fn counting(&self, score: Score) -> Range<usize> {
        match score {
            Score::Head => self.member..self.member + 1,
            Score::Group => 0..self.head.step.site.shape.group(),
        }
    }

    /// What logits are computed of: the row's own query, or the sum over the group.
    fn query(&self, op: &Op) -> Vec<f32> {
        let row = self.head.step.row(self.member);
        match op {
            Op::TopLogits { score: Score::Group, .. } => row.query_of_group(),
            _ => row.query().to_vec(),
        }
    }

    /// What the least keys of pages are multiplied by, with `f32::min`, or the largest, with
    /// `f32::max`: the negative or the positive parts of the queries that count, summed.
    fn part(&self, op: &Op, part: fn(f32, f32) -> f32) -> Vec<f32> {
        let Op::TopPages { score, .. } = op else { return Vec::new() };
        let mut sums = vec![0.0; self.head.step.site.shape.head_dim];
        for member in self.counting(*score) {
            let row = self.head.step.row(member);
            sums.iter_mut().zip(row.query()).for_each(|(sum, &q)| *sum += part(q, 0.0));
        }
        sums
    }
}
