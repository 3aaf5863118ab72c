//! Sampling of the residual: tokens are drawn until the estimator finds the sample large enough.

use crate::{
    Fraction, Size,
    pipeline::check::{DesignSnapshot, SampleCheck},
    pipeline::rounding::RowRounding,
    pipeline::search::{Candidates, search, suffices},
    plugin::{Budget, Design, Estimator, ProofTerms, Radius, SampleEvidence, Schedule},
    promise::{Assumptions, Goal, Kind, SampleGoal},
    sample::{Accumulator, RemainingWork, Residual, SampleStats, SampleUse},
    step::Picks,
};

/// If fewer tokens than this would remain undrawn, all of them are read, because the central limit
/// theorem is inaccurate for so few missing tokens.
const NEAR_CENSUS: usize = 32;

/// Result of sampling for one token list.
pub(crate) enum Outcome {
    /// The list and this sample are read.
    Sampled(FinishedSample),
    /// Every token is read, because reading the list would be slower. Contains the sample size that
    /// would have been drawn, if a check required it.
    FellBack(Option<usize>),
}

/// A finished sample.
pub(crate) struct FinishedSample {
    /// Tokens, in draw order.
    pub(crate) tokens: Vec<u32>,
    /// Inclusion probability of each token; `None` if all are equal.
    pub(crate) probabilities: Option<Vec<f32>>,
    /// Size that the last check required.
    pub(crate) budget: usize,
    /// Error bar of each query head; empty for a sample that was not checked.
    pub(crate) radii: Vec<f64>,
    pub(crate) kind: Kind,
    pub(crate) assumes: Assumptions,
    /// True if the last check found the sample large enough for the promise.
    pub(crate) held: bool,
    /// True if the promise requires more tokens than the limit.
    pub(crate) withheld: bool,
    /// Size that would just suffice, extrapolated from the last check.
    pub(crate) needed: Option<f64>,
}

/// A growing sample of the residual of one token list.
pub(crate) struct GrowingSample<'a> {
    pub(crate) accumulator: &'a mut dyn Accumulator,
    /// Facts about the residual, for each query head that reads the list.
    residuals: &'a [Residual],
    design: Box<dyn Design + 'a>,
    /// True for a uniform design, whose statistics the accumulator computes.
    uniform: bool,
    /// Number of tokens in the residual.
    n_s: usize,
    visible: usize,
    /// Size at the first check.
    base: usize,
    /// Expected number of drawn tokens.
    size: usize,
    tokens: Vec<u32>,
    /// Result of the last check, for each query head.
    results: Vec<CheckResult>,
}

/// Result of a check for one query head.
struct CheckResult {
    budget: Budget,
    /// Radius at the size that is drawn next, or at the current size if that suffices.
    radius: f64,
}

/// Goal of a sample.
struct SampleTarget<'a> {
    estimator: &'a dyn Estimator,
    goal: Goal,
    /// Bounds on the effect of rounding on each query head.
    rounding: &'a [RowRounding],
    /// Largest size, or the configured size.
    limit: usize,
}

/// Sizes between which a check searches for the required size.
#[derive(Clone, Copy)]
struct SearchSizes {
    /// Current size of the sample.
    current: usize,
    /// Largest size that the query heads checked before this one require, at least the current
    /// size.
    first: usize,
    /// Number of tokens in the residual.
    n_s: usize,
}

/// Signal that reading every token is faster than reading a sample of this size.
struct DenseIsFaster {
    size: usize,
}

impl<'a> GrowingSample<'a> {
    /// Creates an empty sample of the tokens outside `picks`, for query heads with these
    /// `residuals`.
    pub(crate) fn new(
        design: Box<dyn Design + 'a>,
        uniform: bool,
        base: usize,
        picks: &Picks,
        residuals: &'a [Residual],
        accumulator: &'a mut dyn Accumulator,
    ) -> Self {
        let visible = picks.visible();
        let n_s = visible - picks.len();
        let (size, tokens, results) = (0, Vec::new(), Vec::new());
        Self { accumulator, residuals, design, uniform, n_s, visible, base, size, tokens, results }
    }

