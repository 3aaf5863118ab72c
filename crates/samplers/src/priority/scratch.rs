//! Memory for numbers of tokens, which steps use again.
//!
//! A step needs some numbers for each visible token. Memory that the system gives afresh is cleared by it, page by page,
//! which takes longer than most of what is done with it.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// Buffers that a thread keeps: those of a KV head with eight query heads.
const KEPT: usize = 16;

thread_local! {
    static POOL: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// A number for each of some tokens.
#[derive(Debug)]
pub(super) struct Scratch(Vec<f32>);

impl Scratch {
    /// `len` numbers: whatever they were.
    pub(super) fn new(len: usize) -> Self {
        let mut numbers = POOL.with_borrow_mut(Vec::pop).unwrap_or_default();
        numbers.resize(len, 0.0);
        Self(numbers)
    }
}

impl From<Vec<f32>> for Scratch {
    fn from(numbers: Vec<f32>) -> Self {
        Self(numbers)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let numbers = std::mem::take(&mut self.0);
        POOL.with_borrow_mut(|pool| {
            if pool.len() < KEPT {
                pool.push(numbers);
            }
        });
    }
}

impl Deref for Scratch {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.0
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.0
    }
}
