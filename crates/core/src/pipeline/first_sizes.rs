//! Size that a sample is expected to require, learned from the previous step: its size at the first
//! check, unless the estimator fixes the sizes of checks.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of levels per doubling of a size.
const PER_DOUBLING: f64 = 8.0;

/// Largest level, 2¹⁶ times the base.
const MAX_LEVEL: u16 = 128;

/// Expected sizes of the samples for the token lists of one KV head.
///
/// Sizes are stored as levels: level `i` is a size of `2^(i/8)` times the base. Levels are coarse,
/// so that backends whose radii differ in the last digits begin with the same size. A step begins
/// with the level that the previous step has set, or with the base if the previous step was not
/// recorded. A step that is repeated begins with the same level as before.
#[derive(Debug)]
pub(crate) struct FirstSizes {
    /// Packed [`ListLevels`], `[lists]`. Atomic, because steps have only a shared reference to the
    /// pipeline.
    lists: Vec<AtomicU64>,
}

/// Levels of one token list.
#[derive(Clone, Copy)]
struct ListLevels {
    /// Number of the last step.
    step: u32,
    /// Level at which the last step began.
    current: u16,
    /// Level at which the next step begins.
    next: u16,
}

impl ListLevels {
    fn unpack(bits: u64) -> Self {
        Self { step: (bits >> 32) as u32, current: (bits >> 16) as u16, next: bits as u16 }
    }

    fn pack(self) -> u64 {
        u64::from(self.step) << 32 | u64::from(self.current) << 16 | u64::from(self.next)
    }
}

impl FirstSizes {
    /// Creates the levels of `lists` lists, which all begin with the base.
    pub(crate) fn new(lists: usize) -> Self {
        // The step before step 0.
        let initial = ListLevels { step: u32::MAX, current: 0, next: 0 };
        Self { lists: (0..lists).map(|_| AtomicU64::new(initial.pack())).collect() }
    }

    /// Returns the levels of all lists, for [`restore`](Self::restore).
    pub(crate) fn save(&self) -> Vec<u64> {
        self.lists.iter().map(|list| list.load(Ordering::Relaxed)).collect()
    }

    /// Restores the levels that [`save`](Self::save) returned; `None` if a number encodes no valid
    /// levels.
    pub(crate) fn restore(saved: &[u64]) -> Option<Self> {
        let is_level = |&bits: &u64| {
            let ListLevels { current, next, .. } = ListLevels::unpack(bits);
            current <= MAX_LEVEL && next <= MAX_LEVEL
        };
        let lists = || saved.iter().copied().map(AtomicU64::new).collect();
        saved.iter().all(is_level).then(|| Self { lists: lists() })
    }

    /// Records that a step begins, and returns the first size of a list's sample.
    pub(crate) fn begin(&self, list: usize, step: u32, base: usize) -> usize {
        let last = ListLevels::unpack(self.lists[list].load(Ordering::Relaxed));
        let current = match step {
            again if again == last.step => last.current,
            next if next == last.step.wrapping_add(1) => last.next,
            _ => 0,
        };
        let levels = ListLevels { step, current, next: current };
        self.lists[list].store(levels.pack(), Ordering::Relaxed);
        (base as f64 * (f64::from(current) / PER_DOUBLING).exp2()) as usize
    }

    /// Records that a list needed a size at the current step. The next step begins a quarter of the
    /// way nearer to the level of that size: needs often differ by a factor of two from step to
    /// step, and a sample that begins too small can still grow.
    pub(crate) fn learn(&self, list: usize, needed: f64, base: usize) {
        let level = level(needed, base);
        self.update(list, |current| {
            let distance = level.abs_diff(current).div_ceil(4);
            if level > current { current + distance } else { current - distance }
        });
    }

    /// Records that a list required so large a sample that every token was read instead. The next
    /// step begins with that size.
    pub(crate) fn learn_excess(&self, list: usize, required: usize, base: usize) {
        self.update(list, |current| level(required as f64, base).max(current));
    }

    /// Records that every token was read without trying a sample. The next step begins one level
    /// down, but not below the base, so that a sample is tried again after some steps.
    pub(crate) fn lower(&self, list: usize) {
        self.update(list, |current| current.saturating_sub(1));
    }

    fn update(&self, list: usize, next: impl Fn(u16) -> u16) {
        let last = ListLevels::unpack(self.lists[list].load(Ordering::Relaxed));
        let levels = ListLevels { next: next(last.current), ..last };
        self.lists[list].store(levels.pack(), Ordering::Relaxed);
    }
}

/// Lowest level whose size is at least `size`.
fn level(size: f64, base: usize) -> u16 {
    (PER_DOUBLING * (size / base as f64).log2()).ceil().clamp(0.0, f64::from(MAX_LEVEL)) as u16
}

impl Clone for FirstSizes {
    fn clone(&self) -> Self {
        let lists = self.lists.iter().map(|list| AtomicU64::new(list.load(Ordering::Relaxed)));
        Self { lists: lists.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_sizes_depend_only_on_the_previous_step() {
        let sizes = FirstSizes::new(2);
        assert_eq!(sizes.begin(0, 0, 128), 128);
        sizes.learn(0, 2048.0, 128);
        // A quarter of the way up four doublings.
        assert_eq!([sizes.begin(0, 1, 128), sizes.begin(1, 1, 128)], [256, 128]);
        sizes.learn(0, 128.0, 128);
        assert_eq!(sizes.begin(0, 1, 128), 256, "a repeated step begins with the same size");
        sizes.learn(0, 128.0, 128);
        let fork = sizes.clone();
        assert_eq!(sizes.begin(0, 2, 128), 215, "a quarter of the way down a doubling");
        assert_eq!(sizes.begin(0, 9, 128), 128, "step 8 was not recorded");
        assert_eq!(fork.begin(0, 2, 128), 215);
        fork.learn_excess(0, 2048, 128);
        assert_eq!(fork.begin(0, 3, 128), 2048);
        fork.lower(0);
        assert_eq!(fork.begin(0, 4, 128), 1878);
    }

    #[test]
    fn saved_levels_continue() {
        let sizes = FirstSizes::new(2);
        sizes.begin(0, 7, 128);
        sizes.learn(0, 2048.0, 128);
        let restored = FirstSizes::restore(&sizes.save()).unwrap();
        assert_eq!([restored.begin(0, 8, 128), restored.begin(1, 8, 128)], [256, 128]);
        assert!(FirstSizes::restore(&[0, u64::from(MAX_LEVEL) + 1]).is_none());
        assert!(FirstSizes::restore(&[u64::MAX]).is_none());
    }
}
