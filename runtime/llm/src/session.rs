//! One sequence: a prefill, then decode steps by the pipeline.

mod context;
mod prefill;
mod rotated;
mod saved;
mod speculation;
mod step;

use std::sync::Arc;

use vattention_core::{
    Attention, Backend, FallBack, Options, PipelineConfig, SelectorConfig, Size, Storage,
    TokenClass,
};
use vattention_selectors::Window;

pub use rotated::rotates_rows;
pub use saved::{SavedSession, SessionContent, SessionOrigin};
pub use speculation::{DraftCounts, MOST_DRAFTS, Speculation};

use rotated::RowRotations;

use crate::prefill::check_finite;
use crate::report::{LayerReport, mean_density};
use crate::{Classes, Error, Model, PrefillOptions, Result};

/// Name of the internal pipeline of sliding layers. Backends that wrap others recognise these
/// layers by the name.
pub const SLIDING_LAYER: &str = "(sliding layer)";

/// One sequence of a model.
#[allow(missing_debug_implementations)]
pub struct Session<'m> {
    model: &'m Model,
    layers: Vec<Box<dyn Attention>>,
    /// Number type of the stored keys and values.
    storage: Storage,
    /// Rotations of queries, keys and values, if the sequence [rotates rows](rotates_rows).
    rotations: Option<Arc<RowRotations>>,
    /// Number of newest tokens that all layers can give back.
    rewindable: usize,
    prefill_options: PrefillOptions,
    /// Class of each token of the vocabulary, if the caller has provided them.
    classes: Option<Classes>,
    /// Number of tokens so far.
    len: usize,
    reports: Vec<LayerReport>,
    /// Density of the prompt's attention, if a prompt was read.
    prefill_density: Option<f64>,
    /// True if the model's end tokens end a generation.
    pub(crate) ends: bool,
    /// True if a call has failed between two layers.
    lost: bool,
}

impl<'m> Session<'m> {
    /// Starts an empty sequence. [`Options::scale`], [`Options::soft_cap`] and
    /// [`Options::sink_logits`] are ignored: the model determines them.
    ///
    /// Full layers follow the pipeline. Sliding layers read all tokens of their window, and free
    /// the rows of the others after each step. Rows in 8 bits are rotated before they are rounded,
    /// unless a part of the pipeline depends on single channels ([`rotates_rows`]).
    ///
    /// # Errors
    /// [`Error::Pipeline`] if the pipeline does not fit the model; [`Error::Attention`] with the
    /// layer if the backend refuses the pipeline or an option.
    pub fn new(
        model: &'m Model,
        backend: &dyn Backend,
        pipeline: &Arc<PipelineConfig>,
        options: &Options,
    ) -> Result<Self> {
        let config = model.config();
        pipeline.expect_layers(config.layers).map_err(Error::Pipeline)?;
        let start = |layer| {
            let started = start_layer(model, backend, pipeline, options, layer);
            started.map_err(|source| Error::Attention { layer, source })
        };
        let rotations = rotates_rows(pipeline, options.storage)
            .then(|| Arc::new(RowRotations::new(config.shape)));
        Ok(Self {
            model,
            layers: (0..config.layers).map(start).collect::<Result<_>>()?,
            storage: options.storage,
            rotations,
            rewindable: options.rewindable,
            prefill_options: PrefillOptions::default(),
            classes: None,
            len: 0,
            reports: Vec::new(),
            prefill_density: None,
            ends: true,
            lost: false,
        })
    }

    /// Sets the options of the prefill.
    #[must_use]
    pub fn with_prefill_options(self, options: PrefillOptions) -> Self {
        Self { prefill_options: options, ..self }
    }

    /// Provides the classes of tokens, which some selectors [need](PipelineConfig::needs_classes).
    #[must_use]
    pub fn with_classes(self, classes: Option<Classes>) -> Self {
        Self { classes, ..self }
    }

