//! The sample of the residual, drawn until the estimator finds it large enough.

use crate::accumulator::{Accumulator, Residual};
use crate::look::{Look, Present};
use crate::{
    Assumptions, Budget, BudgetEstimator, Design, Fraction, Kind, Needs, Picks, ProofGoal, Radius,
    Sample, Size,
};

/// With fewer tokens than this left over, they are read too: the central limit theorem is poor for
/// so few missing tokens.
const NEAR_CENSUS: usize = 32;

/// How the sample of one list ended.
pub(crate) enum Outcome {
    /// With a sample.
    Drawn(Drawn),
    /// So many tokens are left to read that reading everything is faster.
    FellBack,
}

/// A finished sample.
pub(crate) struct Drawn {
    /// Tokens, in draw order.
    pub(crate) tokens: Vec<u32>,
    /// Each token's probability of inclusion, unless all are equal.
    pub(crate) probabilities: Option<Vec<f32>>,
    /// Tokens asked for at the last look.
    pub(crate) budget: usize,
    /// Each reader's error bar; none for a sample without variances.
    pub(crate) radii: Vec<f64>,
    pub(crate) kind: Kind,
    pub(crate) assumes: Assumptions,
    pub(crate) held: bool,
    /// Whether the limit did not suffice for the promise.
    pub(crate) withheld: bool,
}

/// A growing sample of the tokens that one list has not taken.
pub(crate) struct Drawing<'a> {
    pub(crate) accumulator: &'a mut dyn Accumulator,
    /// What each reader of the list knows about the residual.
    residuals: &'a [Residual],
    design: Box<dyn Design + 'a>,
    /// Whether the design is uniform: then the accumulator computes the statistics.
    uniform: bool,
    n_s: usize,
    visible: usize,
    /// Tokens in the first look.
    base: usize,
    /// Tokens expected to be drawn.
    size: usize,
    tokens: Vec<u32>,
    /// The result of each reader's last look.
    seen: Vec<Seen>,
}

/// The result of one reader's look.
struct Seen {
    budget: Budget,
    /// At the size that is drawn next, or at the current one if that suffices.
    radius: f64,
}

/// The demands on a sample.
struct Asked<'a> {
    estimator: &'a dyn BudgetEstimator,
    /// Infinite if a size is asked for.
    epsilon: f64,
    /// The most tokens.
    limit: usize,
}

/// Reading everything is faster than reading the list.
struct DenseIsFaster;

