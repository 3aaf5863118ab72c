//! Search for the smallest sample size whose radius is at most epsilon, for any design.

use crate::{
    plugin::{Budget, Estimator, Radius, Schedule, check_sizes},
    sample::SampleStats,
};

/// Relative excess of a radius over epsilon that is attributed to rounding.
const ROUNDING: f64 = 5e-10;

/// Returns true if a radius is at most epsilon, up to rounding.
pub(crate) fn suffices(radius: &Radius, epsilon: f64) -> bool {
    radius.relative <= epsilon * (1.0 + ROUNDING)
}

/// Number of coarse sizes per doubling. Sizes are coarse so that backends whose radii differ in the
/// last digits find the same size.
const PER_DOUBLING: f64 = 32.0;

/// Ascending sizes that a search chooses from.
#[derive(Debug)]
pub(crate) enum Candidates {
    /// All sizes from 1 to this one.
    Every(usize),
    /// These sizes.
    List(Vec<usize>),
    /// A size, and larger coarse sizes.
    Coarse(CoarseSizes),
}

/// A first size, the coarse sizes beyond it, which are `2^(i / PER_DOUBLING)` rounded down, and a
/// largest size.
#[derive(Debug)]
pub(crate) struct CoarseSizes {
    first: usize,
    largest: usize,
    /// Exponent `i` of the last coarse size that does not exceed the first size.
    before: usize,
    len: usize,
}

impl CoarseSizes {
    /// Size at a place of the list, below `len`.
    fn size(&self, place: usize) -> usize {
        match place {
            0 => self.first,
            place if place + 1 == self.len => self.largest,
            place => ((self.before + place) as f64 / PER_DOUBLING).exp2() as usize,
        }
    }

    /// Place of the first size that is at least `size`.
    fn place(&self, size: f64) -> usize {
        if size.is_nan() || size <= self.first as f64 {
            return 0;
        }
        let near = (size.log2() * PER_DOUBLING).ceil() as usize;
        let mut place = near.saturating_sub(self.before).clamp(1, self.len);
        while place < self.len && (self.size(place) as f64) < size {
            place += 1;
        }
        place
    }
}

impl Candidates {
    /// Sizes that a uniform sample of `size` out of `n_s` tokens may grow to. A sample grows by at
    /// least an eighth between checks, so fixed sizes below that are left out.
    pub(crate) fn uniform(schedule: Schedule, size: usize, n_s: usize) -> Self {
        match schedule {
            Schedule::Before | Schedule::Adaptive { .. } => Self::Every(n_s),
            Schedule::FixedSizes { .. } => {
                let later = check_sizes(n_s).filter(|&later| later >= size + size / 8);
                Self::List(std::iter::once(size).chain(later).collect())
            }
        }
    }

    /// `size`, and the coarse sizes beyond it up to `largest`.
    pub(crate) fn coarse(size: usize, largest: usize) -> Self {
        let number = |size: usize| (size as f64).log2() * PER_DOUBLING;
        // Successive coarse sizes may be equal if they are small.
        let before = (number(size + 1).ceil() as usize).saturating_sub(1);
        let between = (number(largest).ceil() as usize).saturating_sub(before + 1);
        let len = if largest > size { between + 2 } else { 1 };
        Self::Coarse(CoarseSizes { first: size, largest, before, len })
    }

    fn len(&self) -> usize {
        match self {
            Self::Every(largest) => *largest,
            Self::List(sizes) => sizes.len(),
            Self::Coarse(sizes) => sizes.len,
        }
    }

    fn size(&self, place: usize) -> usize {
        match self {
            Self::Every(_) => place + 1,
            Self::List(sizes) => sizes[place],
            Self::Coarse(sizes) => sizes.size(place),
        }
    }

    /// Place of the first size that is at least `size`.
    fn place(&self, size: f64) -> usize {
        match self {
            Self::Every(_) => (size.ceil() as usize).saturating_sub(1),
            Self::List(sizes) => sizes.partition_point(|&candidate| (candidate as f64) < size),
            Self::Coarse(sizes) => sizes.place(size),
        }
    }
}

/// Number of radii within which interpolation must halve the number of remaining sizes; otherwise
/// the next size bisects them.
const PATIENCE: usize = 3;

