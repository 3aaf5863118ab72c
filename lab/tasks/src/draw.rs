//! Random numbers that are the same on every machine.

use std::collections::BTreeSet;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::Task;

/// The random numbers of one text.
#[derive(Clone, Debug)]
pub(crate) struct SeededDraw(ChaCha8Rng);

impl SeededDraw {
    /// The key of the stream is (seed, tokens, name): no two texts share one.
    pub(crate) fn new(task: Task, tokens: usize, seed: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&(tokens as u64).to_le_bytes());
        key[16..16 + task.name().len()].copy_from_slice(task.name().as_bytes());
        Self(ChaCha8Rng::from_seed(key))
    }

    /// Random numbers of their own: what is drawn from them says nothing of what is drawn from these.
    pub(crate) fn apart(&mut self) -> Self {
        let mut key = [0; 32];
        self.0.fill_bytes(&mut key);
        Self(ChaCha8Rng::from_seed(key))
    }

    /// A number below `end`, which is at least 1; each with the same probability but for 2^-64 of
    /// `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.0.next_u64()) * end as u128) >> 64) as usize
    }

    /// 128 random bits.
    pub(crate) fn bits(&mut self) -> u128 {
        u128::from(self.0.next_u64()) << 64 | u128::from(self.0.next_u64())
    }

    /// One of some, which are not none.
    pub(crate) fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// All in random order.
    pub(crate) fn shuffle<T>(&mut self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            all.swap(last, self.below(last + 1));
        }
    }

    /// `count` different numbers below `end`, rising; all of them if there are fewer.
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

    /// `count` of some in random order; all of them if there are fewer.
    pub(crate) fn some<'a, T>(&mut self, count: usize, of: &'a [T]) -> Vec<&'a T> {
        let mut some: Vec<_> = self.places(count, of.len()).into_iter().map(|i| &of[i]).collect();
        self.shuffle(&mut some);
        some
    }

    /// `count` different texts of `make`, which must be able to make many more.
    pub(crate) fn different(
        &mut self,
        count: usize,
        mut make: impl FnMut(&mut Self) -> String,
    ) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let mut made = Vec::with_capacity(count);
        while made.len() < count {
            let text = make(self);
            if seen.insert(text.clone()) {
                made.push(text);
            }
        }
        made
    }

    /// Two lists as one, each in its order, every mixture with the same probability.
    pub(crate) fn merge<T>(&mut self, one: Vec<T>, other: Vec<T>) -> Vec<T> {
        let all = one.len() + other.len();
        let places = self.places(one.len(), all);
        let (mut one, mut other) = (one.into_iter(), other.into_iter());
        let next = |i| if places.contains(&i) { one.next() } else { other.next() };
        (0..all).filter_map(next).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Whether each of `outcomes` outcomes comes as often as any other, within 5 standard deviations.
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
    fn everything_has_the_same_probability() {
        assert_even(7, |draw| vec![draw.below(7)]);
        assert_even(6, |draw| {
            let mut all = vec![0, 1, 2];
            draw.shuffle(&mut all);
            all
        });
        assert_even(10, |draw| draw.places(2, 5).into_iter().collect());
        assert_even(12, |draw| draw.some(2, &[0, 1, 2, 3]).into_iter().copied().collect());
        assert_even(10, |draw| draw.merge(vec![1, 2], vec![3, 4, 5]));
    }

    #[test]
    fn no_more_are_drawn_than_there_are() {
        let mut draw = SeededDraw::new(Task::Vt, 0, 0);
        assert_eq!(draw.places(9, 3), BTreeSet::from([0, 1, 2]));
        assert_eq!(draw.some(9, &[5]), [&5]);
        assert_eq!(draw.merge(vec![], vec![1, 2]), [1, 2]);
    }
}
