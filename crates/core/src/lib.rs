//! Sparse attention as a composition of token selectors, with verified error.
//!
//! A [`PipelineConfig`] names selectors and an estimator. Built for one KV head it is a
//! [`Pipeline`], which turns a decode [`Step`] into lists of tokens to read: what the
//! [`Selector`]s pick for certain, and a uniform sample of everything else, as large as the
//! [`Estimator`] says a [`Promise`] needs. A [`Backend`] owns the KV cache and runs
//! pipelines; nothing here knows a device, a file format or a thread.
//!
//! Attention over a list is `N^/D^`, with `N^ = Σ e v / p` and `D^ = Σ e / p` over its tokens,
//! where `e = exp(scale · q·k)` and `p` is the probability with which a token came to be read.

//! The modules, lower ones first: [`step`] (tokens, rows, picks), [`sample`] (designs' statistics),
//! [`promise`], [`plugin`] (the three plug-in traits), [`pipeline`], [`engine`] (backends and caches).
//! The names that most users need are in the root, too.

pub mod engine;
mod error;
pub mod pipeline;
pub mod plugin;
pub mod promise;
pub mod sample;
mod size;
pub mod step;

pub use engine::{Attention, Backend, FallBack, Options, Output, Storage};
pub use error::{Conflict, Error, Result};
pub use pipeline::{Pipeline, PipelineConfig, RowReport, Share};
pub use plugin::{Estimator, NewTokens, Sampler, SamplerConfig, Selector, SelectorConfig};
pub use promise::{Certificate, Goal, Kind, Promise, Target};
pub use sample::SampleStats;
pub use size::{Fraction, ShareWithLeast, Size};
pub use step::{Picks, Row, RowsView, Shape, Site, Step, TokenClass, Tokens};

pub use {inventory, ndarray, schemars, typetag};
