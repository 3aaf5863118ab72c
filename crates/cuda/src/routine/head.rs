//! Inputs of one KV head at a step.

use vattention_core::Step;

use crate::index::IndexInputs;
use crate::plan::Plan;

/// Inputs of one KV head at a step.
pub(crate) struct HeadInputs<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) step: &'a Step<'a>,
    /// Largest norm of a visible value.
    pub(crate) longest: f64,
    /// Keys of each list's random order, and the sides of the order, which all lists share.
    pub(crate) orders: Vec<([u32; 8], [u32; 2])>,
    /// Address of the page table.
    pub(crate) table: u64,
    /// Inputs from the index of each selector.
    pub(crate) indexes: Vec<IndexInputs>,
}
