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

mod accumulator;
mod assumption;
mod backend;
mod closed_form;
mod drawing;
mod error;
mod estimator;
mod layers;
mod lessons;
mod look;
mod network;
mod op;
mod order;
mod picks;
mod pipeline;
mod pipeline_config;
mod plan;
mod prefix_max;
mod promise;
mod reading;
mod registry;
mod row;
mod rows_view;
mod sampler;
mod search;
mod selection;
mod selector;
mod shape;
mod size;
mod softmax;
mod stats;
mod stratification;
mod stream;
mod token_class;
mod tokens;
mod top;
mod tunable;
mod uniform;
mod uniforms;
mod weighed;

pub use accumulator::{Accumulator, ExactAccumulator, Residual};
pub use assumption::{Assumption, Assumptions};
pub use backend::{
    Attention, Backend, FallBack, Options, Output, PageSize, Placement, RowReport, Storage,
    Timings, Turn,
};
pub use closed_form::{ClosedForm, Denominator, Formula, Numerator, Population, Split};
pub use error::{Error, Result};
pub use estimator::{Budget, Estimator, Radius, Schedule, check_sizes};
pub use layers::{LayerSettings, Layers};
pub use network::{Activation, Affine, Network};
pub use op::{CodeMap, HashCodes, SelectorOp};
pub use order::{Draws, Order};
pub use picks::Picks;
pub use pipeline::{Choice, Pipeline};
pub use pipeline_config::{Conflict, PipelineConfig, Share};
pub use plan::{Counted, Plan, Sampled};
pub use prefix_max::PrefixMax;
pub use promise::{Certificate, ErrorBar, Goal, Kind, Promise, SampleGoal, Scope, Target};
pub use reading::{List, Read, Reading};
pub use registry::{Component, ComponentKind, components, registry_faults};
pub use row::{Row, Score, Step};
pub use rows_view::RowsView;
pub use sampler::{Design, Evidence, ProofTerms, SampleProof, Sampler, SamplerConfig, Unseen};
pub use search::required_size;
pub use selection::Selection;
pub use selector::{Attended, NewTokens, PromptQueries, Selector, SelectorConfig};
pub use shape::{Shape, Site};
pub use size::{Fraction, ShareWithLeast, Size};
pub use softmax::Softmax;
pub use stats::{
    ALLOWANCE, Deviations, LAGS, Moments, Sample, SampleStats, drift, max_or_nan,
    mean_of_lagged_squares, scale_up,
};
pub use stratification::Stratification;
pub use stream::Stream;
pub use token_class::TokenClass;
pub use tokens::{BlockLayout, Blocks, Element, MAX_MAGNITUDE, PageLayout, StoredRows, Tokens};
pub use top::Rank;
pub use tunable::{Tunable, TunableGoal};
pub use uniform::{Uniform, default_base};
pub use uniforms::Uniforms;
pub use weighed::{Centre, Weighed, Within};

pub use {inventory, ndarray, schemars, typetag};
