//! Random rows, queries and token lists, and attention over them in f64.

use std::sync::Arc;

use half::{bf16, f16};
use vattention_core::{Storage, step::Softmax};
use vattention_cuda::Device;
use vattention_cuda::launch::{Array, AttendLists, CombineSums, Lists, Logits, Pages, RowLayout};
use vattention_cuda_emulator::{Emulator, REQUIRE_EMULATOR};
use vattention_testkit::or_skip;

/// The emulator, or `None` with a note on stderr if there is no compiler.
pub(crate) fn emulator() -> Option<Emulator> {
    or_skip(Emulator::new(), REQUIRE_EMULATOR)
}

/// Uniform numbers in [−1, 1).
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> f32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn bits(&mut self) -> u32 {
        self.next();
        (self.0 >> 32) as u32
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (f64::from(self.next() + 1.0) / 2.0 * bound as f64) as usize
    }
}

/// Dimensions for which a program is compiled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) storage: Storage,
    pub(crate) head_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) group: usize,
    pub(crate) log2_page: u32,
}

/// Every storage type, the smallest and the largest dimensions, and odd ones between.
pub(crate) const KINDS: [Kind; 10] = [
    kind(Storage::F32, 1, 1, 1, 0),
    kind(Storage::F16, 64, 64, 4, 3),
    kind(Storage::Bf16, 128, 128, 4, 6),
    kind(Storage::F32, 96, 40, 3, 4),
    kind(Storage::F16, 33, 256, 2, 5),
    kind(Storage::Bf16, 256, 128, 8, 3),
    kind(Storage::F16, 128, 64, 16, 7),
    kind(Storage::F32, 256, 256, 16, 2),
    kind(Storage::Bf16, 80, 80, 5, 10),
    kind(Storage::F32, 128, 224, 1, 1),
];

const fn kind(
    storage: Storage,
    head_dim: usize,
    value_dim: usize,
    group: usize,
    log2_page: u32,
) -> Kind {
    Kind { storage, head_dim, value_dim, group, log2_page }
}

impl Kind {
    pub(crate) fn layout(self) -> RowLayout {
        RowLayout::new(self.storage, self.head_dim, self.value_dim, self.log2_page).unwrap()
    }
}

/// A list of tokens, with probabilities or without.
#[derive(Clone, Debug)]
pub(crate) struct List {
    pub(crate) tokens: Vec<u32>,
    pub(crate) probabilities: Option<Vec<f32>>,
}

impl List {
    /// `length` random tokens below `rows`, ascending; probabilities, if any, are from 10⁻⁶ to 1.
    pub(crate) fn random(
        length: usize,
        rows: usize,
        weighted: bool,
        numbers: &mut Numbers,
    ) -> Self {
        let mut tokens: Vec<u32> = (0..rows as u32).collect();
        while tokens.len() > length {
            tokens.remove(numbers.below(tokens.len()));
        }
        let p = |_: &u32| 10_f32.powf(-3.0 * (numbers.next() + 1.0)).clamp(1e-6, 1.0);
        let probabilities = weighted.then(|| tokens.iter().map(p).collect());
        Self { tokens, probabilities }
    }
}

/// A KV head, and the queries of one problem that read it.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) keys: Vec<Vec<f32>>,
    pub(crate) values: Vec<Vec<f32>>,
    pub(crate) queries: Vec<Vec<f32>>,
}

impl Head {
    /// Numbers of a typical size: logits have a spread of about 2, and values a positive mean.
    pub(crate) fn usual(kind: Kind, rows: usize, numbers: &mut Numbers) -> Self {
        let scale = 6.0 / (kind.head_dim as f32).sqrt();
        Self::new(kind, rows, |part| match part {
            Part::Key => numbers.next(),
            Part::Value => numbers.next() + 0.5,
            Part::Query => numbers.next() * scale,
        })
    }

    /// Logits up to 10⁴ and beyond, whole numbers, which are exact in any precision.
    pub(crate) fn huge(kind: Kind, rows: usize, numbers: &mut Numbers) -> Self {
        let most = (10_000.0 / (3.0 * (kind.head_dim as f32).sqrt())).ceil();
        Self::new(kind, rows, |part| match part {
            Part::Key => (numbers.next() * 4.0).round(),
            Part::Value => numbers.next(),
            Part::Query => (numbers.next() * most).round(),
        })
    }

    fn new(kind: Kind, rows: usize, mut number: impl FnMut(Part) -> f32) -> Self {
        let mut rounded =
            |part, dim| (0..dim).map(|_| round(number(part), kind.storage)).collect::<Vec<f32>>();
        let keys = (0..rows).map(|_| rounded(Part::Key, kind.head_dim)).collect();
        let values = (0..rows).map(|_| rounded(Part::Value, kind.value_dim)).collect();
        let queries = (0..kind.group)
            .map(|_| (0..kind.head_dim).map(|_| number(Part::Query)).collect())
            .collect();
        Self { keys, values, queries }
    }

