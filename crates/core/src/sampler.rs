//! The uniform sample of the residual, drawn until the estimator is content.

use crate::order::Draws;
use crate::tally::{Residual, Tally};
use crate::{Assumptions, Budget, BudgetEstimator, Kind, Order, Picks, Size, Stream};

/// With fewer tokens than this left over, the rest is read too: the central limit theorem is poor
/// for what would be missing.
const NEAR_CENSUS: usize = 32;

/// How the sample of one list ended.
pub(crate) enum Outcome {
    /// With a sample.
    Drawn(Drawn),
    /// With so many tokens left to read that reading everything is faster.
    FellBack,
}

/// A finished sample.
pub(crate) struct Drawn {
    /// Tokens, in draw order.
    pub(crate) tokens: Vec<u32>,
    /// Tokens asked for at the last look.
    pub(crate) budget: usize,
    pub(crate) kind: Kind,
    pub(crate) assumes: Assumptions,
    pub(crate) held: bool,
}

/// A growing sample of the tokens that one list has not taken.
pub(crate) struct Sampler<'a> {
    tally: &'a mut dyn Tally,
    /// What is known of the residual to each reader of the list.
    residuals: &'a [Residual],
    draws: Draws,
    picks: &'a Picks,
    n_s: usize,
    visible: usize,
    tokens: Vec<u32>,
}

/// Reading everything is faster than what was about to be read.
struct DenseIsFaster;

impl<'a> Sampler<'a> {
    /// Draws what `estimator` asks for, looking first at `base` tokens, beside the certain
    /// `picks`, for readers that know `residuals`. `stream` keys the order of the draw.
    pub(crate) fn run(
        estimator: &dyn BudgetEstimator,
        base: Size,
        picks: &'a Picks,
        residuals: &'a [Residual],
        stream: &Stream,
        tally: &'a mut dyn Tally,
    ) -> Outcome {
        if picks.len() >= tally.dense_from(false) {
            return Outcome::FellBack;
        }
        tally.take(picks);
        let visible = picks.visible();
        let sampler = Self {
            tally,
            residuals,
            draws: Order::new(visible, stream).draws(),
            picks,
            n_s: visible - picks.len(),
            visible,
            tokens: Vec::new(),
        };
        let drawn = match estimator.rounds() {
            0 => sampler.draw_once(estimator),
            rounds => sampler.draw_by_looks(estimator, base.of(visible), rounds),
        };
        drawn.map_or(Outcome::FellBack, Outcome::Drawn)
    }

    /// Looks at `base` tokens, then at as many as the look before asked for.
    fn draw_by_looks(
        mut self,
        estimator: &dyn BudgetEstimator,
        base: usize,
        rounds: usize,
    ) -> Result<Drawn, DenseIsFaster> {
        let mut b = base;
        for round in 1.. {
            self.extend_or_finish(b, true)?;
            let budget = self.required(estimator);
            if self.complete() || budget.tokens <= self.tokens.len() {
                return Ok(self.finish(budget, true));
            }
            if round >= rounds {
                self.extend_or_finish(budget.tokens, false)?;
                return Ok(self.finish(budget, false));
            }
            let drawn = self.tokens.len();
            b = budget.tokens.max(drawn + drawn / 8);
        }
        unreachable!("the last round returns")
    }

    /// Draws a budget that needs no sample to know.
    fn draw_once(mut self, estimator: &dyn BudgetEstimator) -> Result<Drawn, DenseIsFaster> {
        let budget = self.required(estimator);
        if estimator.promise().is_some() {
            self.extend_or_finish(budget.tokens, false)?;
        } else {
            self.extend(budget.tokens, false)?;
        }
        Ok(self.finish(budget, budget.kind != Kind::None))
    }

    fn finish(self, budget: Budget, held: bool) -> Drawn {
        let complete = self.complete();
        Drawn {
            budget: budget.tokens,
            kind: if complete { Kind::Exact } else { budget.kind },
            assumes: if complete { Assumptions::NONE } else { budget.assumes },
            held: held || complete,
            tokens: self.tokens,
        }
    }

    /// Whether the sample is the whole residual.
    fn complete(&self) -> bool {
        self.tokens.len() == self.n_s
    }

    /// Draws on until there are `b` tokens, or all if that would leave only a few.
    fn extend_or_finish(&mut self, b: usize, judged: bool) -> Result<(), DenseIsFaster> {
        let all = self.n_s.saturating_sub(b) < NEAR_CENSUS;
        self.extend(if all { self.n_s } else { b }, judged)
    }

    /// Draws on until there are `b` tokens, or all. The sample is looked at again only if
    /// `judged`.
    fn extend(&mut self, b: usize, judged: bool) -> Result<(), DenseIsFaster> {
        let drawn = self.tokens.len();
        let more = b.min(self.n_s).saturating_sub(drawn);
        if more >= self.tally.dense_from(judged) {
            return Err(DenseIsFaster);
        }
        self.draws.fill(self.picks, more, &mut self.tokens);
        self.tally.draw(&self.tokens[drawn..], judged);
        Ok(())
    }

    /// The largest budget of any reader, with the weakest kind.
    fn required(&mut self, estimator: &dyn BudgetEstimator) -> Budget {
        let readers = self.residuals.iter().enumerate();
        let budgets =
            readers.map(|(reader, residual)| estimator.budget(&self.tally.stats(reader, residual)));
        let most = budgets.reduce(Budget::and).expect("a group has at least one member");
        Budget { tokens: most.tokens.max(self.least()).min(self.n_s), ..most }
    }

    /// A list must hold something.
    fn least(&self) -> usize {
        usize::from(self.n_s == self.visible)
    }
}