    /// Lets generation continue after the model's end tokens.
    #[must_use]
    pub fn without_end(self) -> Self {
        Self { ends: false, ..self }
    }

    /// Model of the sequence.
    pub fn model(&self) -> &'m Model {
        self.model
    }

    /// Number of tokens so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the sequence has no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reports of the last step, one per layer; empty before the first step.
    pub fn reports(&self) -> &[LayerReport] {
        &self.reports
    }

    /// Share of the tokens that the last step read, averaged over full layers and KV heads; `None`
    /// before the first step, 1 if all layers slide.
    pub fn density(&self) -> Option<f64> {
        mean_density(&self.reports)
    }

    /// Share of the causal token-key pairs that the prompt's attention read, averaged over full
    /// layers and KV heads: 1 for dense attention, `None` if no prompt was read.
    pub fn prefill_density(&self) -> Option<f64> {
        self.prefill_density
    }

    /// Bytes that selectors and backend store besides keys and values; see
    /// [`Attention::index_bytes`].
    pub fn index_bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.index_bytes()).sum()
    }

    /// Bytes of the stored keys and values; see [`Attention::held_bytes`].
    pub fn held_bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.held_bytes()).sum()
    }

    /// Returns an independent sequence that continues from the same tokens, such as another
    /// question about the same context. A new `sequence` number makes its samples independent too.
    ///
    /// # Errors
    /// [`Error::Lost`], or [`Error::Attention`] if there is not enough memory.
    pub fn fork(&self, sequence: Option<u32>) -> Result<Self> {
        self.check_not_lost()?;
        let layers = self.layers.iter().enumerate().map(|(layer, attention)| {
            attention.fork(sequence).map_err(|source| Error::Attention { layer, source })
        });
        let layers = layers.collect::<Result<_>>()?;
        let (reports, classes) = (self.reports.clone(), self.classes.clone());
        let rotations = self.rotations.clone();
        Ok(Self { layers, rotations, classes, reports, ..*self })
    }

    /// Returns the classes of tokens, if the caller has provided the vocabulary's.
    fn classify(&self, tokens: &[u32]) -> Option<Vec<TokenClass>> {
        Some(self.classes.as_ref()?.classify(tokens))
    }

    fn check_not_lost(&self) -> Result<()> {
        if self.lost { Err(Error::Lost) } else { Ok(()) }
    }

    /// Runs `work`, which adds `new` tokens to all layers. After an error some layers may have the
    /// tokens and others not, so the sequence cannot continue.
    fn grow(
        &mut self,
        new: usize,
        work: impl FnOnce(&mut Self) -> Result<Vec<f32>>,
    ) -> Result<Vec<f32>> {
        self.lost = true;
        let logits = check_finite(work(self)?)?;
        self.lost = false;
        self.len += new;
        Ok(logits)
    }
}

/// Starts the attention of a layer: by the pipeline, or dense within the layer's window.
fn start_layer(
    model: &Model,
    backend: &dyn Backend,
    pipeline: &Arc<PipelineConfig>,
    options: &Options,
    layer: usize,
) -> vattention_core::Result<Box<dyn Attention>> {
    let config = model.config();
    let options = Options {
        scale: config.block.scale,
        soft_cap: config.block.attention_cap,
        sink_logits: model.layers[layer].sinks(),
        ..options.clone()
    };
    let Some(window) = config.window(layer) else {
        return backend.start(pipeline, layer, config.shape, &options);
    };
    let window = Window { size: Size::Tokens(window.size), aligned: window.aligned };
    let selectors: Vec<Box<dyn SelectorConfig>> = vec![Box::new(window)];
    let name = SLIDING_LAYER.into();
    let sliding = PipelineConfig { name, selectors, ..PipelineConfig::default() };
    let options = Options { fall_back: FallBack::Never, free_evicted: true, ..options };
    backend.start(&Arc::new(sliding), layer, config.shape, &options)
}
