//! Return of a layer to an earlier point of its sequence.

use vattention_core::{Attention, Error, Result, engine::SequencePoint};

use super::{IndexState, Layer};
use crate::executor::Executor;

impl<X: Executor> Layer<X> {
    /// Returns the point that the layer has reached.
    pub(super) fn current_point(&self) -> Result<SequencePoint> {
        self.check_not_lost()?;
        self.heads[0].pipeline.check_rewindable()?;
        let first_sizes = self.heads.iter().flat_map(|head| head.pipeline.first_sizes());
        Ok(SequencePoint {
            tokens: self.len(),
            step: self.step,
            first_sizes: first_sizes.collect(),
        })
    }

    /// Returns to an earlier point.
    pub(super) fn rewind_to(&mut self, to: &SequencePoint) -> Result<()> {
        self.check_point(to)?;
        if to.tokens < self.len() {
            self.executor.truncate(to.tokens)?;
        }
        let sizes = to.first_sizes.chunks(self.shape.group());
        let index_state = std::mem::replace(&mut self.index_state, IndexState::Lost);
        for (head, sizes) in self.heads.iter_mut().zip(sizes) {
            head.rewind(to.tokens, sizes)?;
        }
        self.index_state = index_state;
        if let Some(classes) = &mut self.classes {
            classes.truncate(to.tokens);
        }
        self.step = to.step;
        Ok(())
    }

    /// Checks that the layer can return to a point.
    fn check_point(&self, to: &SequencePoint) -> Result<()> {
        let now = self.current_point()?;
        let prompt = self.heads[0].prompts().last().map_or(0, |prompt| prompt.tokens);
        if to.tokens < prompt || to.tokens > now.tokens {
            let expected = format!("{prompt} to {} (since the last prompt)", now.tokens);
            return Err(Error::shape("tokens to keep", expected, to.tokens));
        }
        if self.least_visible.is_some_and(|least| to.tokens < least) {
            return Err(Error::Freed);
        }
        if to.first_sizes.len() != now.first_sizes.len() {
            let (expected, got) = (now.first_sizes.len(), to.first_sizes.len());
            return Err(Error::shape("first sizes", expected, got));
        }
        Ok(())
    }
}