impl<'a> Drawing<'a> {
    /// Nothing drawn yet beside the `picks`, for readers that know `residuals`.
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
        let (size, tokens, seen) = (0, Vec::new(), Vec::new());
        Self { accumulator, residuals, design, uniform, n_s, visible, base, size, tokens, seen }
    }

    /// Draws as `estimator` demands. A sample of a given size is checked if an `error_bar` is wanted.
    pub(crate) fn run(
        self,
        estimator: &dyn BudgetEstimator,
        picks: &Picks,
        error_bar: bool,
    ) -> Outcome {
        if picks.len() >= self.accumulator.dense_from(false) {
            return Outcome::FellBack;
        }
        self.accumulator.take(picks);
        let demand = estimator.demand();
        let of = |size: Size| size.of(self.visible).max(self.least()).min(self.n_s);
        let epsilon = demand.epsilon.map_or(f64::INFINITY, Fraction::get);
        let limit = demand.size.or(demand.limit).map_or(self.n_s, of);
        let asked = Asked { estimator, epsilon, limit };
        let drawn = match (demand.size, estimator.rounds()) {
            (Some(_), _) if error_bar => self.draw_size(&asked),
            (Some(_), _) => self.draw_unjudged(limit),
            (None, 0) => self.draw_once(&asked),
            (None, rounds) => self.draw_by_looks(&asked, rounds),
        };
        drawn.map_or(Outcome::FellBack, Outcome::Drawn)
    }

    /// Draws the whole sample of a design whose samples cannot grow.
    pub(crate) fn draw_what_there_is(mut self, picks: &Picks) -> Drawn {
        self.accumulator.take(picks);
        self.design.extend(0, &mut self.tokens);
        self.finish(unjudged(0), false)
    }

    /// Draws a sample of a given size, unchecked.
    fn draw_unjudged(mut self, size: usize) -> Result<Drawn, DenseIsFaster> {
        self.extend(size, false)?;
        Ok(self.finish(unjudged(size), false))
    }

    /// Draws a sample of a given size, and checks all of it for the error bar: a part would say too little
    /// about skewed values.
    fn draw_size(mut self, asked: &Asked<'_>) -> Result<Drawn, DenseIsFaster> {
        self.extend(asked.limit, true)?;
        let budget = self.required(asked);
        Ok(self.finish(budget, false))
    }

    /// Looks at the base sample, then at as many tokens as the look before asked for.
    fn draw_by_looks(mut self, asked: &Asked<'_>, rounds: usize) -> Result<Drawn, DenseIsFaster> {
        let mut b = self.base;
        for round in 1.. {
            self.extend_or_finish(b, asked.limit, true)?;
            let budget = self.required(asked);
            if self.complete() || budget.tokens <= self.size {
                return Ok(self.finish(budget, true));
            }
            if self.size >= asked.limit {
                return Ok(self.withhold(budget));
            }
            if round >= rounds {
                self.extend_or_finish(budget.tokens, asked.limit, false)?;
                let too_few = budget.tokens > asked.limit;
                return Ok(if too_few {
                    self.withhold(budget)
                } else {
                    self.finish(budget, false)
                });
            }
            b = budget.tokens.max(self.size + self.size / 8);
        }
        unreachable!("the last round returns")
    }

    /// Draws a budget that is known without a sample.
    fn draw_once(mut self, asked: &Asked<'_>) -> Result<Drawn, DenseIsFaster> {
        let budget = self.together(|drawing, reader, _| drawing.by_formula(asked, reader));
        self.extend_or_finish(budget.tokens, asked.limit, false)?;
        let too_few = budget.tokens > asked.limit;
        Ok(if too_few { self.withhold(budget) } else { self.finish(budget, true) })
    }

    /// Without a promise: the limit does not suffice.
    fn withhold(self, budget: Budget) -> Drawn {
        Drawn { withheld: true, ..self.finish(budget, false) }
    }

    fn finish(self, budget: Budget, held: bool) -> Drawn {
        let complete = self.complete();
        let p = || self.design.probabilities().into_iter().map(|p| p as f32).collect();
        let radius = |seen: &Seen| if complete { 0.0 } else { seen.radius };
        Drawn {
            probabilities: (!self.uniform).then(p),
            budget: budget.tokens,
            radii: self.seen.iter().map(radius).collect(),
            kind: if complete { Kind::Exact } else { budget.kind },
            assumes: if complete { Assumptions::NONE } else { budget.assumes },
            held: held || complete,
            withheld: false,
            tokens: self.tokens,
        }
    }

    /// Whether the sample is the whole residual.
    fn complete(&self) -> bool {
        self.size == self.n_s
    }

    /// Draws on until there are `b` tokens, or all if that would leave only a few, but no more than
    /// `limit`.
    fn extend_or_finish(
        &mut self,
        b: usize,
        limit: usize,
        checked: bool,
    ) -> Result<(), DenseIsFaster> {
        let all = self.n_s.saturating_sub(b) < NEAR_CENSUS;
        self.extend(if all { self.n_s } else { b }.min(limit), checked)
    }

    /// Draws on to a size of `b`, or all. The sample is checked again only if `checked`.
    fn extend(&mut self, b: usize, checked: bool) -> Result<(), DenseIsFaster> {
        let (size, drawn) = (b.min(self.n_s), self.tokens.len());
        if size.saturating_sub(self.size) >= self.accumulator.dense_from(checked) {
            return Err(DenseIsFaster);
        }
        if size > self.size {
            self.design.extend(size, &mut self.tokens);
            self.size = size;
        }
        // A design may draw more than the size says.
        if self.tokens.len() - drawn >= self.accumulator.dense_from(checked) {
            return Err(DenseIsFaster);
        }
        // Tokens of different weights are read at the end, when these are known.
        if self.uniform || checked {
            self.accumulator.draw(&self.tokens[drawn..], checked);
        }
        Ok(())
    }

    /// The largest budget of any reader, with the weakest kind.
    fn required(&mut self, asked: &Asked<'_>) -> Budget {
        if self.uniform {
            return self.together(|drawing, reader, _| drawing.by_formula(asked, reader));
        }
        if asked.estimator.needs() == Needs::Proof {
            return self.together(|drawing, reader, _| drawing.by_proof(asked, reader));
        }
        if self.complete() {
            return self.together(|drawing, _, _| Seen::everything(drawing.n_s));
        }
        let present = Present::new(&*self.design, self.size);
        self.together(|drawing, reader, so_far| {
            drawing.by_variances(asked, reader, so_far, &present)
        })
    }

    /// What all readers need; each is given the need of those before it.
    fn together(&mut self, of_reader: impl Fn(&mut Self, usize, usize) -> Seen) -> Budget {
        let mut seen: Vec<Seen> = Vec::with_capacity(self.residuals.len());
        for reader in 0..self.residuals.len() {
            let so_far = seen.iter().map(|seen| seen.budget.tokens).max().unwrap_or(0);
            seen.push(of_reader(self, reader, so_far));
        }
        self.seen = seen;
        let budgets = self.seen.iter().map(|seen| seen.budget);
        let most = budgets.reduce(Budget::and).expect("a group has at least one member");
        Budget { tokens: most.tokens.max(self.least()).min(self.n_s), ..most }
    }

    /// A list must hold something.
    fn least(&self) -> usize {
        usize::from(self.n_s == self.visible)
    }

    /// For a uniform sample, or before any draw.
    fn by_formula(&mut self, asked: &Asked<'_>, reader: usize) -> Seen {
        let (size, estimator) = (self.size, asked.estimator);
        let stats = self.accumulator.stats(reader, &self.residuals[reader]);
        if asked.epsilon.is_infinite() {
            return Seen::enough(asked.limit, estimator.radius(&stats.at(asked.limit)));
        }
        let budget = estimator.budget(&stats);
        let drawn_next = budget.tokens.min(asked.limit).max(size);
        Seen::new(budget, estimator.radius(&stats.at(drawn_next)).relative)
    }

    /// The least size at which the variances that the design predicts suffice, or `so_far` if that does.
    fn by_variances(
        &mut self,
        asked: &Asked<'_>,
        reader: usize,
        so_far: usize,
        present: &Present,
    ) -> Seen {
        let (size, n_s, epsilon) = (self.size, self.n_s, asked.epsilon);
        let forecast = |look: &Look<'_>| {
            let radius = |size: usize| {
                let Radius { relative, kind, assumes } = asked.estimator.radius(&look.at(size));
                Radius::new(relative, kind, assumes)
            };
            if epsilon.is_infinite() {
                return Seen::enough(asked.limit, radius(asked.limit.min(n_s - 1)));
            }
            let now = radius(size);
            if now.relative <= epsilon {
                return Seen::enough(size, now);
            }
            let most = n_s.saturating_sub(NEAR_CENSUS);
            let found = if size < so_far && so_far < most && radius(so_far).relative <= epsilon {
                Some(so_far)
            } else {
                least_size(size, now.relative, most, epsilon, |size| radius(size).relative)
            };
            let tokens = found.unwrap_or(n_s);
            let Radius { relative, kind, assumes } = radius(tokens.min(asked.limit).max(size));
            Seen::new(Budget { tokens, kind, assumes }, relative)
        };
        let residual = &self.residuals[reader];
        let Present { probabilities, strata, .. } = present;
        let sample = self.accumulator.weighed(reader, residual, probabilities, strata.as_ref());
        forecast(&Look::new(&*self.design, present, reader, &sample, residual))
    }

    /// The least size that the design proves sufficient.
    fn by_proof(&mut self, asked: &Asked<'_>, reader: usize) -> Seen {
        let (n_s, limit) = (self.n_s, asked.limit);
        let base = if asked.epsilon.is_infinite() { limit } else { self.base };
        let demand = asked.estimator.demand();
        let query_heads = self.residuals[reader].query_heads;
        let delta = demand.scope.share_of(demand.delta.get(), query_heads);
        let (kind, assumes) = (Kind::FiniteSample, Assumptions::NONE);
        self.look(reader, |design, sample, shift| {
            let prove = |epsilon: f64| {
                let goal = ProofGoal { epsilon, delta, base, limit, shift };
                design.proved(sample, reader, &goal)
            };
            let now = || prove(f64::INFINITY).map_or(f64::INFINITY, |proved| proved.radius);
            let (tokens, radius) = match prove(asked.epsilon) {
                Some(proved) => (proved.size, proved.radius),
                None => (n_s, now()),
            };
            Seen::new(Budget { tokens, kind, assumes }, radius)
        })
    }

    /// Shows what has been read of the sample.
    fn look<T>(&mut self, reader: usize, of: impl FnOnce(&dyn Design, &Sample<'_>, f64) -> T) -> T {
        let Self { accumulator, design, residuals, .. } = self;
        let (mut of, mut seen) = (Some(of), None);
        accumulator.sample(reader, &residuals[reader], &mut |sample, shift| {
            seen = of.take().map(|of| of(&**design, sample, shift));
        });
        seen.expect("an accumulator shows its sample once")
    }
}

