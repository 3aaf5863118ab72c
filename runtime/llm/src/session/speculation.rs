//! Steps that check drafts of the next tokens in the same pass.

use std::collections::VecDeque;

use vattention_core::engine::SequencePoint;

use super::Session;
use super::step::StepRecord;
use crate::drafts::DraftLookup;
use crate::matrix::MOST_EQUAL_ROWS;
use crate::prefill::check_finite;
use crate::{Error, Result};

/// Largest number of drafts in a pass whose results are bitwise equal to those of single steps.
pub const MOST_DRAFTS: usize = MOST_EQUAL_ROWS - 1;

/// Numbers of drafted tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Tokens that were computed before they were chosen.
    pub drafted: usize,
    /// Drafted tokens that were then chosen.
    pub accepted: usize,
}

/// Steps of a sequence that compute drafts of the next tokens in the same pass, which reads each
/// weight once for all of them.
///
/// Drafts are the tokens after an earlier occurrence of the newest tokens. A step with the drafted
/// token returns results that exist already; a step with another token first gives back the tokens
/// of the drafts. So logits, reports and the sequence are bitwise equal to those of
/// [`Session::step`], whatever the drafts. A pass costs more than a step, so it pays only if most
/// drafts are right; a text that repeats itself has more and longer drafts.
///
/// The session cannot do anything else while it has unused drafts; dropping this value gives them
/// back. If a layer fails then, the session is lost.
#[allow(missing_debug_implementations)]
pub struct Speculation<'s, 'm> {
    session: &'s mut Session<'m>,
    drafts: DraftLookup,
    /// Drafted tokens after the sequence, and the results of their steps.
    ahead: VecDeque<(u32, StepRecord)>,
    /// Point of each layer at the end of the sequence, if there are tokens ahead.
    points: Vec<SequencePoint>,
    counts: DraftCounts,
    is_draft: bool,
}

impl<'s, 'm> Speculation<'s, 'm> {
    /// Continues a sequence after its tokens `text`, in which drafts are looked up. A pass has at
    /// most [`MOST_DRAFTS`] drafts, and at most the number
    /// [`Options::rewindable`](vattention_core::Options::rewindable) with which the session was
    /// started; without drafts, every step is [`Session::step`].
    ///
    /// # Errors
    /// The errors of [`Session::check_rewindable`], if there can be drafts.
    pub fn new(session: &'s mut Session<'m>, text: &[u32]) -> Result<Self> {
        let most = session.rewindable.min(MOST_DRAFTS);
        if most > 0 {
            session.check_rewindable()?;
        }
        Ok(Self {
            session,
            drafts: DraftLookup::new(most, text),
            ahead: VecDeque::new(),
            points: Vec::new(),
            counts: DraftCounts::default(),
            is_draft: false,
        })
    }

    /// Adds one token and returns the logits after it, like [`Session::step`].
    ///
    /// # Errors
    /// The errors of [`Session::step`]. If drafts cannot be given back, the sequence is lost.
    pub fn step(&mut self, token: u32) -> Result<Vec<f32>> {
        self.drafts.push(token);
        self.is_draft = self.ahead.front().is_some_and(|(draft, _)| *draft == token);
        if self.is_draft {
            self.counts.accepted += 1;
        } else {
            self.give_back()?;
            let pass = self.pass_tokens(token);
            if pass.len() == 1 {
                return self.session.step(token);
            }
            let records = self.session.recorded_steps(&pass)?;
            self.counts.drafted += pass.len() - 1;
            self.ahead = pass.into_iter().zip(records).collect();
        }
        let (_, record) = self.ahead.pop_front().expect("the record of the token");
        let logits = check_finite(record.logits)?;
        self.session.len += 1;
        self.session.reports = record.reports;
        self.session.lost = !self.ahead.is_empty();
        self.points = record.points;
        Ok(logits)
    }

    /// Sequence, whose length and reports are those after the last [`step`](Self::step).
    pub fn session(&self) -> &Session<'m> {
        self.session
    }

    /// Returns true if the last step had been computed as a draft.
    pub fn is_draft(&self) -> bool {
        self.is_draft
    }

    /// Numbers of drafts so far.
    pub fn counts(&self) -> DraftCounts {
        self.counts
    }

    /// Returns the token and its drafts, as far as the model's context holds them.
    fn pass_tokens(&self, token: u32) -> Vec<u32> {
        let mut pass = [&[token], self.drafts.draft()].concat();
        while pass.len() > 1 && self.session.model.check(&pass, self.session.len).is_err() {
            pass.pop();
        }
        pass
    }

    /// Gives back the drafts that no step has used.
    fn give_back(&mut self) -> Result<()> {
        if self.ahead.is_empty() {
            return Ok(());
        }
        self.ahead.clear();
        for (layer, (attention, point)) in
            self.session.layers.iter_mut().zip(&self.points).enumerate()
        {
            attention.rewind(point).map_err(|source| Error::Attention { layer, source })?;
        }
        self.session.lost = false;
        Ok(())
    }
}

impl Drop for Speculation<'_, '_> {
    fn drop(&mut self) {
        // After an error, the session is marked as lost.
        let _ = self.give_back();
    }
}

impl Session<'_> {
    /// Checks that drafts can be given back, as [`Speculation`] requires.
    ///
    /// # Errors
    /// [`Error::Attention`] with the first layer that has a selector or sampler which cannot remove
    /// tokens.
    pub fn check_rewindable(&self) -> Result<()> {
        self.check_not_lost()?;
        for (layer, attention) in self.layers.iter().enumerate() {
            attention.checkpoint().map_err(|source| Error::Attention { layer, source })?;
        }
        Ok(())
    }
}
