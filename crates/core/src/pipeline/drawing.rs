//! The sample of the residual, drawn until the estimator finds it large enough.

use crate::{
    Fraction, Size,
    pipeline::check::{DesignSnapshot, SampleCheck},
    pipeline::search::{Candidates, search, suffices},
    plugin::{Budget, Design, Estimator, ProofTerms, Radius, SampleEvidence, Schedule},
    promise::{Assumptions, Goal, Kind, SampleGoal},
    sample::{Accumulator, Residual, SampleUse},
    step::Picks,
};

/// If fewer tokens than this are left over, they are read too: the central limit theorem is poor for
/// so few missing tokens.
const NEAR_CENSUS: usize = 32;

/// Outcome of drawing for one list.
pub(crate) enum Outcome {
    /// A sample.
    Drawn(Drawn),
    /// Everything: reading the list is slower. The size that a check asked for, if there was one.
    FellBack(Option<usize>),
}

/// A finished sample.
pub(crate) struct Drawn {
    /// Tokens, in draw order.
    pub(crate) tokens: Vec<u32>,
    /// Each token's probability of inclusion, unless all are equal.
    pub(crate) probabilities: Option<Vec<f32>>,
    /// Tokens that the last check asked for.
    pub(crate) budget: usize,
    /// Error bar of each query head; none for a sample without variances.
    pub(crate) radii: Vec<f64>,
    pub(crate) kind: Kind,
    pub(crate) assumes: Assumptions,
    pub(crate) held: bool,
    /// True if the limit did not suffice for the promise.
    pub(crate) withheld: bool,
    /// The size that suffices, as far as the last check can tell.
    pub(crate) needed: Option<f64>,
}

/// A growing sample of the tokens that one list has not taken.
pub(crate) struct Drawing<'a> {
    pub(crate) accumulator: &'a mut dyn Accumulator,
    /// Bounds on the residual, for each query head that reads the list.
    residuals: &'a [Residual],
    design: Box<dyn Design + 'a>,
    /// True for a uniform design: then the accumulator computes the statistics.
    uniform: bool,
    n_s: usize,
    visible: usize,
    /// Tokens at the first check.
    base: usize,
    /// Tokens expected to be drawn.
    size: usize,
    tokens: Vec<u32>,
    /// The result of the last check, for each query head.
    results: Vec<CheckResult>,
}

/// The result of one query head's check.
struct CheckResult {
    budget: Budget,
    /// At the size that is drawn next, or at the current one if that suffices.
    radius: f64,
}

/// Goal of a check.
struct SampleTarget<'a> {
    estimator: &'a dyn Estimator,
    goal: Goal,
    /// The most tokens, or the size that is asked for.
    limit: usize,
}

/// Reading everything is faster than a sample of this size.
struct DenseIsFaster {
    size: usize,
}

impl<'a> Drawing<'a> {
    /// Nothing drawn yet beside the `picks`, for query heads that know `residuals`.
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

    /// Draws until the estimator's `goal` is reached. A sample of a given size is checked if an
    /// `error_bar` is wanted.
    pub(crate) fn run(
        self,
        estimator: &dyn Estimator,
        goal: Goal,
        picks: &Picks,
        error_bar: bool,
    ) -> Outcome {
        if picks.len() >= self.accumulator.dense_from(false) {
            return Outcome::FellBack(None);
        }
        self.accumulator.take(picks);
        let tokens = |size: Size| size.to_tokens(self.visible).max(self.least()).min(self.n_s);
        let limit = goal.size().or(goal.limit()).map_or(self.n_s, tokens);
        let base = self.base;
        match self.draw(&SampleTarget { estimator, goal, limit }, error_bar) {
            Ok(drawn) => Outcome::Drawn(drawn),
            Err(DenseIsFaster { size }) => {
                Outcome::FellBack(Some(size).filter(|&size| size > base))
            }
        }
    }

    /// Draws the whole sample of a design whose samples cannot grow.
    pub(crate) fn draw_unjudged(mut self, picks: &Picks) -> Drawn {
        self.accumulator.take(picks);
        self.design.extend(0, &mut self.tokens);
        self.finish(unjudged(0), false)
    }

