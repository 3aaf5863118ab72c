//! Checks of the arguments of a KV head, before it changes.

use ndarray::{Array3, ArrayView3};
use vattention_core::{Error, Result, TokenClass, step::MAX_MAGNITUDE};

use super::EngineHead;
use crate::head_rows::HeadRows;
use crate::input::{check_classes, check_numbers, check_rows, check_shape, limits};

impl EngineHead {
    /// Checks the arguments of [`append`](Self::append), so that an engine can check all KV heads
    /// before it changes one.
    ///
    /// # Errors
    /// Returns the errors of `append`.
    pub fn check_append(&self, rows: &HeadRows<'_>, classes: Option<&[TokenClass]>) -> Result<()> {
        self.check_not_lost()?;
        let (first, len) = (self.tokens, rows.keys.len());
        rows.check(self.shape())?;
        if len < first {
            return Err(Error::shape("tokens", format!("at least {first}, those appended"), len));
        }
        check_classes(self.pipeline.needs_classes(), classes, len - first)?;
        check_rows("keys", &rows.keys, first)?;
        check_rows("values", &rows.values, first)
    }

    /// Checks the arguments of [`observe`](Self::observe), so that an engine can check all KV heads
    /// before it changes one.
    ///
    /// # Errors
    /// Returns the errors of `observe`.
    pub fn check_observe(&self, rows: &HeadRows<'_>, queries: ArrayView3<'_, f32>) -> Result<()> {
        self.scaled_prompt(rows, &queries).map(drop)
    }

    /// Checks the arguments of [`attend`](Self::attend), and that no selector lacks a prompt, so
    /// that an engine can check all KV heads before one makes a step.
    ///
    /// # Errors
    /// Returns the errors of `attend`, except for rows that the kernels do not support.
    pub fn check_attend(
        &self,
        rows: &HeadRows<'_>,
        queries: ArrayView3<'_, f32>,
        visible: Option<&[usize]>,
    ) -> Result<()> {
        self.scaled(&queries)?;
        self.check_appended(rows)?;
        limits(visible, queries.dim().1, self.tokens)?;
        self.pipeline.check_observed(self.step)
    }

    /// Checks the arguments of [`truncate`](Self::truncate), so that an engine can check all KV
    /// heads before it changes one.
    ///
    /// # Errors
    /// Returns the errors of `truncate`.
    pub fn check_truncate(&self, rows: &HeadRows<'_>, tokens: usize) -> Result<()> {
        self.check_not_lost()?;
        rows.check(self.shape())?;
        self.pipeline.check_rewindable()?;
        let (least, most) = (self.prompt_end, self.tokens);
        if tokens < least || tokens > most {
            let expected = format!("{least} to {most} (since the last observed prompt)");
            return Err(Error::shape("tokens to keep", expected, tokens));
        }
        if rows.keys.len() < tokens {
            let expected = format!("at least {tokens}, those to keep");
            return Err(Error::shape("keys", expected, rows.keys.len()));
        }
        Ok(())
    }

    pub(super) fn check_not_lost(&self) -> Result<()> {
        if self.lost { Err(Error::Lost) } else { Ok(()) }
    }

    /// Checks that rows are those of the tokens that the selectors have indexed.
    pub(super) fn check_appended(&self, rows: &HeadRows<'_>) -> Result<()> {
        rows.check(self.shape())?;
        if rows.keys.len() != self.tokens {
            let expected = format!("{}, those appended", self.tokens);
            return Err(Error::shape("tokens", expected, rows.keys.len()));
        }
        Ok(())
    }

    /// Checks the last queries of a prompt, `[group, prompt, head_dim]`, and multiplies them by the
    /// scale.
    pub(super) fn scaled_prompt(
        &self,
        rows: &HeadRows<'_>,
        queries: &ArrayView3<'_, f32>,
    ) -> Result<Array3<f32>> {
        let scaled = self.scaled(queries)?;
        self.check_appended(rows)?;
        if scaled.dim().1 > self.tokens {
            let expected = format!("at most {} (the tokens appended)", self.tokens);
            return Err(Error::shape("prompt queries", expected, scaled.dim().1));
        }
        Ok(scaled)
    }

    /// Checks queries `[group, queries, head_dim]` and multiplies them by the scale.
    pub(super) fn scaled(&self, queries: &ArrayView3<'_, f32>) -> Result<Array3<f32>> {
        self.check_not_lost()?;
        let shape = self.pipeline.site().shape;
        check_shape("queries", queries.shape(), shape.group(), shape.head_dim)?;
        check_numbers("queries", (*queries).into(), f32::MAX)?;
        let scaled = queries.mapv(|q| q * self.scale);
        check_numbers("scaled queries", scaled.view().into(), MAX_MAGNITUDE)?;
        Ok(scaled)
    }
}
