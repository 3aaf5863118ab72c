//! One sequence: a prefill, then steps by the pipeline.

mod context;
mod prefill;
mod step;

use std::sync::Arc;

use vattention_core::{Attention, Backend, Options, PipelineConfig, TokenClass};

use crate::prefill::check_finite;
use crate::report::LayerReport;
use crate::{Classes, Error, Model, PrefillOptions, Result};

/// One sequence of a model.
#[allow(missing_debug_implementations)]
pub struct Session<'m> {
    model: &'m Model,
    layers: Vec<Box<dyn Attention>>,
    reading: PrefillOptions,
    /// What tokens are in a text, if that was said.
    classes: Option<Classes>,
    /// Tokens so far.
    len: usize,
    reports: Vec<LayerReport>,
    /// Of the prompt, if one was read.
    prefill_density: Option<f64>,
    /// Whether some tokens end a text.
    pub(crate) ends: bool,
    /// Whether a call has failed between two layers.
    lost: bool,
}

impl<'m> Session<'m> {
    /// An empty sequence. [`Options::scale`] is the model's, whatever it says there.
    ///
    /// # Errors
    /// A pipeline or option that cannot work with the model, with the layer.
    pub fn new(
        model: &'m Model,
        backend: &dyn Backend,
        pipeline: &Arc<PipelineConfig>,
        options: &Options,
    ) -> Result<Self> {
        let config = model.config();
        pipeline.expect_layers(config.layers).map_err(Error::Pipeline)?;
        let options = Options { scale: None, ..options.clone() };
        let start = |layer| {
            let started = backend.start(pipeline, layer, config.shape, &options);
            started.map_err(|source| Error::Attention { layer, source })
        };
        Ok(Self {
            model,
            layers: (0..config.layers).map(start).collect::<Result<_>>()?,
            reading: PrefillOptions::default(),
            classes: None,
            len: 0,
            reports: Vec::new(),
            prefill_density: None,
            ends: true,
            lost: false,
        })
    }

    /// Reads prompts another way.
    #[must_use]
    pub fn with_prefill_options(self, reading: PrefillOptions) -> Self {
        Self { reading, ..self }
    }

    /// Tells the pipeline what each token is in the text, which some selectors
    /// [need](PipelineConfig::needs_classes).
    #[must_use]
    pub fn with_classes(self, classes: Option<Classes>) -> Self {
        Self { classes, ..self }
    }

    /// Takes no token for the end of a text.
    #[must_use]
    pub fn without_end(self) -> Self {
        Self { ends: false, ..self }
    }

    /// The model.
    pub fn model(&self) -> &'m Model {
        self.model
    }

    /// Tokens so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What the layers read at the last step; empty before the first one.
    pub fn reports(&self) -> &[LayerReport] {
        &self.reports
    }

    /// Share of the tokens that the last step read, as the mean over layers and KV heads; `None`
    /// before the first one.
    pub fn density(&self) -> Option<f64> {
        let layers = self.reports.len();
        let sum: f64 = self.reports.iter().map(LayerReport::density).sum();
        (layers > 0).then(|| sum / layers as f64)
    }

    /// Share of the causal pairs of tokens and keys that the prompt's attention read, as the mean over
    /// layers and KV heads: 1 by dense attention, `None` if no prompt was read.
    pub fn prefill_density(&self) -> Option<f64> {
        self.prefill_density
    }

    /// Bytes that selectors and backend keep beside keys and values; see
    /// [`Attention::index_bytes`].
    pub fn index_bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.index_bytes()).sum()
    }

    /// A sequence that goes on from the same tokens, independently: another question about the
    /// same context. A new `sequence` number makes its samples independent too.
    ///
    /// # Errors
    /// [`Error::Lost`], or [`Error::Attention`] if there is no memory for it.
    pub fn fork(&self, sequence: Option<u32>) -> Result<Self> {
        self.check_not_lost()?;
        let layers = self.layers.iter().enumerate().map(|(layer, attention)| {
            attention.fork(sequence).map_err(|source| Error::Attention { layer, source })
        });
        let layers = layers.collect::<Result<_>>()?;
        let (reports, classes) = (self.reports.clone(), self.classes.clone());
        Ok(Self { layers, classes, reports, ..*self })
    }

    /// What tokens are in a text, if that was said.
    fn classes_of(&self, tokens: &[u32]) -> Option<Vec<TokenClass>> {
        Some(self.classes.as_ref()?.of(tokens))
    }

    fn check_not_lost(&self) -> Result<()> {
        if self.lost { Err(Error::Lost) } else { Ok(()) }
    }

    /// Does what adds `new` tokens to all layers. If it fails, some layers may have them and others
    /// not, so nothing can follow.
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
