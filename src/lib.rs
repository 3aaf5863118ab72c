//! Verified sparse attention: decode-time attention over long KV caches that reads a few percent
//! of the tokens and keeps a promise, `Pr(relative error > epsilon) ≤ delta`, for every head at
//! every step.
//!
//! Depending on this crate links every selector, sampler and estimator, so that pipeline files may
//! name them.
//!
//! | you want to | begin with |
//! |---|---|
//! | run a pipeline | [`config::load`], [`Backend::start`], [`Attention`], and what each row reports: [`RowReport`] |
//! | write a selector, a sampler or an estimator | [`plugin`] |
//! | let a pipeline choose what an engine's own kernels read | [`engine`] |
//! | see what a sample says of its error | [`statistics`] |
//! | know a part that is there | [`selectors`], [`samplers`], [`estimators`], [`index`], [`backends`] |
//! | read captured heads, or generate synthetic ones | `trace` |
//! | compare, verify, study, measure | `experiments` |
//!
//! Without features this is the library that an engine embeds. The feature `cuda` adds the backend of
//! that name (module `cuda`); `lab` adds captured and synthetic heads, experiments and their plots
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
    engine::{PageSize, Placement, Timings, Turn},
    ndarray,
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

/// Every backend, by [`name`](Backend::name), also those that are not
/// [`available`](Backend::available) on this machine.
pub fn all_backends() -> Vec<Box<dyn Backend>> {
    vec![
        Box::new(backends::Reference),
        Box::new(backends::Cpu::default()),
        #[cfg(feature = "cuda")]
        Box::new(cuda::Cuda::default()),
    ]
}

/// The backends that can run on this machine.
pub fn available_backends() -> Vec<Box<dyn Backend>> {
    all_backends().into_iter().filter(|backend| backend.available().is_ok()).collect()
}

/// The backend of that name, if there is one.
pub fn backend(name: &str) -> Option<Box<dyn Backend>> {
    all_backends().into_iter().find(|backend| backend.name() == name)
}

/// The README's code compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
