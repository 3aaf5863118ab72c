//! For engines that keep their own cache or have their own kernels: a [`Pipeline`] at work on one KV head.
//!
//! [`Cpu::answer`](crate::backends::Cpu::answer) answers a [`Step`] by the kernels of the `cpu` backend, over rows wherever they lie. [`Pipeline::read`] says what the query heads of a [`Step`] read; [`Pipeline::sample`] asks an [`Accumulator`] to read it.

pub use vattention_core::{
    NewTokens, Pipeline, Site, Step, Tokens,
    engine::{Selection, Wrapper, wrap},
    pipeline::{Choice, List, Read, Reading},
    plugin::{Attended, PromptQueries},
    sample::{Accumulator, ExactAccumulator, Residual},
    step::{
        BlockLayout, Blocks, Element, MAX_MAGNITUDE, PageLayout, PrefixMax, Softmax, StoredRows,
    },
};
