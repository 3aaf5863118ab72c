//! Memory for numbers of tokens, which steps use again.
//!
//! A step needs some numbers for each visible token. The system clears fresh memory page by page,
//! which takes longer than most of what is done with it.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::thread::LocalKey;

/// Buffers of one type that a thread keeps: those of a KV head with eight query heads.
const KEPT: usize = 16;

type Pool<T> = RefCell<Vec<Vec<T>>>;

/// A number type with memory that a thread keeps.
pub(super) trait Pooled: Copy + Default + 'static {
    fn pool() -> &'static LocalKey<Pool<Self>>;
}

thread_local! {
    static FLOATS: Pool<f32> = const { RefCell::new(Vec::new()) };
    static LEVELS: Pool<i16> = const { RefCell::new(Vec::new()) };
}

impl Pooled for f32 {
    fn pool() -> &'static LocalKey<Pool<Self>> {
        &FLOATS
    }
}

impl Pooled for i16 {
    fn pool() -> &'static LocalKey<Pool<Self>> {
        &LEVELS
    }
}

/// A number for each of some tokens.
#[derive(Debug)]
pub(super) struct Scratch<T: Pooled>(Vec<T>);

impl<T: Pooled> Scratch<T> {
    /// `len` numbers of any value.
    pub(super) fn new(len: usize) -> Self {
        let mut numbers = T::pool().with_borrow_mut(Vec::pop).unwrap_or_default();
        numbers.resize(len, T::default());
        Self(numbers)
    }
}

impl<T: Pooled> From<Vec<T>> for Scratch<T> {
    fn from(numbers: Vec<T>) -> Self {
        Self(numbers)
    }
}

impl<T: Pooled> Drop for Scratch<T> {
    fn drop(&mut self) {
        let numbers = std::mem::take(&mut self.0);
        T::pool().with_borrow_mut(|pool| {
            if pool.len() < KEPT {
                pool.push(numbers);
            }
        });
    }
}

impl<T: Pooled> Deref for Scratch<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Pooled> DerefMut for Scratch<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}