    /// Draws until the estimator's `goal` is reached, which includes the `rounding` of each query
    /// head. A sample of a given size is checked only if `error_bar` is true.
    pub(crate) fn run(
        self,
        estimator: &dyn Estimator,
        goal: Goal,
        rounding: &[RowRounding],
        picks: &Picks,
        error_bar: bool,
    ) -> Outcome {
        if picks.len() >= self.accumulator.dense_from(RemainingWork::Reading) {
            return Outcome::FellBack(None);
        }
        self.accumulator.take(picks);
        let tokens = |size: Size| size.to_tokens(self.visible).max(self.min_size()).min(self.n_s);
        let limit = goal.size().or(goal.limit()).map_or(self.n_s, tokens);
        let base = self.base;
        match self.draw(&SampleTarget { estimator, goal, rounding, limit }, error_bar) {
            Ok(drawn) => Outcome::Sampled(drawn),
            Err(DenseIsFaster { size }) => {
                Outcome::FellBack(Some(size).filter(|&size| size > base))
            }
        }
    }

    /// Draws the sample of a design whose samples cannot grow.
    pub(crate) fn draw_unchecked(mut self, picks: &Picks) -> FinishedSample {
        self.accumulator.take(picks);
        self.design.extend(0, &mut self.tokens);
        self.finish(unchecked_budget(0), false)
    }

    /// Draws a first size, then alternates between checking the sample and growing it to the
    /// required size, as often as the schedule allows. The last size is not checked.
    ///
    /// A sample of a given size is checked once, when it is complete, because a part of it would
    /// reveal too little about skewed values.
    fn draw(
        mut self,
        target: &SampleTarget<'_>,
        error_bar: bool,
    ) -> Result<FinishedSample, DenseIsFaster> {
        let limit = target.limit;
        let (rounds, before) = match (target.goal.sample, target.estimator.schedule()) {
            (SampleGoal::Size { .. }, _) => {
                self.extend(limit, error_bar)?;
                let budget = if error_bar { self.check(target) } else { unchecked_budget(limit) };
                return Ok(self.finish(budget, false));
            }
            (_, Schedule::Before) => (0, true),
            (_, Schedule::Adaptive { rounds } | Schedule::FixedSizes { rounds }) => (rounds, false),
        };
        let mut budget = if before { self.check(target) } else { unchecked_budget(self.base) };
        for round in 0..rounds {
            let size = budget.tokens.max(self.size + self.size / 8);
            self.extend(self.include_remainder(size).min(limit), true)?;
            budget = self.check(target);
            if self.is_complete() || budget.tokens <= self.size {
                let needed = self.extrapolate_size(target);
                return Ok(FinishedSample { needed, ..self.finish(budget, true) });
            }
            if self.size >= limit || round + 1 == rounds {
                break;
            }
        }
        if self.size < limit {
            self.extend(self.include_remainder(budget.tokens).min(limit), false)?;
        }
        let withheld = budget.tokens > limit;
        Ok(FinishedSample { withheld, ..self.finish(budget, before && !withheld) })
    }

    /// Finishes the sample. `budget` is that of the last check, and `held` is true if the check
    /// found the sample large enough.
    fn finish(self, budget: Budget, held: bool) -> FinishedSample {
        let complete = self.is_complete();
        let p = || self.design.probabilities().into_iter().map(|p| p as f32).collect();
        let radius = |result: &CheckResult| if complete { 0.0 } else { result.radius };
        FinishedSample {
            probabilities: (!self.uniform).then(p),
            budget: budget.tokens,
            radii: self.results.iter().map(radius).collect(),
            kind: if complete { Kind::Exact } else { budget.kind },
            assumes: if complete { Assumptions::NONE } else { budget.assumes },
            held: held || complete,
            withheld: false,
            needed: None,
            tokens: self.tokens,
        }
    }

    /// Size at which the widest radius would equal epsilon, if radii are proportional to the
    /// inverse square root of the size.
    fn extrapolate_size(&self, target: &SampleTarget<'_>) -> Option<f64> {
        let epsilon = target.goal.epsilon()?.get();
        let widest = self.results.iter().map(|result| result.radius).fold(0.0, f64::max);
        Some(self.size as f64 * (widest / epsilon).powi(2))
    }