    pub(crate) fn logit(&self, query: usize, token: u32) -> f64 {
        let products = self.queries[query].iter().zip(&self.keys[token as usize]);
        products.map(|(&q, &k)| f64::from(q) * f64::from(k)).sum()
    }

    /// Attention of each query over a list, in f64.
    pub(crate) fn softmax(&self, list: &List) -> Vec<Softmax> {
        let value_dim = self.values.first().map_or(0, Vec::len);
        let attend = |query| {
            let mut sum = Softmax::new(value_dim);
            for (i, &token) in list.tokens.iter().enumerate() {
                let p = list.probabilities.as_ref().map_or(1.0, |p| f64::from(p[i]));
                sum.add(self.logit(query, token), 1.0 / p, &self.values[token as usize]);
            }
            sum
        };
        (0..self.queries.len()).map(attend).collect()
    }

    pub(crate) fn largest_value(&self) -> f64 {
        self.values.iter().flatten().fold(0.0, |most, &v| most.max(f64::from(v.abs())))
    }

    /// The rows in their storage type, in pages.
    pub(crate) fn pages<D: Device>(&self, device: &D, kind: Kind) -> Pages<D> {
        let layout = kind.layout();
        let page = |rows: &[(&Vec<f32>, &Vec<f32>)]| {
            let mut bytes = Vec::with_capacity(layout.page_bytes());
            for (key, value) in rows {
                let mut row = vec![0.0; layout.stride()];
                row[..key.len()].copy_from_slice(key);
                row[layout.value_offset()..][..value.len()].copy_from_slice(value);
                for x in row {
                    store(x, kind.storage, &mut bytes);
                }
            }
            let page = Array::zeros(device, layout.page_bytes()).unwrap();
            page.write(&bytes, 0).unwrap();
            Arc::new(page)
        };
        let rows: Vec<_> = self.keys.iter().zip(&self.values).collect();
        let pages = rows.chunks(1 << kind.log2_page).map(page).collect();
        Pages::new(device, layout, pages).unwrap()
    }
}

#[derive(Clone, Copy)]
enum Part {
    Key,
    Value,
    Query,
}

fn round(x: f32, storage: Storage) -> f32 {
    match storage {
        Storage::F32 => x,
        Storage::F16 => f16::from_f32(x).to_f32(),
        Storage::Bf16 => bf16::from_f32(x).to_f32(),
        Storage::Q8 => unreachable!("the kernels read floats"),
    }
}

fn store(x: f32, storage: Storage, bytes: &mut Vec<u8>) {
    match storage {
        Storage::F32 => bytes.extend(x.to_le_bytes()),
        Storage::F16 => bytes.extend(f16::from_f32(x).to_le_bytes()),
        Storage::Bf16 => bytes.extend(bf16::from_f32(x).to_le_bytes()),
        Storage::Q8 => unreachable!("the kernels read floats"),
    }
}

/// Results of the kernels.
#[derive(Debug, PartialEq)]
pub(crate) struct AttentionResults {
    /// Sums of each query head, problem by problem.
    pub(crate) sums: Vec<Softmax>,
    pub(crate) logits: Vec<f32>,
}

/// Runs the kernels for some problems in one launch. Either all lists have probabilities, or none.
pub(crate) fn attend<D: Device>(
    device: &D,
    kind: Kind,
    problems: &[(&Head, &List)],
) -> AttentionResults {
    let mut indptr = vec![0];
    let (mut tokens, mut probabilities) = (Vec::new(), Vec::new());
    for (_, list) in problems {
        tokens.extend(&list.tokens);
        probabilities.extend(list.probabilities.iter().flatten());
        indptr.push(tokens.len());
    }
    let weighted = problems.iter().all(|(_, list)| list.probabilities.is_some());
    let probabilities = weighted.then_some(&probabilities[..]);
    let lists = Lists::new(device, &indptr, &tokens, probabilities).unwrap();
    let heads: Vec<&Head> = problems.iter().map(|&(head, _)| head).collect();
    run(device, kind, &heads, &lists)
}

/// Runs the kernels over lists that are on the device.
pub(crate) fn run<D: Device>(
    device: &D,
    kind: Kind,
    heads: &[&Head],
    lists: &Lists<D>,
) -> AttentionResults {
    let queries: Vec<f32> = heads.iter().flat_map(|head| head.queries.concat()).collect();
    let queries = Array::new(device, &queries).unwrap();
    let pages: Vec<_> = heads.iter().map(|head| head.pages(device, kind)).collect();
    let pages: Vec<_> = pages.iter().collect();
    let logits = Logits::new(device, heads.len(), kind.group, lists.longest()).unwrap();
    let attend = AttendLists::new(device, kind.layout(), kind.group).unwrap();
    let records = attend.run(&pages, lists, &queries, Some(&logits)).unwrap();
    let sums = CombineSums::new(device).unwrap().run(&records, lists).unwrap();
    AttentionResults { sums: sums.read().unwrap(), logits: logits.read().unwrap() }
}
