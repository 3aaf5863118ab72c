//! One KV head of a sequence whose keys and values an engine stores.

mod checks;
mod share;

use std::sync::Arc;

use ndarray::{ArrayView3, s};
use vattention_core::{
    Error, FallBack, NewTokens, Options, Output, Pipeline, PipelineConfig, Result, Shape, Site,
    Step, TokenClass, plugin::PromptQueries,
};

use crate::cpu::Cpu;
use crate::executor::{HeadInput, HeadOutput};
use crate::head_rows::HeadRows;
use crate::input::limits;
use crate::output::push_row;
use crate::pipelines::{GroupSoftmax, build_pipeline, check_softmax};
use crate::row_checksums::RowChecksums;

/// One KV head of a sequence whose keys and values an engine stores. It has the indexes of the
/// pipeline, counts tokens and steps, and passes attention weights to selectors that need them.
///
/// Each call receives the rows of all tokens anew, so that the engine may move them in between. The
/// indexes follow positions of the sequence, not places in memory.
#[derive(Clone, Debug)]
pub struct EngineHead {
    pipeline: Pipeline,
    softmax: GroupSoftmax,
    scale: f32,
    fall_back: FallBack,
    /// Number of tokens that the selectors have indexed.
    tokens: usize,
    /// Number of tokens whose index has been moved to memory that clones share.
    shared: usize,
    /// Checksums of the indexed rows; `None` if the indexes cannot be shared.
    checksums: Option<RowChecksums>,
    /// Number of tokens at the end of the last observed prompt.
    prompt_end: usize,
    /// True if a selector picks every token until it has observed a prompt.
    needs_prompt: bool,
    /// Number of the next step.
    step: u32,
    /// True if a selector panicked while it indexed tokens or a prompt.
    lost: bool,
}

impl EngineHead {
    /// Creates KV head `kv_head` of a layer, without tokens. Of the options, `sequence`, `scale`,
    /// `soft_cap`, `sink_logits`, `first_step`, `fall_back` and `omit_error_bars` have an effect.
    ///
    /// # Errors
    /// Returns an error if the shape, the KV head or an option is invalid, if the pipeline does not
    /// support them, or if its promise counts the rounding of rows, which an engine does not
    /// report.
    pub fn new(
        config: &Arc<PipelineConfig>,
        layer: usize,
        kv_head: usize,
        shape: Shape,
        options: &Options,
    ) -> Result<Self> {
        shape.check()?;
        if kv_head >= shape.kv_heads {
            return Err(Error::shape("kv_head", format!("less than {}", shape.kv_heads), kv_head));
        }
        let scale = check_softmax(shape, options)?;
        let site = Site { seed: config.seed, sequence: options.sequence, layer, kv_head, shape };
        let pipeline = build_pipeline(config, site, options)?;
        if pipeline.counts_rounding() {
            return Err(Error::Build {
                component: "estimator".into(),
                reason: "`reference = \"unrounded\"` needs the rows before their rounding, and an \
                         engine passes the stored ones only: leave out `reference`"
                    .into(),
            });
        }
        Ok(Self {
            softmax: GroupSoftmax::new(&site, options),
            scale,
            fall_back: options.fall_back,
            tokens: 0,
            shared: 0,
            checksums: pipeline.check_shareable().is_ok().then(RowChecksums::default),
            prompt_end: 0,
            needs_prompt: pipeline.awaits_prompt().is_some(),
            step: options.first_step,
            lost: false,
            pipeline,
        })
    }

    /// Indexes the tokens of `rows` behind those that are indexed already. `classes` has the class
    /// of each new token, which some selectors [need](Self::needs_classes).
    ///
    /// # Errors
    /// Returns an error for a wrong shape, a number that is not finite or too large, missing
    /// classes, and fewer tokens than before; then nothing has changed.
    pub fn append(&mut self, rows: &HeadRows<'_>, classes: Option<&[TokenClass]>) -> Result<()> {
        self.check_append(rows, classes)?;
        self.append_checked(rows, classes)
    }

    /// Indexes tokens like [`append`](Self::append), after [`check_append`](Self::check_append) has
    /// accepted the same arguments. The numbers of the rows are not checked again.
    ///
    /// # Errors
    /// Returns an error for a wrong shape and missing classes.
    pub fn append_checked(
        &mut self,
        rows: &HeadRows<'_>,
        classes: Option<&[TokenClass]>,
    ) -> Result<()> {
        let (first, len) = (self.tokens, rows.keys.len());
        if len == first {
            return Ok(());
        }
        let (keys, values) = (rows.keys.range(first..len), rows.values.range(first..len));
        self.lost = true;
        let appended = self.pipeline.append(&NewTokens { first, keys, values, classes });
        self.lost = false;
        appended?;
        if let Some(checksums) = &mut self.checksums {
            checksums.append(rows, first);
        }
        self.tokens = len;
        Ok(())
    }

