//! Verified sparse attention: decode-time attention over long KV caches that reads a few percent
//! of the tokens and keeps a promise, `Pr(relative error > epsilon) ≤ delta`, for every head at
//! every step.
//!
//! This crate links every selector, sampler and estimator, so that pipeline files may name them.
//!
//! | task | begin with |
//! |---|---|
//! | run a pipeline | [`config::load`], [`Backend::start`], [`Attention`], [`RowReport`] |
//! | write a selector, a sampler or an estimator | [`plugin`] |
//! | choose the tokens that an engine's own kernels read | [`engine`] |
//! | estimate the error of a sample | [`statistics`] |
//! | find an existing plug-in | [`selectors`], [`samplers`], [`estimators`] |
//! | find an index or a backend | [`index`], [`backends`] |
//! | read captured heads, or generate synthetic ones | `trace` |
//! | compare, verify, study, measure | `experiments` |
//!
//! Without features this is the library that an engine embeds. The feature `cuda` adds the backend
//! of this name (module `cuda`); `lab` adds captured and synthetic heads, experiments and plots
//! (modules `trace`, `experiments` and `plots`).
//!
//! ```
//! use std::sync::Arc;
//! use vattention::{Attention, Backend, Options, Shape, backends::Cpu, config::Loader};
//! use vattention::ndarray::Array3;
//!
//! let pipeline = Loader::default().parse("example.toml", r#"
//!     [[selectors]]
//!     type = "oracle-top-k"
//!     size = 0.05
//!
//!     [estimator]
//!     type = "ratio"
//!     epsilon = 0.1
//!     delta = 0.05
//! "#)?;
//! let shape = Shape { query_heads: 4, kv_heads: 2, head_dim: 16, value_dim: 16 };
//! let mut attention = Cpu::default().start(&pipeline, 0, shape, &Options::default())?;
//! let rows = Array3::from_shape_fn((2, 1000, 16), |(h, t, d)| ((h + 3 * t + 7 * d) as f32).sin());
//! attention.append(rows.view(), rows.view())?;
//! let output = attention.attend(Array3::ones((4, 1, 16)).view(), None)?;
//! assert_eq!(output.out.dim(), (4, 1, 16));
//! assert!(output.rows.iter().all(|row| row.certificate.held));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod engine;
mod pipelines;
pub mod plugin;
pub mod statistics;

pub use vattention_backends as backends;
pub use vattention_config as config;
pub use vattention_core::{
    Attention, Backend, Certificate, Conflict, Error, FallBack, Fraction, Goal, Kind, Options,
    Output, PipelineConfig, Promise, Result, RowReport, RowsView, Shape, Share, Size, Storage,
    Target, TokenClass,
    engine::{BatchEntry, PageSize, Placement, Timings},
    ndarray, panic_message,
    pipeline::{LayerSettings, Layers},
    promise::{ErrorBar, Scope},
};
#[cfg(feature = "cuda")]
pub use vattention_cuda as cuda;
pub use vattention_estimators as estimators;
#[cfg(feature = "lab")]
pub use vattention_experiments as experiments;
pub use vattention_index as index;
#[cfg(feature = "lab")]
pub use vattention_plots as plots;
pub use vattention_samplers as samplers;
pub use vattention_selectors as selectors;
#[cfg(feature = "lab")]
pub use vattention_trace as trace;

/// Returns all backends, including those that are not [`available`](Backend::available) on this
/// machine.
pub fn all_backends() -> Vec<Box<dyn Backend>> {
    vec![
        Box::new(backends::Reference),
        Box::new(backends::Cpu::default()),
        #[cfg(feature = "cuda")]
        Box::new(cuda::Cuda::default()),
    ]
}

/// Returns the backends that can run on this machine.
pub fn available_backends() -> Vec<Box<dyn Backend>> {
    all_backends().into_iter().filter(|backend| backend.available().is_ok()).collect()
}

/// Returns the backend with this [`name`](Backend::name), if there is one.
pub fn backend(name: &str) -> Option<Box<dyn Backend>> {
    all_backends().into_iter().find(|backend| backend.name() == name)
}

/// Compiles the code of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
