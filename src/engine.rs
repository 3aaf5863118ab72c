//! For engines that keep their own cache or have their own kernels: a [`Pipeline`] at work on one KV head.
//!
//! [`Cpu::answer`](crate::backends::Cpu::answer) answers a [`Step`] by the kernels of the `cpu` backend, over rows wherever they lie. [`Pipeline::read`] says what the query heads of a [`Step`] read; [`Pipeline::sample`] asks an [`Accumulator`] to read it; [`Pipeline::plan`] says what a device that takes whole steps has to do.

pub use vattention_core::{
    Accumulator, Activation, Affine, Attended, BlockLayout, Blocks, Choice, ClosedForm, CodeMap,
    Counted, Denominator, Element, ExactAccumulator, Formula, HashCodes, List, MAX_MAGNITUDE,
    Network, NewTokens, Numerator, PageLayout, Pipeline, Plan, Population, PrefixMax,
    PromptQueries, Read, Reading, Residual, Sampled, Selection, SelectorOp, Site, Softmax, Split,
    Step, StoredRows, Tokens,
};
