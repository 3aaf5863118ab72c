//! How far the sample of each list is, on the device.

use vattention_core::Result;

use super::{Array, Lists};
use crate::Device;

/// How many numbers there are of each list.
const NUMBERS: usize = 7;

/// Of each list, a sample that grows part by part, in room for `capacity` tokens.
///
/// Draws, looks and budgets read and write it on the device.
#[derive(Clone, Debug)]
pub struct Progress<D: Device> {
    /// `[NUMBERS, lists]`: first and end, start and length of the part, done, budget, held.
    pub(super) numbers: Array<D, u32>,
    /// The tokens drawn, in draw order, `[lists, capacity]`.
    pub(super) tokens: Array<D, u32>,
    /// Where each list begins there: a multiple of the capacity.
    pub(super) starts: Array<D, u32>,
    lists: usize,
    capacity: usize,
}

/// What is known of the sample of one list when all is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progressed {
    /// Tokens drawn.
    pub drawn: usize,
    /// Tokens that the last look asked for.
    pub budget: usize,
    /// Whether the last look found enough of them, or all there are were drawn.
    pub held: bool,
}

impl<D: Device> Progress<D> {
    /// Nothing drawn.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(device: &D, lists: usize, capacity: usize) -> Result<Self> {
        Self::within(device, Array::zeros(device, Self::NUMBERS * lists)?, capacity)
    }

    /// How many numbers there are of each list.
    pub(crate) const NUMBERS: usize = NUMBERS;

    /// The same in `numbers`, `[NUMBERS, lists]`.
    pub(crate) fn within(device: &D, numbers: Array<D, u32>, capacity: usize) -> Result<Self> {
        let lists = numbers.len() / Self::NUMBERS;
        let starts: Vec<u32> = (0..lists).map(|list| (list * capacity) as u32).collect();
        Ok(Self {
            numbers,
            tokens: Array::zeros(device, lists * capacity)?,
            starts: Array::new(device, &starts)?,
            lists,
            capacity,
        })
    }

    /// How many lists.
    pub fn lists(&self) -> usize {
        self.lists
    }

    /// The most tokens of a sample that there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The place in the sample at which the part to be drawn begins, `[lists]`.
    pub(crate) fn first(&self) -> Array<D, u32> {
        self.number(0)
    }

    /// Where it ends, which is how many tokens there are when it has been drawn. Never more than
    /// there are to draw.
    pub(super) fn end(&self) -> Array<D, u32> {
        self.number(1)
    }

    /// Where that part begins among the tokens.
    pub(super) fn part_start(&self) -> Array<D, u32> {
        self.number(2)
    }

    /// How many tokens it has; 0 when all is done.
    pub(super) fn part_length(&self) -> Array<D, u32> {
        self.number(3)
    }

    /// Whether no part follows this one.
    pub(super) fn done(&self) -> Array<D, u32> {
        self.number(4)
    }

    fn number(&self, index: usize) -> Array<D, u32> {
        self.numbers.part(index * self.lists..(index + 1) * self.lists)
    }

    /// The part to be drawn, as lists.
    pub(crate) fn part(&self) -> Lists<D> {
        self.as_lists(self.part_start(), self.part_length())
    }

    /// Everything drawn so far, as lists.
    pub(crate) fn all(&self) -> Lists<D> {
        self.as_lists(self.starts.clone(), self.end())
    }

    fn as_lists(&self, starts: Array<D, u32>, lengths: Array<D, u32>) -> Lists<D> {
        Lists {
            tokens: Some(self.tokens.clone()),
            probabilities: None,
            starts,
            lengths,
            rows: vec![self.capacity; self.lists],
            longest: self.capacity,
            total: self.lists * self.capacity,
        }
    }

    /// The places of the part to be drawn, for tests of draws alone.
    ///
    /// # Errors
    /// If the device fails.
    pub fn set(&self, places: &[std::ops::Range<usize>]) -> Result<()> {
        let numbers = |of: &dyn Fn(usize) -> usize| -> Vec<u32> {
            (0..self.lists).map(|list| of(list) as u32).collect()
        };
        self.first().write(&numbers(&|list| places[list].start), 0)?;
        self.end().write(&numbers(&|list| places[list].end), 0)?;
        self.part_start().write(&numbers(&|list| list * self.capacity + places[list].start), 0)?;
        self.part_length().write(&numbers(&|list| places[list].len()), 0)
    }

    /// What has come of it, `[lists]`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&self) -> Result<Vec<Progressed>> {
        Ok(progressed(&self.numbers.read()?))
    }

    /// The tokens drawn of each list, in draw order.
    ///
    /// # Errors
    /// If the device fails.
    pub fn tokens(&self) -> Result<Vec<Vec<u32>>> {
        self.all().read()
    }
}

/// What has come of each list, from all numbers `[NUMBERS, lists]`.
pub(crate) fn progressed(numbers: &[u32]) -> Vec<Progressed> {
    let lists = numbers.len() / NUMBERS;
    let of = |index: usize, list: usize| numbers[index * lists + list] as usize;
    let list = |list| Progressed { drawn: of(1, list), budget: of(5, list), held: of(6, list) > 0 };
    (0..lists).map(list).collect()
}