    /// Passes the last queries of a prompt, `[group, prompt, head_dim]`, to the selectors. The last
    /// query belongs to the newest token. `rows` are those of all tokens.
    ///
    /// # Errors
    /// Returns an error for a wrong shape or a number that is not finite; then nothing has changed.
    pub fn observe(&mut self, rows: &HeadRows<'_>, queries: ArrayView3<'_, f32>) -> Result<()> {
        let scaled = self.scaled_prompt(rows, &queries)?;
        let site = *self.pipeline.site();
        let (queries, form) = (scaled.view(), self.softmax.form());
        let HeadRows { keys, values } = *rows;
        self.lost = true;
        self.pipeline.observe(&PromptQueries { site: &site, queries, keys, values, form });
        self.lost = false;
        self.prompt_end = self.tokens;
        Ok(())
    }

    /// Computes attention for queries `[group, queries, head_dim]`, one decode step each, in order,
    /// on the calling thread. Query `t` may read the first `visible[t]` tokens, or all tokens if
    /// `visible` is `None`. `rows` are those of all tokens. The output has the group's query heads,
    /// and no selection and times.
    ///
    /// # Errors
    /// Returns an error for a wrong shape, a number that is not finite, numbers of visible tokens
    /// outside `1..=len`, rows that the kernels do not support (see [`Cpu::execute_step`]), and a
    /// prompt that a selector lacks; then nothing has changed.
    pub fn attend(
        &mut self,
        rows: &HeadRows<'_>,
        queries: ArrayView3<'_, f32>,
        visible: Option<&[usize]>,
    ) -> Result<Output> {
        let scaled = self.scaled(&queries)?;
        self.check_appended(rows)?;
        let visible = limits(visible, scaled.dim().1, self.tokens)?;
        let Shape { value_dim, .. } = self.pipeline.site().shape;
        let group = scaled.dim().0;
        let mut output = Output::zeros([group, visible.len(), value_dim]);
        for (t, &limit) in visible.iter().enumerate() {
            let query: Vec<f32> = scaled.slice(s![.., t, ..]).iter().copied().collect();
            let step = self.execute_step(rows, &query, limit)?;
            for (member, row) in step.rows.iter().enumerate() {
                push_row(&mut output, member, t, row);
            }
        }
        Ok(output)
    }

    /// Computes one step, for scaled queries `[group · head_dim]`.
    fn execute_step(
        &mut self,
        rows: &HeadRows<'_>,
        queries: &[f32],
        visible: usize,
    ) -> Result<HeadOutput> {
        let site = *self.pipeline.site();
        let (HeadRows { keys, values }, form) = (*rows, self.softmax.form());
        let step =
            Step { visible, step: self.step, form, ..Step::new(&site, queries, keys, values) };
        let listed = self.pipeline.needs_feedback();
        let head = HeadInput { pipeline: &self.pipeline, step, listed };
        let output = Cpu::execute_step(&head, self.fall_back)?;
        if listed {
            output.feed_back(&step, &mut self.pipeline);
        }
        self.step = self.step.wrapping_add(1);
        Ok(output)
    }

    /// Returns a KV head that continues from the same tokens and step. The indexes are copied,
    /// apart from those that can be [shared](Self::share_index). A new `sequence` number makes its
    /// samples independent.
    #[must_use]
    pub fn fork(&mut self, sequence: Option<u32>) -> Self {
        self.share_newest();
        let mut fork = self.clone();
        if let Some(sequence) = sequence {
            fork.pipeline.set_sequence(sequence);
        }
        fork
    }

    /// Removes all but the first `tokens` tokens from the indexes, in place. `rows` has at least
    /// these tokens. The step number continues, so later samples are drawn anew.
    ///
    /// # Errors
    /// Returns [`Error::NoRewind`] with the name of a selector or sampler that cannot remove
    /// tokens, and an error if there are fewer tokens, or if a prompt that was observed ends later;
    /// then nothing has changed.
    pub fn truncate(&mut self, rows: &HeadRows<'_>, tokens: usize) -> Result<()> {
        self.check_truncate(rows, tokens)?;
        let first_sizes = self.pipeline.first_sizes();
        self.lost = true;
        let rewound = self.pipeline.rewind(tokens, &first_sizes);
        self.pipeline.hide(&rows.keys.range(0..tokens));
        self.lost = false;
        rewound?;
        if let Some(checksums) = &mut self.checksums {
            checksums.truncate(tokens);
        }
        self.shared = self.shared.min(tokens);
        self.tokens = tokens;
        Ok(())
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens
    }

    /// Returns true if there is no token.
    pub fn is_empty(&self) -> bool {
        self.tokens == 0
    }

    /// Dimensions of the layer.
    pub fn shape(&self) -> Shape {
        self.pipeline.site().shape
    }

    /// Size in bytes of the indexes. Each of `n` KV heads that share a segment counts an `n`-th of
    /// it.
    pub fn index_bytes(&self) -> usize {
        self.pipeline.index_bytes()
    }

    /// Returns true if a selector needs the class of each token.
    pub fn needs_classes(&self) -> bool {
        self.pipeline.needs_classes().is_some()
    }

    /// Returns true if a selector needs the last queries of the prompt before the first step.
    pub fn needs_prompt(&self) -> bool {
        self.needs_prompt
    }

    /// Returns true if a selector learns from the attention weights of each step, which costs a
    /// pass over the tokens read.
    pub fn needs_feedback(&self) -> bool {
        self.pipeline.needs_feedback()
    }

    /// Returns true if selectors and sampler can [remove](Self::truncate) tokens.
    pub fn can_truncate(&self) -> bool {
        self.pipeline.check_rewindable().is_ok()
    }
}