/// The budget of an unchecked sample.
fn unjudged(tokens: usize) -> Budget {
    Budget { tokens, kind: Kind::None, assumes: Assumptions::NONE }
}

impl Seen {
    /// A radius that is NaN bounds nothing: it is infinite.
    fn new(budget: Budget, radius: f64) -> Self {
        Self { budget, radius: if radius.is_nan() { f64::INFINITY } else { radius } }
    }

    /// The sample suffices.
    fn enough(tokens: usize, radius: Radius) -> Self {
        let Radius { relative, kind, assumes } = radius;
        Self::new(Budget { tokens, kind, assumes }, relative)
    }

    fn everything(n_s: usize) -> Self {
        Self::enough(n_s, Radius::new(0.0, Kind::Exact, Assumptions::NONE))
    }
}

/// Candidate sizes per doubling: backends whose radii differ in the last digits find the same one.
const PER_DOUBLING: usize = 32;

/// The least size with a radius of at most epsilon, beyond `size`, which does not suffice, and up to `most`; `None` if there
/// is none. Radii fall about as the root of sizes rises: a handful are computed.
fn least_size(
    size: usize,
    now: f64,
    most: usize,
    epsilon: f64,
    radius: impl Fn(usize) -> f64,
) -> Option<usize> {
    if most <= size {
        return None;
    }
    let doublings = |step: usize| step as f64 / PER_DOUBLING as f64;
    let at = |step: usize| (doublings(step).exp2() as usize).max(size + 1).min(most);
    let steps = |radius: f64| (2.0 * (radius / epsilon).log2() * PER_DOUBLING as f64) as usize;
    let (mut low, mut at_low) = (((size as f64).log2() * PER_DOUBLING as f64) as usize, now);
    let (mut high, mut at_high) = (low, now);
    while at_high > epsilon {
        if at(high) >= most && high > low {
            return None;
        }
        (low, at_low) = (high, at_high);
        high += steps(at_low).clamp(1, 4 * PER_DOUBLING) + 1;
        at_high = radius(at(high));
    }
    while high - low > 1 {
        let share = (at_low / epsilon).ln() / (at_low / at_high).ln();
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.5 };
        let middle = (low + (share * (high - low) as f64).ceil() as usize).clamp(low + 1, high - 1);
        let at_middle = radius(at(middle));
        if at_middle <= epsilon {
            (high, at_high) = (middle, at_middle);
        } else {
            (low, at_low) = (middle, at_middle);
        }
    }
    Some(at(high))
}

