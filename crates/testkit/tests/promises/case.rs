//! One case of the table, and the requirements on its counts.

use std::sync::{Arc, Mutex};

use vattention_core::PipelineConfig;
use vattention_testkit::promises::{Counts, PromiseHead, for_each, try_head_as};
// Linking these crates registers the plug-ins of the pipelines.
use {vattention_estimators as _, vattention_samplers as _, vattention_selectors as _};

/// Selectors of the first and the last tokens.
pub(crate) const ENDS: &str = "{ type = 'sink', size = 8 }, { type = 'window', size = 8 }";

/// Selector of the heaviest tokens.
pub(crate) const TOP: &str = "{ type = 'oracle-top-k', size = 0.05, score = 'head' }";

/// Initial size of most samples.
pub(crate) const BASE: usize = 64;

/// Goal of an estimator: an epsilon or a sample size, with a delta.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    Epsilon(f64, f64),
    Size(usize, f64),
}

use Goal::{Epsilon, Size};

impl Goal {
    pub(crate) fn delta(self) -> f64 {
        let (Epsilon(_, delta) | Size(_, delta)) = self;
        delta
    }
}

/// A pipeline, its goals, and the heads on which it is tested.
#[derive(Clone, Debug)]
pub(crate) struct PromiseCase {
    pub(crate) share: &'static str,
    pub(crate) selectors: Vec<&'static str>,
    /// Type of the sampler and further fields.
    pub(crate) sampler: &'static str,
    pub(crate) base: usize,
    /// Type of the estimator and further fields.
    pub(crate) estimator: String,
    pub(crate) goals: Vec<Goal>,
    pub(crate) heads: Vec<PromiseHead>,
    /// Returns true for heads on which the selectors miss heavy tokens that most samples miss too.
    pub(crate) hidden: fn(PromiseHead) -> bool,
    /// True if trials are successive steps.
    pub(crate) successive: bool,
}

/// Results of one head and goal.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) head: PromiseHead,
    pub(crate) goal: Goal,
    pub(crate) counts: Counts,
}

impl PromiseCase {
    /// Creates a case with a token list for each query head.
    pub(crate) fn new(
        heads: &[PromiseHead],
        selectors: &[&'static str],
        sampler: &'static str,
        estimator: &str,
        goals: &[Goal],
    ) -> Self {
        Self {
            share: "head",
            selectors: selectors.to_vec(),
            sampler,
            base: BASE,
            estimator: estimator.to_owned(),
            goals: goals.to_vec(),
            heads: heads.to_vec(),
            hidden: |_| false,
            successive: false,
        }
    }

    pub(crate) fn pipeline(&self, goal: Goal) -> Arc<PipelineConfig> {
        let Self { share, sampler, base, estimator, .. } = self;
        let selectors = self.selectors.join(", ");
        let (goal, delta) = match goal {
            Epsilon(epsilon, delta) => (format!("epsilon = {epsilon}"), delta),
            Size(size, delta) => (format!("size = {size}"), delta),
        };
        let text = format!(
            "share = '{share}'\nselectors = [{selectors}]\n\
             sampler = {{ base = {base}, type = {sampler} }}\n\
             estimator = {{ {goal}, delta = {delta}, type = {estimator} }}"
        );
        Arc::new(toml::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}")))
    }

    /// Tests every goal on every head.
    ///
    /// # Panics
    /// If counts contradict the certificates.
    pub(crate) fn check(&self) -> Vec<Cell> {
        let cells: Vec<_> = self
            .heads
            .iter()
            .flat_map(|&head| self.goals.iter().map(move |&goal| (head, goal)))
            .collect();
        // A quarter of the variance makes error bars of half the width.
        let cells = self.run(&cells, 0.5, |goal| goal);
        for Cell { head, goal, counts } in &cells {
            println!("{head:?}, {}, {}, {goal:?}: {counts:?}", self.sampler, self.estimator);
            let wrong = match goal {
                Epsilon(..) => counts.unfounded,
                Size(..) => counts.outside,
            };
            let violated = counts.violated.contradicts(goal.delta());
            // A promise may break only if its certificates assume that no heavy token is missed.
            let excused = (self.hidden)(*head) && wrong.total == 0;
            let broken = wrong.contradicts(goal.delta()) || violated && !excused;
            assert!(!broken, "{head:?}, {goal:?}, {self:?}: {counts:?}");
        }
        cells
    }

    /// Plants a mistake: errors are tested as if their variance were the true one times
    /// `variance_share`. Cells whose samples hardly exceed their initial size are left out.
    ///
    /// # Panics
    /// If fewer than `least` cells find the mistake.
    pub(crate) fn check_planted(&self, variance_share: f64, cells: &[Cell], least: usize) {
        let factor = variance_share.sqrt();
        let cells: Vec<_> = cells
            .iter()
            .filter(|cell| cell.counts.drawn >= 2.0 * self.base as f64)
            .map(|cell| (cell.head, cell.goal))
            .collect();
        let cells = self.run(&cells, factor, |goal| match goal {
            Epsilon(epsilon, delta) => Epsilon(epsilon / factor, delta),
            Size(..) => goal,
        });
        let found = count(&cells, |cell| cell.counts.narrowed.contradicts(cell.goal.delta()));
        println!("{found} of {} cells find {variance_share} of the variance", cells.len());
        assert!(found >= least, "only {found} cells find a planted mistake: {self:?}");
    }

    fn run(
        &self,
        cells: &[(PromiseHead, Goal)],
        narrowing: f64,
        change: impl Fn(Goal) -> Goal + Sync,
    ) -> Vec<Cell> {
        let results = Mutex::new(Vec::new());
        for_each(cells, |&(head, goal)| {
            let counts = try_head_as(head, &self.pipeline(change(goal)), |trials| {
                trials.tail_is_hidden = (self.hidden)(head);
                trials.narrowing = narrowing;
                trials.successive = self.successive;
            });
            results.lock().unwrap().push(Cell { head, goal, counts });
        });
        results.into_inner().unwrap()
    }
}

/// Number of cells for which a condition holds.
pub(crate) fn count(cells: &[Cell], condition: impl Fn(&Cell) -> bool) -> usize {
    cells.iter().filter(|cell| condition(cell)).count()
}

/// Asserts a condition of every cell.
pub(crate) fn assert_all(cells: &[Cell], condition: impl Fn(&Cell) -> bool) {
    for cell in cells {
        assert!(condition(cell), "{cell:?}");
    }
}