    /// Returns true if the sample is the whole residual.
    fn is_complete(&self) -> bool {
        self.size == self.n_s
    }

    /// Smallest size of the sample: 1 if nothing was picked, because a list must contain a token.
    fn min_size(&self) -> usize {
        usize::from(self.n_s == self.visible)
    }

    /// Returns a size, or the whole residual if only a few tokens would remain undrawn.
    fn include_remainder(&self, size: usize) -> usize {
        if self.n_s.saturating_sub(size) < NEAR_CENSUS { self.n_s } else { size }
    }

    /// Draws up to a size of `b`, or the whole residual. Unless `checked` is true, no check
    /// follows, so the new tokens need no statistics.
    fn extend(&mut self, b: usize, checked: bool) -> Result<(), DenseIsFaster> {
        let (size, drawn) = (b.min(self.n_s), self.tokens.len());
        let work = if checked { RemainingWork::Checks } else { RemainingWork::Reading };
        if size.saturating_sub(self.size) >= self.accumulator.dense_from(work) {
            return Err(DenseIsFaster { size });
        }
        if size > self.size {
            self.design.extend(size, &mut self.tokens);
            self.size = size;
        }
        // A design may draw more tokens than the size, which is an expectation.
        if self.tokens.len() - drawn >= self.accumulator.dense_from(work) {
            return Err(DenseIsFaster { size });
        }
        let for_use = match (self.uniform, checked) {
            (true, true) => SampleUse::Uniform,
            (true, false) => SampleUse::Sums,
            (false, true) => SampleUse::Weighted,
            // The tokens are read at the end, when their weights are known.
            (false, false) => return Ok(()),
        };
        self.accumulator.draw(&self.tokens[drawn..], for_use);
        Ok(())
    }

    /// Checks the sample for each query head. Returns the largest budget, with the weakest kind.
    fn check(&mut self, target: &SampleTarget<'_>) -> Budget {
        // Before any draw there are only picks, whose statistics do not depend on the design.
        let uniform = self.uniform || self.size == 0;
        let proves = target.estimator.evidence() == SampleEvidence::Proof;
        self.results.clear();
        if !uniform && !proves && !self.is_complete() {
            self.check_weighted(target);
        } else {
            for reader in 0..self.residuals.len() {
                let result = if uniform {
                    self.check_uniform(target, reader)
                } else if self.is_complete() {
                    CheckResult::everything(self.n_s)
                } else {
                    self.check_proof(target, reader)
                };
                self.results.push(result);
            }
        }
        let budgets = self.results.iter().map(|result| result.budget);
        let most = budgets.reduce(Budget::combine).expect("a group has at least one member");
        Budget { tokens: most.tokens.max(self.min_size()).min(self.n_s), ..most }
    }

    /// Sizes for the next query head that is checked.
    fn search_sizes(&self) -> SearchSizes {
        let largest = self.results.iter().map(|result| result.budget.tokens).max();
        let first = largest.unwrap_or(0).max(self.size);
        SearchSizes { current: self.size, first, n_s: self.n_s }
    }

    /// Checks the sample by the statistics of a uniform sample.
    fn check_uniform(&mut self, target: &SampleTarget<'_>, reader: usize) -> CheckResult {
        let stats = self.accumulator.stats(reader, &self.residuals[reader]);
        let schedule = target.estimator.schedule();
        let candidates = Candidates::uniform(schedule, self.size, self.n_s);
        let radius = |b: usize| target.radius(reader, &stats.with_size(b));
        target.judge(&candidates, self.search_sizes(), radius)
    }

    /// Checks the sample for each query head by the variances of its estimates.
    fn check_weighted(&mut self, target: &SampleTarget<'_>) {
        let Self { size, n_s, residuals, .. } = *self;
        let candidates = Candidates::coarse(size, n_s.saturating_sub(NEAR_CENSUS));
        let snapshot = DesignSnapshot::new(&*self.design, size);
        let samples = self.accumulator.weighed(residuals, &snapshot.weights());
        for (reader, sample) in samples.into_iter().enumerate() {
            let check = SampleCheck::new(&snapshot, reader, sample, &residuals[reader]);
            let radius = |b: usize| target.radius(reader, &check.predict(b));
            let result = target.judge(&candidates, self.search_sizes(), radius);
            self.results.push(result);
        }
    }

