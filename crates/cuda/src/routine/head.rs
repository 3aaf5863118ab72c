//! One KV head at a step.

use vattention_core::Step;

use crate::index::IndexInputs;
use crate::plan::Plan;

/// Inputs of one KV head at a step.
pub(crate) struct HeadInputs<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) step: &'a Step<'a>,
    /// The largest norm of a visible value.
    pub(crate) longest: f64,
    /// Keys of the random order of each of its lists, and the sides of all of them.
    pub(crate) orders: Vec<([u32; 8], [u32; 2])>,
    /// Its table of pages.
    pub(crate) table: u64,
    /// The index of each selector.
    pub(crate) indexes: Vec<IndexInputs>,
}
