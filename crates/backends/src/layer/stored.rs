//! Rows and state of a layer that can be stored, and restored in another layer.

use std::ops::Range;

use ndarray::{Array3, Axis, concatenate, s};
use vattention_core::{
    Error, Pipeline, Result,
    engine::{AttentionState, KeyValueRows, ObservedPrompt},
};

use super::Layer;
use crate::executor::Executor;
use crate::head::LayerHead;

impl<X: Executor> Layer<X> {
    /// Reads the rows of a range of tokens from the caches.
    pub(super) fn stored_rows(&self, tokens: Range<usize>) -> Result<KeyValueRows> {
        let len = self.heads[0].cache.len();
        if tokens.start > tokens.end || tokens.end > len {
            let expected = format!("a range within 0..{len} (the tokens appended)");
            return Err(Error::shape("tokens to read", expected, tokens));
        }
        if self.heads.iter().any(|head| head.cache.has_freed(tokens.clone())) {
            return Err(Error::Freed);
        }
        let (heads, count) = (self.heads.len(), tokens.len());
        let mut keys = Array3::zeros((heads, count, self.shape.head_dim));
        let mut values = Array3::zeros((heads, count, self.shape.value_dim));
        for (i, head) in self.heads.iter().enumerate() {
            let view = head.cache.view();
            keys.slice_mut(s![i, .., ..]).assign(&view.keys().to_array(tokens.clone()));
            values.slice_mut(s![i, .., ..]).assign(&view.values().to_array(tokens.clone()));
        }
        Ok(KeyValueRows { keys, values })
    }

    /// Returns the state of the layer, without its rows.
    pub(super) fn stored_state(&self) -> Result<AttentionState> {
        self.check_not_lost()?;
        if self.stepped && self.learns() {
            return Err(Error::Learns);
        }
        if self.heads.iter().any(|head| head.pipeline.has_rounded_rows()) {
            return Err(Error::Rounded);
        }
        let prompts = 0..self.heads[0].prompts().len();
        let first_sizes = self.heads.iter().flat_map(|head| head.pipeline.first_sizes());
        Ok(AttentionState {
            step: self.step,
            prompts: prompts.map(|i| self.observed_prompt(i)).collect(),
            first_sizes: first_sizes.collect(),
        })
    }

    /// Returns prompt `i`, with the joined queries of all KV heads.
    fn observed_prompt(&self, i: usize) -> ObservedPrompt {
        let parts: Vec<_> =
            self.heads.iter().map(|head| head.prompts()[i].queries.view()).collect();
        let queries = concatenate(Axis(0), &parts).expect("groups of one shape");
        ObservedPrompt { tokens: self.heads[0].prompts()[i].tokens, queries }
    }

    /// Restores the step number and the first sample sizes of another layer.
    pub(super) fn resume_state(&mut self, state: &AttentionState) -> Result<()> {
        let (count, group) = (state.first_sizes.len(), self.shape.group());
        if count != self.shape.query_heads {
            return Err(Error::shape("first sizes", self.shape.query_heads, count));
        }
        let restore = |(head, sizes): (&LayerHead, &[u64])| -> Result<Pipeline> {
            let mut pipeline = head.pipeline.clone();
            pipeline.restore_first_sizes(sizes)?;
            Ok(pipeline)
        };
        let sizes = state.first_sizes.chunks(group);
        let pipelines: Vec<Pipeline> =
            self.heads.iter().zip(sizes).map(restore).collect::<Result<_>>()?;
        for (head, pipeline) in self.heads.iter_mut().zip(pipelines) {
            head.pipeline = pipeline;
        }
        self.step = state.step;
        self.stepped |= state.step > 0;
        Ok(())
    }
}