    /// Draws a first size, checks it, and draws on to the size that the check asks for, as often as
    /// the schedule allows. The last size is not checked.
    ///
    /// A sample of a given size is checked as a whole: a part would say too little about skewed
    /// values.
    fn draw(mut self, target: &SampleTarget<'_>, error_bar: bool) -> Result<Drawn, DenseIsFaster> {
        let limit = target.limit;
        let (rounds, before) = match (target.goal.sample, target.estimator.schedule()) {
            (SampleGoal::Size { .. }, _) => {
                self.extend(limit, error_bar)?;
                let budget = if error_bar { self.check(target) } else { unjudged(limit) };
                return Ok(self.finish(budget, false));
            }
            (_, Schedule::Before) => (0, true),
            (_, Schedule::Adaptive { rounds } | Schedule::FixedSizes { rounds }) => (rounds, false),
        };
        let mut budget = if before { self.check(target) } else { unjudged(self.base) };
        for round in 0..rounds {
            let size = budget.tokens.max(self.size + self.size / 8);
            self.extend(self.or_everything(size).min(limit), true)?;
            budget = self.check(target);
            if self.complete() || budget.tokens <= self.size {
                let needed = self.needed(target);
                return Ok(Drawn { needed, ..self.finish(budget, true) });
            }
            if self.size >= limit || round + 1 == rounds {
                break;
            }
        }
        if self.size < limit {
            self.extend(self.or_everything(budget.tokens).min(limit), false)?;
        }
        let withheld = budget.tokens > limit;
        Ok(Drawn { withheld, ..self.finish(budget, before && !withheld) })
    }

