//! Rows of the drawn tokens, in memory that a thread uses again.

use std::cell::RefCell;
use std::thread::LocalKey;

use half::{bf16, f16};
use vattention_core::Tokens as Rows;

use super::readers::{Readers, RowByRow};
use super::simd::{CHUNK, Element};

/// Rows stored for each token.
#[derive(Debug, Default)]
pub(crate) struct SampleRows<E> {
    pub(crate) rows: RowByRow,
    /// `[b][value_chunks · CHUNK]`
    pub(crate) values: Vec<E>,
    /// Products of the values of four tokens, as far as they were asked for.
    pub(crate) fours: Vec<[f64; 6]>,
}

impl<E: Stored> SampleRows<E> {
    /// The values, `[b · value_dim]`.
    pub(crate) fn values(&self, readers: &Readers<'_, E>) -> Vec<f32> {
        let stride = readers.rows.value_chunks() * CHUNK;
        let (count, dim) = (self.values.len() / stride, readers.value_dim());
        let rows = Rows::strided(&self.values, count, dim, stride);
        rows.to_array(0..count).into_raw_vec_and_offset().0
    }
}

/// A number type of the cache with memory to keep samples in. Steps use the same memory again:
/// megabytes that the system clears at each use would cost more than the statistics.
pub(crate) trait Stored: Element + Default + vattention_core::step::Element {
    /// This thread's memory that is not in use.
    fn pool() -> &'static LocalKey<RefCell<Vec<SampleRows<Self>>>>;
}

thread_local! {
    static F32: RefCell<Vec<SampleRows<f32>>> = const { RefCell::new(Vec::new()) };
    static F16: RefCell<Vec<SampleRows<f16>>> = const { RefCell::new(Vec::new()) };
    static BF16: RefCell<Vec<SampleRows<bf16>>> = const { RefCell::new(Vec::new()) };
}

impl Stored for f32 {
    fn pool() -> &'static LocalKey<RefCell<Vec<SampleRows<Self>>>> {
        &F32
    }
}

impl Stored for f16 {
    fn pool() -> &'static LocalKey<RefCell<Vec<SampleRows<Self>>>> {
        &F16
    }
}

impl Stored for bf16 {
    fn pool() -> &'static LocalKey<RefCell<Vec<SampleRows<Self>>>> {
        &BF16
    }
}
