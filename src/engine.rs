//! Interface for engines with their own cache or kernels: a [`Pipeline`] for each KV head.
//!
//! [`EngineHead`](crate::backends::EngineHead) computes the steps of one KV head over rows in the
//! engine's memory. The parts of which it consists are here, for engines that need them singly.
//! [`Cpu::execute_step`](crate::backends::Cpu::execute_step) computes a [`Step`] with the kernels
//! of the `cpu` backend, over rows in the engine's memory. [`Pipeline::read`] returns the tokens
//! that the query heads of a [`Step`] read. [`Pipeline::sample`] reads them through an
//! [`Accumulator`] of the engine.

pub use vattention_core::{
    NewTokens, Pipeline, Site, SoftmaxForm, Step, Tokens,
    engine::{
        AttentionState, KeyValueRows, ObservedPrompt, Selection, SequencePoint, Wrapper, wrap,
    },
    pipeline::{Choice, List, Read, Reading},
    plugin::{AttentionWeights, PromptQueries},
    sample::{Accumulator, ExactAccumulator, Residual},
    step::{
        BlockLayout, Blocks, Element, MAX_MAGNITUDE, PageLayout, PrefixMax, RowScales, Softmax,
        StoredRows, round_row,
    },
};