    fn finish(self, budget: Budget, held: bool) -> Drawn {
        let complete = self.complete();
        let p = || self.design.probabilities().into_iter().map(|p| p as f32).collect();
        let radius = |result: &CheckResult| if complete { 0.0 } else { result.radius };
        Drawn {
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

    /// The size at which the widest radius would be epsilon, if radii fall as the root of the size
    /// rises.
    fn needed(&self, target: &SampleTarget<'_>) -> Option<f64> {
        let epsilon = target.goal.epsilon()?.get();
        let widest = self.results.iter().map(|result| result.radius).fold(0.0, f64::max);
        Some(self.size as f64 * (widest / epsilon).powi(2))
    }

    /// Returns true if the sample is the whole residual.
    fn complete(&self) -> bool {
        self.size == self.n_s
    }

    /// A list must hold something.
    fn least(&self) -> usize {
        usize::from(self.n_s == self.visible)
    }

    /// A size, or everything if that would leave only a few tokens.
    fn or_everything(&self, size: usize) -> usize {
        if self.n_s.saturating_sub(size) < NEAR_CENSUS { self.n_s } else { size }
    }

    /// Draws on to a size of `b`, or all. The sample is checked again only if `checked`.
    fn extend(&mut self, b: usize, checked: bool) -> Result<(), DenseIsFaster> {
        let (size, drawn) = (b.min(self.n_s), self.tokens.len());
        if size.saturating_sub(self.size) >= self.accumulator.dense_from(checked) {
            return Err(DenseIsFaster { size });
        }
        if size > self.size {
            self.design.extend(size, &mut self.tokens);
            self.size = size;
        }
        // A design may draw more than the size says.
        if self.tokens.len() - drawn >= self.accumulator.dense_from(checked) {
            return Err(DenseIsFaster { size });
        }
        let for_use = match (self.uniform, checked) {
            (true, true) => SampleUse::Uniform,
            (true, false) => SampleUse::Sums,
            (false, true) => SampleUse::Weighted,
            // They are read at the end, when their weights are known.
            (false, false) => return Ok(()),
        };
        self.accumulator.draw(&self.tokens[drawn..], for_use);
        Ok(())
    }

    /// The largest budget of any query head, with the weakest kind.
    fn check(&mut self, target: &SampleTarget<'_>) -> Budget {
        let (size, n_s) = (self.size, self.n_s);
        // Before any draw, the statistics are those of the picks alone.
        let uniform = self.uniform || size == 0;
        let proves = target.estimator.evidence() == SampleEvidence::Proof;
        let weighted = !uniform && !proves && !self.complete();
        let coarse = || Candidates::coarse(size, n_s.saturating_sub(NEAR_CENSUS));
        let snapshot = weighted.then(|| (DesignSnapshot::new(&*self.design, size), coarse()));
        self.results.clear();
        for reader in 0..self.residuals.len() {
            let largest = self.results.iter().map(|result| result.budget.tokens).max();
            let sizes = (size, largest.unwrap_or(0).max(size), n_s);
            let residual = &self.residuals[reader];
            let result = if uniform {
                let stats = self.accumulator.stats(reader, residual);
                let candidates = Candidates::uniform(target.estimator.schedule(), size, n_s);
                target.judge(&candidates, sizes, |b| target.estimator.radius(&stats.with_size(b)))
            } else if self.complete() {
                CheckResult::everything(n_s)
            } else if let Some((snapshot, candidates)) = &snapshot {
                let DesignSnapshot { probabilities, strata, .. } = snapshot;
                let sample =
                    self.accumulator.weighed(reader, residual, probabilities, strata.as_ref());
                let check = SampleCheck::new(&*self.design, snapshot, reader, &sample, residual);
                target.judge(candidates, sizes, |b| target.estimator.radius(&check.predict(b)))
            } else {
                self.check_proof(target, reader, sizes)
            };
            self.results.push(result);
        }
        let budgets = self.results.iter().map(|result| result.budget);
        let most = budgets.reduce(Budget::and).expect("a group has at least one member");
        Budget { tokens: most.tokens.max(self.least()).min(n_s), ..most }
    }

    /// Judges by the design's own proof.
    fn check_proof(
        &mut self,
        target: &SampleTarget<'_>,
        reader: usize,
        sizes: (usize, usize, usize),
    ) -> CheckResult {
        let Self { accumulator, design, residuals, base, n_s, .. } = self;
        let limit = target.limit;
        let base = if target.goal.size().is_some() { limit } else { *base };
        let delta = target.goal.row_delta(residuals[reader].query_heads);
        let mut result = None;
        accumulator.sample(reader, &residuals[reader], &mut |sample, shift| {
            let terms = ProofTerms { delta, base, limit, shift };
            result = design.proof(sample, reader, &terms).map(|proof| {
                let relative = proof.radius;
                let radius =
                    |b: usize| Radius::new(relative(b), Kind::FiniteSample, Assumptions::NONE);
                target.judge(&Candidates::List(proof.sizes), sizes, radius)
            });
        });
        let unknown = Radius::new(f64::INFINITY, Kind::FiniteSample, Assumptions::NONE);
        result.unwrap_or_else(|| CheckResult::new(*n_s, unknown))
    }
}

impl SampleTarget<'_> {
    /// Judges one query head's sample of `size` by its radii. `first` is the largest size that the query
    /// heads before it need.
    fn judge(
        &self,
        candidates: &Candidates,
        (size, first, n_s): (usize, usize, usize),
        radius: impl Fn(usize) -> Radius,
    ) -> CheckResult {
        let Some(epsilon) = self.goal.epsilon().map(Fraction::get) else {
            return CheckResult::new(self.limit, radius(self.limit));
        };
        // Query heads share the sample, so the size that another needs is tried before a smaller one.
        let shared = (first > size && first < n_s).then(|| (first, radius(first)));
        let shared = shared.filter(|(_, radius)| suffices(radius, epsilon));
        let found = shared.or_else(|| search(candidates, (first, n_s), epsilon, &radius));
        let tokens = found.map_or(n_s, |found| found.0);
        let next = tokens.min(self.limit).max(size);
        let at_next = found.filter(|found| found.0 == next).map(|found| found.1);
        CheckResult::new(tokens, at_next.unwrap_or_else(|| radius(next)))
    }
}

/// The budget of an unchecked sample.
fn unjudged(tokens: usize) -> Budget {
    Budget { tokens, kind: Kind::None, assumes: Assumptions::NONE }
}

impl CheckResult {
    /// A radius that is NaN bounds nothing: it is infinite.
    fn new(tokens: usize, radius: Radius) -> Self {
        let Radius { relative, kind, assumes } = radius;
        let radius = if relative.is_nan() { f64::INFINITY } else { relative };
        Self { budget: Budget { tokens, kind, assumes }, radius }
    }

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