#[cfg(test)]
mod tests {
    use super::{Radius, Seen, least_size, unjudged};
    use crate::{Assumptions, Kind};

    #[test]
    fn a_radius_that_is_not_a_number_is_infinite() {
        assert_eq!(Seen::new(unjudged(1), f64::NAN).radius, f64::INFINITY);
        let (kind, assumes) = (Kind::Asymptotic, Assumptions::ALL);
        let radius = Radius { relative: f64::NAN, kind, assumes };
        assert_eq!(Seen::enough(1, radius).radius, f64::INFINITY);
    }

    /// Of radii that fall as the root, with a floor, at once, or not at all.
    #[test]
    fn the_least_size_is_within_a_step_of_where_the_radius_suffices() {
        let root = |size: usize| (1000.0 / size as f64).sqrt() / 10.0;
        let steep = |size: usize| if size >= 700 { 0.0 } else { f64::INFINITY };
        let slow = |size: usize| 0.2 - size as f64 / 1e5;
        for (size, most) in [(1, 40_000), (100, 5000), (128, 20_000), (999, 2000)] {
            let found = |radius: fn(usize) -> f64| {
                least_size(size, radius(size), most, 0.1, radius).unwrap_or(0)
            };
            let near =
                |found: usize, least: usize| found >= least && found <= 1 + least * 103 / 100;
            assert!(near(found(root), 1000), "{}", found(root));
            if size < 700 {
                assert!(near(found(steep), 700), "{}", found(steep));
            }
            let slowly = found(slow);
            assert!(if most > 10_000 { near(slowly, 10_000) } else { slowly == 0 }, "{slowly}");
        }
        assert_eq!(least_size(10, 1.0, 11, 0.1, |_| 0.0), Some(11));
        assert_eq!(least_size(10, 1.0, 11, 0.1, |_| 1.0), None);
        assert_eq!(least_size(10, f64::INFINITY, 10, 0.1, |_| 1.0), None);
    }
}
