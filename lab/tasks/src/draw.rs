//! Random numbers that are equal on every machine.

use std::collections::BTreeSet;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::Task;

/// Random numbers of one text.
#[derive(Clone, Debug)]
pub(crate) struct SeededDraw(ChaCha8Rng);

impl SeededDraw {
    /// Creates the stream with the key (seed, tokens, name), so that no two texts share a stream.
    pub(crate) fn new(task: Task, tokens: usize, seed: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&(tokens as u64).to_le_bytes());
        key[16..16 + task.name().len()].copy_from_slice(task.name().as_bytes());
        Self(ChaCha8Rng::from_seed(key))
    }

    /// Returns an independent stream: its numbers reveal nothing about later numbers of this one.
    pub(crate) fn fork(&mut self) -> Self {
        let mut key = [0; 32];
        self.0.fill_bytes(&mut key);
        Self(ChaCha8Rng::from_seed(key))
    }

    /// Draws a number below `end`, which must be at least 1; probabilities differ from `1 / end` by
    /// less than 2^-64.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.0.next_u64()) * end as u128) >> 64) as usize
    }

    /// Draws 128 random bits.
    pub(crate) fn bits(&mut self) -> u128 {
        u128::from(self.0.next_u64()) << 64 | u128::from(self.0.next_u64())
    }

    /// Draws one of some items; there must be at least one.
    pub(crate) fn choose<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// Shuffles items into random order.
    pub(crate) fn shuffle<T>(&mut self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            all.swap(last, self.below(last + 1));
        }
    }

    /// Draws `count` different numbers below `end`, in ascending order; all of them if there are
    /// fewer.
    pub(crate) fn places(&mut self, count: usize, end: usize) -> BTreeSet<usize> {
        let mut places = BTreeSet::new();
        for last in end - count.min(end)..end {
            let place = self.below(last + 1);
            if !places.insert(place) {
                places.insert(last);
            }
        }
        places
    }

    /// Draws `count` of some items in random order; all of them if there are fewer.
    pub(crate) fn sample<'a, T>(&mut self, count: usize, items: &'a [T]) -> Vec<&'a T> {
        let places = self.places(count, items.len());
        let mut sampled: Vec<_> = places.into_iter().map(|i| &items[i]).collect();
        self.shuffle(&mut sampled);
        sampled
    }

    /// Draws `count` different texts with `make`, which must be able to make many more.
    pub(crate) fn different(
        &mut self,
        count: usize,
        mut make: impl FnMut(&mut Self) -> String,
    ) -> Vec<String> {
        let mut distinct = BTreeSet::new();
        let mut texts = Vec::with_capacity(count);
        while texts.len() < count {
            let text = make(self);
            if distinct.insert(text.clone()) {
                texts.push(text);
            }
        }
        texts
    }

    /// Merges two lists, each in its order; every mixture has the same probability.
    pub(crate) fn merge<T>(&mut self, first: Vec<T>, second: Vec<T>) -> Vec<T> {
        let all = first.len() + second.len();
        let places = self.places(first.len(), all);
        let (mut first, mut second) = (first.into_iter(), second.into_iter());
        let next = |i| if places.contains(&i) { first.next() } else { second.next() };
        (0..all).filter_map(next).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Checks that each of `outcomes` outcomes is equally frequent, within 5 standard deviations.
    fn assert_even(outcomes: usize, mut make: impl FnMut(&mut SeededDraw) -> Vec<usize>) {
        let mut draw = SeededDraw::new(Task::Vt, 0, 0);
        let mut counts = BTreeMap::<_, f64>::new();
        for _ in 0..1000 * outcomes {
            *counts.entry(make(&mut draw)).or_default() += 1.0;
        }
        assert_eq!(counts.len(), outcomes, "{counts:?}");
        assert!(counts.values().all(|count| (count - 1000.0).abs() < 160.0), "{counts:?}");
    }

    #[test]
    fn draws_are_uniform() {
        assert_even(7, |draw| vec![draw.below(7)]);
        assert_even(6, |draw| {
            let mut all = vec![0, 1, 2];
            draw.shuffle(&mut all);
            all
        });
        assert_even(10, |draw| draw.places(2, 5).into_iter().collect());
        assert_even(12, |draw| draw.sample(2, &[0, 1, 2, 3]).into_iter().copied().collect());
        assert_even(10, |draw| draw.merge(vec![1, 2], vec![3, 4, 5]));
    }

    #[test]
    fn draws_are_limited_by_the_items() {
        let mut draw = SeededDraw::new(Task::Vt, 0, 0);
        assert_eq!(draw.places(9, 3), BTreeSet::from([0, 1, 2]));
        assert_eq!(draw.sample(9, &[5]), [&5]);
        assert_eq!(draw.merge(vec![], vec![1, 2]), [1, 2]);
    }
}