/// Finds the smallest candidate whose radius is at most epsilon, and its radius; `None` if there is
/// no such candidate. Radii decrease with the size.
///
/// The radius of a sample of `m / (1 + m / n_s)` out of `n_s` tokens is about proportional to
/// `1 / √m`, so the next size to try is interpolated from the last two radii. Few radii are
/// computed, the first of them at size `first`.
pub(crate) fn search(
    candidates: &Candidates,
    (first, n_s): (usize, usize),
    epsilon: f64,
    radius: impl Fn(usize) -> Radius,
) -> Option<(usize, Radius)> {
    let n_s = n_s as f64;
    let (mut low, mut high) = (0, candidates.len());
    let (mut remaining, mut tries) = (high, 0);
    let mut next = candidates.place(first as f64);
    let (mut last_point, mut found): (Option<[f64; 2]>, _) = (None, None);
    while low < high {
        let place = next.clamp(low, high - 1);
        let size = candidates.size(place);
        let now = radius(size);
        if suffices(&now, epsilon) {
            (high, found) = (place, Some((size, now)));
        } else {
            low = place + 1;
        }
        // `ln m`, and `ln` of the radius over epsilon.
        let point = [-(1.0 / size as f64 - 1.0 / n_s).ln(), (now.relative / epsilon).ln()];
        let point = point.iter().all(|x| x.is_finite()).then_some(point);
        let log_m = match (last_point, point) {
            (Some([x0, y0]), Some([x, y])) if (y - y0) * (x - x0) < 0.0 => {
                x - y * (x - x0) / (y - y0)
            }
            (_, Some([x, y])) => x + 2.0 * y,
            _ => f64::NAN,
        };
        last_point = point;
        tries += 1;
        if high - low <= remaining / 2 {
            (remaining, tries) = (high - low, 0);
        }
        next = if log_m.is_nan() || tries > PATIENCE {
            (remaining, tries) = (high - low, 0);
            usize::midpoint(low, high)
        } else {
            candidates.place((1.0 - 2.0 * ROUNDING) / ((-log_m).exp() + 1.0 / n_s))
        };
    }
    found
}

/// Size of a uniform sample that the estimator's promise requires, from the statistics of the
/// sample drawn so far.
///
/// Under [`Schedule::FixedSizes`], the size is the one drawn or a later fixed size. It is the whole
/// residual if no smaller size suffices, or if nothing is promised.
pub fn required_size(estimator: &dyn Estimator, stats: &SampleStats) -> Budget {
    let epsilon = estimator.goal().ok().and_then(|goal| goal.epsilon());
    let radius = |b: usize| estimator.radius(&stats.with_size(b));
    let candidates = Candidates::uniform(estimator.schedule(), stats.drawn, stats.n_s);
    let found = epsilon
        .and_then(|epsilon| search(&candidates, (stats.drawn, stats.n_s), epsilon.get(), radius));
    let (tokens, radius) = found.unwrap_or_else(|| (stats.n_s, radius(stats.n_s)));
    Budget { tokens, kind: radius.kind, assumes: radius.assumes }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::promise::{Assumptions, Kind};

    /// Size found, or 0, and the number of radii computed.
    fn search_counted(
        candidates: &Candidates,
        first: usize,
        radius: impl Fn(usize) -> f64,
    ) -> (usize, usize) {
        let calls = Cell::new(0);
        let radius = |size: usize| {
            calls.set(calls.get() + 1);
            Radius::new(radius(size), Kind::Asymptotic, Assumptions::ALL)
        };
        let found = search(candidates, (first, 50_000), 0.1, radius);
        (found.map_or(0, |found| found.0), calls.get())
    }

    /// Radii that decrease as `1 / √size`, at one size only, slowly, or not at all.
    #[test]
    fn the_smallest_size_is_found_exactly() {
        let every = Candidates::Every(50_000);
        for first in [0, 1, 128, 1000, 40_000, 50_000] {
            for least in [1, 2, 127, 1000, 33_333, 49_999, 50_000] {
                let root = |size: usize| 0.1 * (least as f64 / size as f64).sqrt();
                assert_eq!(search_counted(&every, first, root).0, least);
                let step = |size: usize| if size >= least { 0.0 } else { f64::INFINITY };
                let (size, calls) = search_counted(&every, first, step);
                assert_eq!(size, least);
                assert!(calls <= 20, "{calls} radii");
                let slow = |size: usize| 0.1 + (least as f64 - size as f64) / 1e6;
                let (size, calls) = search_counted(&every, first, slow);
                assert_eq!(size, least);
                assert!(calls <= 24, "{calls} radii");
            }
            assert_eq!(search_counted(&every, first, |_| 1.0).0, 0);
        }
    }

    #[test]
    fn few_radii_are_computed_for_square_root_laws() {
        let finite = |size: usize| {
            let left = 1.0 - size as f64 / 50_000.0;
            (400.0 * left / size as f64).sqrt()
                / (1.0 - (100.0 * left / size as f64).sqrt()).max(0.0)
        };
        for first in [128, 2000, 30_000] {
            let (size, calls) = search_counted(&Candidates::Every(50_000), first, finite);
            assert!(finite(size) <= 0.1 && finite(size - 1) > 0.1 && calls <= 12, "{calls} radii");
        }
    }

    #[test]
    fn coarse_search_finds_a_size_at_most_one_step_too_large() {
        for (size, most) in [(1, 40_000), (100, 5000), (128, 20_000), (999, 2000)] {
            let candidates = Candidates::coarse(size, most);
            let root = |size: usize| (1000.0 / size as f64).sqrt() / 10.0;
            let (least, _) = search_counted(&candidates, size, root);
            assert!((1000..=1031).contains(&least), "{least}");
        }
        assert_eq!(
            search_counted(&Candidates::coarse(10, 11), 10, |size| 10.5 - size as f64).0,
            11
        );
        assert_eq!(search_counted(&Candidates::coarse(10, 11), 10, |_| 1.0).0, 0);
        assert_eq!(search_counted(&Candidates::coarse(10, 10), 10, |_| 1.0).0, 0);
        assert_eq!(search_counted(&Candidates::coarse(10, 9), 10, |_| 0.0).0, 10);
    }
}
