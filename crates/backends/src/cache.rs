//! The keys and values of one KV head, as stored.

use half::{bf16, f16};
use ndarray::ArrayView2;
use vattention_core::{NewTokens, Storage, Tokens};

/// Rows of one KV head, growing.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    keys: Rows,
    values: Rows,
}

#[derive(Clone, Debug)]
struct Rows {
    dim: usize,
    data: Data,
}

#[derive(Clone, Debug)]
enum Data {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Cache {
    pub(crate) fn new(storage: Storage, head_dim: usize, value_dim: usize) -> Self {
        Self { keys: Rows::new(storage, head_dim), values: Rows::new(storage, value_dim) }
    }

    /// Tokens held.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Adds keys `[new, head_dim]` and values `[new, value_dim]`, rounding them.
    pub(crate) fn append(&mut self, keys: ArrayView2<'_, f32>, values: ArrayView2<'_, f32>) {
        self.keys.append(keys);
        self.values.append(values);
    }

    /// All keys, `[len, head_dim]`.
    pub(crate) fn keys(&self) -> Tokens<'_> {
        self.keys.from(0)
    }

    /// All values, `[len, value_dim]`.
    pub(crate) fn values(&self) -> Tokens<'_> {
        self.values.from(0)
    }

    /// The tokens from `first` on.
    pub(crate) fn since(&self, first: usize) -> NewTokens<'_> {
        NewTokens { first, keys: self.keys.from(first), values: self.values.from(first) }
    }
}

impl Rows {
    fn new(storage: Storage, dim: usize) -> Self {
        let data = match storage {
            Storage::F32 => Data::F32(Vec::new()),
            Storage::F16 => Data::F16(Vec::new()),
            Storage::Bf16 => Data::Bf16(Vec::new()),
        };
        Self { dim, data }
    }

    fn len(&self) -> usize {
        let numbers = match &self.data {
            Data::F32(data) => data.len(),
            Data::F16(data) => data.len(),
            Data::Bf16(data) => data.len(),
        };
        numbers / self.dim
    }

    fn append(&mut self, rows: ArrayView2<'_, f32>) {
        match &mut self.data {
            Data::F32(data) => data.extend(rows.iter()),
            Data::F16(data) => data.extend(rows.iter().map(|&x| f16::from_f32(x))),
            Data::Bf16(data) => data.extend(rows.iter().map(|&x| bf16::from_f32(x))),
        }
    }

    fn from(&self, first: usize) -> Tokens<'_> {
        let (len, dim) = (self.len() - first, self.dim);
        match &self.data {
            Data::F32(data) => Tokens::new(&data[first * dim..], len, dim),
            Data::F16(data) => Tokens::new(&data[first * dim..], len, dim),
            Data::Bf16(data) => Tokens::new(&data[first * dim..], len, dim),
        }
    }
}
