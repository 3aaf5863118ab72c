//! The size of a sample at its first check, as the steps before needed it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Levels per doubling of a size.
const PER_DOUBLING: f64 = 8.0;

/// The largest level: 2¹⁶ times the base.
const MOST: u16 = 128;

/// First sizes of the lists of one KV head.
///
/// A size is a level: an eighth of a power of two above the base each. Levels are coarse, so that
/// backends whose radii differ in the last digits begin alike. A step begins with what the step
/// before it has left, and with the base if another came before: so the same step begins alike if
/// it is taken again.
#[derive(Debug)]
pub(crate) struct FirstSizes {
    /// Packed [`Learned`], `[lists]`. Atomic, because steps have only a shared reference to the
    /// pipeline.
    lists: Vec<AtomicU64>,
}

/// Levels of one list.
#[derive(Clone, Copy)]
struct Learned {
    /// Number of the last step.
    step: u32,
    /// Level at which it began.
    own: u16,
    /// Level at which the next one begins.
    next: u16,
}

impl Learned {
    fn unpack(bits: u64) -> Self {
        Self { step: (bits >> 32) as u32, own: (bits >> 16) as u16, next: bits as u16 }
    }

    fn pack(self) -> u64 {
        u64::from(self.step) << 32 | u64::from(self.own) << 16 | u64::from(self.next)
    }
}

impl FirstSizes {
    /// The base for each of `lists`.
    pub(crate) fn new(lists: usize) -> Self {
        // A step before step 0.
        let nothing = Learned { step: u32::MAX, own: 0, next: 0 };
        Self { lists: (0..lists).map(|_| AtomicU64::new(nothing.pack())).collect() }
    }

    /// The first size of a list at a step.
    pub(crate) fn begin(&self, list: usize, step: u32, base: usize) -> usize {
        let known = Learned::unpack(self.lists[list].load(Ordering::Relaxed));
        let own = match step {
            again if again == known.step => known.own,
            next if next == known.step.wrapping_add(1) => known.next,
            _ => 0,
        };
        let learned = Learned { step, own, next: own };
        self.lists[list].store(learned.pack(), Ordering::Relaxed);
        (base as f64 * (f64::from(own) / PER_DOUBLING).exp2()) as usize
    }

    /// Records that a list needed a size at the step that has begun: the next step begins half of
    /// the way up, or a level down.
    pub(crate) fn learn(&self, list: usize, needed: f64, base: usize) {
        let level = level(needed, base);
        self.update(list, |own| {
            if level > own { own + (level - own).div_ceil(2) } else { own - u16::from(level < own) }
        });
    }

    /// Records that a list asked for so large a sample that everything was read: the next step
    /// begins there.
    pub(crate) fn learn_excess(&self, list: usize, asked: usize, base: usize) {
        self.update(list, |own| level(asked as f64, base).max(own));
    }

    /// Records that everything was read without a sample: the next step begins a level down, so
    /// that a sample is tried again.
    pub(crate) fn forget(&self, list: usize) {
        self.update(list, |own| own.saturating_sub(1));
    }

    fn update(&self, list: usize, next: impl Fn(u16) -> u16) {
        let known = Learned::unpack(self.lists[list].load(Ordering::Relaxed));
        let learned = Learned { next: next(known.own), ..known };
        self.lists[list].store(learned.pack(), Ordering::Relaxed);
    }
}

/// The level of a size.
fn level(size: f64, base: usize) -> u16 {
    (PER_DOUBLING * (size / base as f64).log2()).ceil().clamp(0.0, f64::from(MOST)) as u16
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
    fn sizes_follow_the_need_and_depend_on_the_step_before_alone() {
        let sizes = FirstSizes::new(2);
        assert_eq!(sizes.begin(0, 0, 128), 128);
        sizes.learn(0, 512.0, 128);
        // Half of two doublings up.
        assert_eq!([sizes.begin(0, 1, 128), sizes.begin(1, 1, 128)], [256, 128]);
        sizes.learn(0, 100.0, 128);
        assert_eq!(sizes.begin(0, 1, 128), 256, "the same step begins alike");
        sizes.learn(0, 100.0, 128);
        let fork = sizes.clone();
        assert_eq!(sizes.begin(0, 2, 128), 234, "an eighth of a doubling down");
        assert_eq!(sizes.begin(0, 9, 128), 128, "nothing is known of step 8");
        assert_eq!(fork.begin(0, 2, 128), 234);
        fork.learn_excess(0, 2048, 128);
        assert_eq!(fork.begin(0, 3, 128), 2048);
        fork.forget(0);
        assert_eq!(fork.begin(0, 4, 128), 1878);
    }
}