    /// Checks the sample by the proof of its design.
    fn check_proof(&mut self, target: &SampleTarget<'_>, reader: usize) -> CheckResult {
        let sizes = self.search_sizes();
        let Self { accumulator, design, residuals, base, n_s, .. } = self;
        let limit = target.limit;
        let base = if target.goal.size().is_some() { limit } else { *base };
        let delta = target.goal.row_delta(residuals[reader].query_heads);
        let mut result = None;
        accumulator.sample(reader, &residuals[reader], &mut |sample, shift| {
            let terms = ProofTerms { delta, base, limit, shift };
            result = design.proof(sample, reader, &terms).map(|proof| {
                let relative = proof.radius;
                let output_norm = proof.output_norm;
                let radius = |b: usize| {
                    let radius = Radius::new(relative(b), Kind::FiniteSample, Assumptions::NONE);
                    target.count_rounding(reader, radius, output_norm)
                };
                target.judge(&Candidates::List(proof.sizes), sizes, radius)
            });
        });
        let unknown = Radius::new(f64::INFINITY, Kind::FiniteSample, Assumptions::NONE);
        result.unwrap_or_else(|| CheckResult::new(*n_s, unknown))
    }
}

impl SampleTarget<'_> {
    /// Error bar of a sample for one query head, relative to the rows of the goal.
    fn radius(&self, reader: usize, stats: &SampleStats) -> Radius {
        self.count_rounding(reader, self.estimator.radius(stats), stats.norm_n / stats.d)
    }

    /// Adds the effect of rounding to the error bar of a query head.
    fn count_rounding(&self, reader: usize, radius: Radius, output_norm: f64) -> Radius {
        let Radius { relative, kind, assumes } = radius;
        let relative = self.rounding[reader].widen(self.goal.target, relative, output_norm);
        Radius::new(relative, kind, assumes)
    }

    /// Checks a sample for one query head, from its `radius` at each size.
    fn judge(
        &self,
        candidates: &Candidates,
        sizes: SearchSizes,
        radius: impl Fn(usize) -> Radius,
    ) -> CheckResult {
        let SearchSizes { current, first, n_s } = sizes;
        let Some(epsilon) = self.goal.epsilon().map(Fraction::get) else {
            return CheckResult::new(self.limit, radius(self.limit));
        };
        // Query heads share the sample, so a size below that of another head is of no use.
        let shared = (first > current && first < n_s).then(|| (first, radius(first)));
        let shared = shared.filter(|(_, radius)| suffices(radius, epsilon));
        let found = shared.or_else(|| search(candidates, (first, n_s), epsilon, &radius));
        let tokens = found.map_or(n_s, |found| found.0);
        let next = tokens.min(self.limit).max(current);
        let at_next = found.filter(|found| found.0 == next).map(|found| found.1);
        CheckResult::new(tokens, at_next.unwrap_or_else(|| radius(next)))
    }
}

/// Budget of a sample that was not checked.
fn unchecked_budget(tokens: usize) -> Budget {
    Budget { tokens, kind: Kind::None, assumes: Assumptions::NONE }
}

impl CheckResult {
    /// Creates a result. A radius that is NaN bounds nothing, so it becomes infinite.
    fn new(tokens: usize, radius: Radius) -> Self {
        let Radius { relative, kind, assumes } = radius;
        let radius = if relative.is_nan() { f64::INFINITY } else { relative };
        Self { budget: Budget { tokens, kind, assumes }, radius }
    }

    /// Result for a sample that is the whole residual.
    fn everything(n_s: usize) -> Self {
        Self::new(n_s, Radius::new(0.0, Kind::Exact, Assumptions::NONE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_radius_that_is_not_a_number_is_infinite() {
        let (kind, assumes) = (Kind::Asymptotic, Assumptions::ALL);
        let radius = Radius { relative: f64::NAN, kind, assumes };
        assert_eq!(CheckResult::new(1, radius).radius, f64::INFINITY);
    }
}
