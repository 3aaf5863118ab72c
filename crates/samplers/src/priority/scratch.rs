//! Buffers with one number for each visible token, which a thread reuses between steps.
//!
//! The operating system clears newly allocated memory page by page, which takes longer than most of
//! the computations in these buffers.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::thread::LocalKey;

/// Largest number of buffers of one type in a thread's pool, enough for eight query heads.
const CAPACITY: usize = 16;

type BufferPool<T> = RefCell<Vec<Vec<T>>>;

/// A number type that has a pool of buffers in each thread.
pub(super) trait Pooled: Copy + Default + 'static {
    fn pool() -> &'static LocalKey<BufferPool<Self>>;
}

thread_local! {
    static FLOATS: BufferPool<f32> = const { RefCell::new(Vec::new()) };
    static LEVELS: BufferPool<i16> = const { RefCell::new(Vec::new()) };
}

impl Pooled for f32 {
    fn pool() -> &'static LocalKey<BufferPool<Self>> {
        &FLOATS
    }
}

impl Pooled for i16 {
    fn pool() -> &'static LocalKey<BufferPool<Self>> {
        &LEVELS
    }
}

/// A buffer that returns to its thread's pool when dropped.
#[derive(Debug)]
pub(super) struct Scratch<T: Pooled>(Vec<T>);

impl<T: Pooled> Scratch<T> {
    /// Takes a buffer of `len` numbers, whose values are unspecified.
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
            if pool.len() < CAPACITY {
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
