//! Choice between dense and sparse steps of one KV head, by measured times.
//!
//! The time of a step depends on the machine, the memory, the pipeline's plug-ins and the head. So
//! the times of both modes are measured on the steps themselves, and the faster mode is used. The
//! slower mode is tried again occasionally, more rarely the slower it was: trials take at most
//! about [`TRIAL_SHARE`] of the time.

use std::time::Duration;

/// Fraction of the time that trials of the slower mode may take.
const TRIAL_SHARE: f64 = 0.02;

/// Fewest steps in the faster mode between two trials.
const MIN_TRIAL_DISTANCE: f64 = 16.0;

/// Mode in which a step is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepMode {
    /// Reads all visible tokens.
    Dense,
    /// Reads the tokens that the pipeline chooses.
    Sparse,
}

/// Measured times of both modes.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    /// Seconds per visible token.
    dense: RecentTimes,
    /// Seconds per step.
    sparse: RecentTimes,
    /// Number of steps in the faster mode since the last trial.
    since: u32,
}

/// The last three times. Their median is used, so that an interruption has no effect.
#[derive(Clone, Debug, Default)]
struct RecentTimes {
    times: [f64; 3],
    count: usize,
}

impl Pace {
    /// Returns the mode for a step with `visible` tokens.
    pub(super) fn choose_mode(&self, visible: usize) -> StepMode {
        let Some((faster, ratio)) = self.faster(visible) else {
            let dense = self.dense.count <= self.sparse.count;
            return if dense { StepMode::Dense } else { StepMode::Sparse };
        };
        let trial_distance = ((ratio - 1.0) / TRIAL_SHARE).max(MIN_TRIAL_DISTANCE);
        match faster {
            _ if f64::from(self.since) < trial_distance => faster,
            StepMode::Dense => StepMode::Sparse,
            StepMode::Sparse => StepMode::Dense,
        }
    }

    /// Records the time of a step with `visible` tokens.
    pub(super) fn record(&mut self, mode: StepMode, visible: usize, time: Duration) {
        let faster = self.faster(visible).map(|(faster, _)| faster);
        let seconds = time.as_secs_f64();
        match mode {
            StepMode::Dense => self.dense.push(seconds / visible.max(1) as f64),
            StepMode::Sparse => self.sparse.push(seconds),
        }
        self.since = if faster == Some(mode) { self.since.saturating_add(1) } else { 0 };
    }

    /// Returns the faster mode, and the time of the other relative to it; `None` until both modes
    /// were measured three times.
    fn faster(&self, visible: usize) -> Option<(StepMode, f64)> {
        let (dense, sparse) = (self.dense.median()? * visible as f64, self.sparse.median()?);
        Some(if dense <= sparse {
            (StepMode::Dense, sparse / dense)
        } else {
            (StepMode::Sparse, dense / sparse)
        })
    }
}

impl RecentTimes {
    fn push(&mut self, time: f64) {
        self.times[self.count % 3] = time;
        self.count += 1;
    }

    /// Median of three times; `None` if there are fewer.
    fn median(&self) -> Option<f64> {
        let [a, b, c] = self.times;
        (self.count >= 3).then(|| a.max(b).min(a.min(b).max(c)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates steps that take `cost(mode, step)` seconds. Returns the number of dense steps and
    /// the total time.
    fn simulate(steps: usize, cost: impl Fn(StepMode, usize) -> f64) -> (usize, f64) {
        let (mut pace, mut dense, mut total) = (Pace::default(), 0, 0.0);
        for step in 0..steps {
            let mode = pace.choose_mode(1000);
            let seconds = cost(mode, step);
            pace.record(mode, 1000, Duration::from_secs_f64(seconds));
            dense += usize::from(mode == StepMode::Dense);
            total += seconds;
        }
        (dense, total)
    }

    #[test]
    fn both_modes_are_tried_and_the_faster_one_is_nearly_always_used() {
        for ratio in [1.05, 1.3, 5.0, 40.0] {
            let steps = 6000;
            let cost = |mode, faster| if mode == faster { 1.0 } else { ratio };
            let (dense, total) = simulate(steps, |mode, _| cost(mode, StepMode::Dense));
            assert!(dense >= steps * 94 / 100, "{dense} at {ratio}");
            assert!(total <= 1.03 * steps as f64 + 3.0 * ratio, "{total} at {ratio}");
            let (dense, total) = simulate(steps, |mode, _| cost(mode, StepMode::Sparse));
            assert!((3..=steps * 6 / 100).contains(&dense), "{dense} at {ratio}");
            assert!(total <= 1.03 * steps as f64 + 3.0 * ratio, "{total} at {ratio}");
        }
    }

    /// The slower mode is used once it has become the faster one.
    #[test]
    fn a_change_is_noticed() {
        let change = |mode: StepMode, step: usize| match mode {
            StepMode::Dense => 1.0,
            StepMode::Sparse if step < 1000 => 1.5,
            StepMode::Sparse => 0.5,
        };
        let (_, total) = simulate(5000, change);
        assert!(total < 1000.0 * 1.03 + 4000.0 * 0.54, "{total}");
    }

    /// Six steps with 10 visible tokens: 1 s if dense, 2 s if sparse.
    fn pace_of_faster_dense_steps() -> Pace {
        let mut pace = Pace::default();
        for _ in 0..6 {
            let mode = pace.choose_mode(10);
            let seconds = if mode == StepMode::Dense { 1 } else { 2 };
            pace.record(mode, 10, Duration::from_secs(seconds));
        }
        pace
    }

    #[test]
    fn one_interruption_changes_nothing() {
        let mut pace = pace_of_faster_dense_steps();
        pace.record(StepMode::Dense, 10, Duration::from_secs(100));
        assert_eq!(pace.choose_mode(10), StepMode::Dense);
    }

    /// Dense steps become slower in longer contexts, because their time is measured per token.
    #[test]
    fn dense_steps_are_predicted_for_longer_contexts() {
        let pace = pace_of_faster_dense_steps();
        assert_eq!(pace.choose_mode(10), StepMode::Dense);
        assert_eq!(pace.choose_mode(30), StepMode::Sparse);
    }
}
