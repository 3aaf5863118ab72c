//! Buffers with a number for each token, which a thread reuses between steps.
//!
//! Allocators return large blocks to the operating system, which clears new memory page by page.
//! This takes longer than most of the computations in these buffers.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::thread::LocalKey;

/// Largest number of buffers of one type in a thread's pool, enough for eight query heads.
const CAPACITY: usize = 32;

/// Buffers that are not in use.
pub type BufferPool<T> = RefCell<Vec<Vec<T>>>;

/// A number type that has a pool of buffers in each thread.
pub trait Pooled: Copy + Default + 'static {
    /// Buffers of this thread that are not in use.
    fn pool() -> &'static LocalKey<BufferPool<Self>>;
}

thread_local! {
    static FLOATS: BufferPool<f32> = const { RefCell::new(Vec::new()) };
    static DOUBLES: BufferPool<f64> = const { RefCell::new(Vec::new()) };
    static LEVELS: BufferPool<i16> = const { RefCell::new(Vec::new()) };
}

impl Pooled for f32 {
    fn pool() -> &'static LocalKey<BufferPool<Self>> {
        &FLOATS
    }
}

impl Pooled for f64 {
    fn pool() -> &'static LocalKey<BufferPool<Self>> {
        &DOUBLES
    }
}

impl Pooled for i16 {
    fn pool() -> &'static LocalKey<BufferPool<Self>> {
        &LEVELS
    }
}

/// A buffer that returns to its thread's pool when dropped.
#[derive(Clone, Debug)]
pub struct Scratch<T: Pooled> {
    /// At least `len` numbers: a buffer does not shrink, so that it need not be filled again.
    numbers: Vec<T>,
    len: usize,
}

impl<T: Pooled> Scratch<T> {
    /// Takes a buffer of `len` numbers, whose values are unspecified.
    pub fn new(len: usize) -> Self {
        let mut numbers = T::pool().with_borrow_mut(Vec::pop).unwrap_or_default();
        if numbers.len() < len {
            numbers.resize(len, T::default());
        }
        Self { numbers, len }
    }
}

impl<T: Pooled> From<Vec<T>> for Scratch<T> {
    fn from(numbers: Vec<T>) -> Self {
        let len = numbers.len();
        Self { numbers, len }
    }
}

impl<T: Pooled> Drop for Scratch<T> {
    fn drop(&mut self) {
        let numbers = std::mem::take(&mut self.numbers);
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
        &self.numbers[..self.len]
    }
}

impl<T: Pooled> DerefMut for Scratch<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.numbers[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_reused_at_any_length() {
        let mut long = Scratch::<f64>::new(100);
        long.fill(1.0);
        drop(long);
        let mut short = Scratch::<f64>::new(3);
        assert_eq!((short.len(), short.numbers.len()), (3, 100));
        short.fill(2.0);
        assert_eq!(*short.clone(), [2.0; 3]);
        drop(short);
        assert_eq!(Scratch::<f64>::new(101).len(), 101);
    }
}
