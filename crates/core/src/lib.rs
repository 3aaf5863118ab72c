//! Sparse attention as a composition of token selectors, with verified error.
//!
//! A [`PipelineConfig`] names selectors, a sampler and an estimator. For one KV head it is built
//! into a [`Pipeline`], which turns a decode [`Step`] into lists of tokens to read: the picks of
//! the [`Selector`]s, which are always read, and a random sample of the other tokens, drawn by the
//! [`Sampler`] and as large as the [`Estimator`] finds necessary to keep a [`Promise`]. A
//! [`Backend`] owns the KV cache and runs pipelines. This crate does not depend on any device,
//! file format or thread pool.
//!
//! Attention over a token list is `N^/D^`, with `N^ = Σ e v / p` and `D^ = Σ e / p` over its
//! tokens, where `e = exp(scale · q·k)` and `p` is the token's inclusion probability, which is 1
//! for picks. A model may cap logits, and may add attention sinks to `D`; see [`SoftmaxForm`].
//!
//! The modules, lower ones first, are [`step`] (tokens, rows, picks), [`sample`] (statistics of
//! samples), [`promise`], [`plugin`] (the three plug-in traits), [`pipeline`] and [`engine`]
//! (the traits of backends). The crate's root re-exports the names that most users need.

pub mod engine;
mod error;
pub mod pipeline;
pub mod plugin;
pub mod promise;
pub mod sample;
mod size;
pub mod step;

pub use engine::{Attention, Backend, FallBack, Options, Output, Storage};
pub use error::{Conflict, Error, Result, panic_message};
pub use pipeline::{Pipeline, PipelineConfig, RowReport, Share};
pub use plugin::{Estimator, NewTokens, Sampler, SamplerConfig, Selector, SelectorConfig};
pub use promise::{Certificate, Goal, Kind, Promise, Target};
pub use sample::SampleStats;
pub use size::{Fraction, ShareWithLeast, Size};
pub use step::{Picks, Row, RowsView, Shape, Site, SoftmaxForm, Step, TokenClass, Tokens};

pub use {inventory, ndarray, schemars, typetag};
