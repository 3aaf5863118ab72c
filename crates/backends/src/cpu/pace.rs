//! How long steps of one KV head take: by reading everything, and by what the pipeline chooses.
//!
//! What a step costs depends on the machine, the memory, the pipeline's plug-ins and the head; so it is measured, by both
//! ways, on the steps themselves. The faster way is taken. The other is tried again now and then, the more seldom the
//! slower it was: trying takes [`TRYING`] of the time.

use std::time::Duration;

/// The share of the time that may go into the slower way, to see whether it still is.
const TRYING: f64 = 0.02;

/// Steps of the faster way between two tries, at the least.
const LEAST_APART: f64 = 16.0;

/// How a step is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By reading everything.
    Dense,
    /// As the pipeline chooses.
    Chosen,
}

/// The ways' speeds, as far as they are known.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    /// Seconds for each visible token.
    dense: Recent,
    /// Seconds for a step.
    chosen: Recent,
    /// Steps of the faster way since the other was tried.
    since: u32,
}

/// The last three of some times: the middle one counts, so that an interruption does not.
#[derive(Clone, Debug, Default)]
struct Recent {
    times: [f64; 3],
    count: usize,
}

impl Pace {
    /// How to answer a step of `visible` tokens.
    pub(super) fn way(&self, visible: usize) -> Way {
        let Some((faster, ratio)) = self.faster(visible) else {
            return if self.dense.count <= self.chosen.count { Way::Dense } else { Way::Chosen };
        };
        let apart = ((ratio - 1.0) / TRYING).max(LEAST_APART);
        match faster {
            _ if f64::from(self.since) < apart => faster,
            Way::Dense => Way::Chosen,
            Way::Chosen => Way::Dense,
        }
    }

    /// Notes that a step of `visible` tokens took so long.
    pub(super) fn took(&mut self, way: Way, visible: usize, time: Duration) {
        let faster = self.faster(visible).map(|(faster, _)| faster);
        let seconds = time.as_secs_f64();
        match way {
            Way::Dense => self.dense.push(seconds / visible.max(1) as f64),
            Way::Chosen => self.chosen.push(seconds),
        }
        self.since = if faster == Some(way) { self.since.saturating_add(1) } else { 0 };
    }

    /// The faster way, and how many times as long the other takes.
    fn faster(&self, visible: usize) -> Option<(Way, f64)> {
        let (dense, chosen) = (self.dense.middle()? * visible as f64, self.chosen.middle()?);
        Some(if dense <= chosen {
            (Way::Dense, chosen / dense)
        } else {
            (Way::Chosen, dense / chosen)
        })
    }
}

impl Recent {
    fn push(&mut self, time: f64) {
        self.times[self.count % 3] = time;
        self.count += 1;
    }

    /// None of fewer than three.
    fn middle(&self) -> Option<f64> {
        let [a, b, c] = self.times;
        (self.count >= 3).then(|| a.max(b).min(a.min(b).max(c)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes `steps` steps, of which each way costs what `cost` says of the number of steps before: how often everything was
    /// read, and the time in all.
    fn walk(steps: usize, cost: impl Fn(Way, usize) -> f64) -> (usize, f64) {
        let (mut pace, mut dense, mut total) = (Pace::default(), 0, 0.0);
        for step in 0..steps {
            let way = pace.way(1000);
            let seconds = cost(way, step);
            pace.took(way, 1000, Duration::from_secs_f64(seconds));
            dense += usize::from(way == Way::Dense);
            total += seconds;
        }
        (dense, total)
    }

    #[test]
    fn both_ways_are_tried_and_the_faster_one_taken_nearly_always() {
        for ratio in [1.05, 1.3, 5.0, 40.0] {
            let steps = 6000;
            let (dense, total) = walk(steps, |way, _| if way == Way::Dense { 1.0 } else { ratio });
            assert!(dense >= steps * 94 / 100, "{dense} at {ratio}");
            assert!(total <= 1.03 * steps as f64 + 3.0 * ratio, "{total} at {ratio}");
            let (dense, total) = walk(steps, |way, _| if way == Way::Chosen { 1.0 } else { ratio });
            assert!((3..=steps * 6 / 100).contains(&dense), "{dense} at {ratio}");
            assert!(total <= 1.03 * steps as f64 + 3.0 * ratio, "{total} at {ratio}");
        }
    }

    /// When the slower way becomes the faster one, it is found.
    #[test]
    fn a_change_is_noticed() {
        let change = |way: Way, step: usize| match way {
            Way::Dense => 1.0,
            Way::Chosen if step < 1000 => 1.5,
            Way::Chosen => 0.5,
        };
        let (_, total) = walk(5000, change);
        assert!(total < 1000.0 * 1.03 + 4000.0 * 0.54, "{total}");
    }

    #[test]
    fn one_interruption_changes_nothing() {
        let mut pace = Pace::default();
        for _ in 0..6 {
            let way = pace.way(10);
            let seconds = if way == Way::Dense { 1.0 } else { 2.0 };
            pace.took(way, 10, Duration::from_secs_f64(seconds));
        }
        pace.took(Way::Dense, 10, Duration::from_secs(100));
        assert_eq!(pace.way(10), Way::Dense);
    }

    /// A context that grows makes reading everything dearer, which was measured for each token.
    #[test]
    fn longer_contexts_are_foreseen() {
        let mut pace = Pace::default();
        for _ in 0..6 {
            let way = pace.way(10);
            pace.took(way, 10, Duration::from_secs(if way == Way::Dense { 1 } else { 2 }));
        }
        assert_eq!((pace.way(10), pace.way(30)), (Way::Dense, Way::Chosen));
    }
}
