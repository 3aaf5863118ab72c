//! Rows of drawn tokens, in memory that a thread reuses.

use std::cell::RefCell;
use std::thread::LocalKey;

use half::{bf16, f16};
use vattention_core::Tokens;

use super::kernel::FourProducts;
use super::query_heads::{LogitsAndNorms, QueryHeads};
use super::simd::{CHUNK, SimdElement};

/// Copies of the rows of drawn tokens.
#[derive(Debug, Default)]
pub(crate) struct SampleRows<T> {
    /// Logits, and norms as far as they were computed.
    pub(crate) rows: LogitsAndNorms,
    /// `[b][value_chunks · CHUNK]`
    pub(crate) values: Vec<T>,
    /// Products of values within each group of four tokens, as far as they were computed.
    pub(crate) fours: FourProducts,
}

impl<T: PooledElement> SampleRows<T> {
    /// Values in f32 without padding, `[b · value_dim]`.
    pub(crate) fn values<E: SimdElement<Sample = T>>(&self, heads: &QueryHeads<'_, E>) -> Vec<f32> {
        let stride = heads.rows.value_chunks() * CHUNK;
        let (count, dim) = (self.values.len() / stride, heads.value_dim());
        let rows = Tokens::strided(&self.values, count, dim, stride);
        rows.to_array(0..count).into_raw_vec_and_offset().0
    }
}

/// A number type of the cache, whose samples have a pool of memory.
pub(crate) trait SampledElement: SimdElement<Sample: PooledElement> {}

impl<E: SimdElement<Sample: PooledElement>> SampledElement for E {}

/// A number type of samples with a pool of memory for them. Steps reuse this memory: clearing
/// megabytes of new memory at each step would take longer than the statistics.
pub(crate) trait PooledElement:
    SimdElement + Default + vattention_core::step::Element
{
    /// Memory of this thread that is not in use.
    fn pool() -> &'static LocalKey<RefCell<Vec<SampleRows<Self>>>>;
}

thread_local! {
    static F32: RefCell<Vec<SampleRows<f32>>> = const { RefCell::new(Vec::new()) };
    static F16: RefCell<Vec<SampleRows<f16>>> = const { RefCell::new(Vec::new()) };
    static BF16: RefCell<Vec<SampleRows<bf16>>> = const { RefCell::new(Vec::new()) };
}

impl PooledElement for f32 {
    fn pool() -> &'static LocalKey<RefCell<Vec<SampleRows<Self>>>> {
        &F32
    }
}

impl PooledElement for f16 {
    fn pool() -> &'static LocalKey<RefCell<Vec<SampleRows<Self>>>> {
        &F16
    }
}

impl PooledElement for bf16 {
    fn pool() -> &'static LocalKey<RefCell<Vec<SampleRows<Self>>>> {
        &BF16
    }
}
