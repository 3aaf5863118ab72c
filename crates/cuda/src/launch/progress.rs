//! Progress of the sample of each list, on the device.

use vattention_core::Result;

use super::{Array, Lists};
use crate::Device;

/// Number of counters of each list.
const NUMBERS: usize = 7;

/// Samples of lists, which grow part by part, with memory for `capacity` tokens each.
///
/// The kernels that draw and check samples read and write them on the device.
#[derive(Clone, Debug)]
pub struct Progress<D: Device> {
    /// `[NUMBERS, lists]`: first and end of the part, its start in `tokens`, its length, done,
    /// budget, held.
    pub(super) numbers: Array<D, u32>,
    /// Drawn tokens, in draw order, `[lists, capacity]`.
    pub(super) tokens: Array<D, u32>,
    /// Start of each list in `tokens`, a multiple of the capacity.
    pub(super) starts: Array<D, u32>,
    lists: usize,
    capacity: usize,
}

/// State of the sample of one list after the last check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleState {
    /// Number of drawn tokens.
    pub drawn: usize,
    /// Budget that the last check computed.
    pub budget: usize,
    /// True if the last check found the sample large enough, or all tokens were drawn.
    pub held: bool,
}

impl<D: Device> Progress<D> {
    /// Allocates empty samples.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(device: &D, lists: usize, capacity: usize) -> Result<Self> {
        Self::within(device, Array::zeros(device, Self::NUMBERS * lists)?, capacity)
    }

    /// Number of counters of each list.
    pub(crate) const NUMBERS: usize = NUMBERS;

    /// Creates samples whose counters are `numbers`, `[NUMBERS, lists]`.
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

    /// Number of lists.
    pub fn lists(&self) -> usize {
        self.lists
    }

    /// Largest sample for which there is memory.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Place in the sample at which the part to be drawn begins, `[lists]`.
    pub(crate) fn first(&self) -> Array<D, u32> {
        self.number(0)
    }

    /// End of that part, the size of the sample once the part has been drawn. It never exceeds the
    /// number of untaken tokens.
    pub(super) fn end(&self) -> Array<D, u32> {
        self.number(1)
    }

    /// Index of the part's first token in `tokens`.
    pub(super) fn part_start(&self) -> Array<D, u32> {
        self.number(2)
    }

    /// Number of tokens of the part; 0 once the sample is finished.
    pub(super) fn part_length(&self) -> Array<D, u32> {
        self.number(3)
    }

    /// Flag that is set if no part follows this one.
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

    /// Sets the places of the part to be drawn, for tests that only draw.
    ///
    /// # Errors
    /// If the device fails.
    pub fn set(&self, places: &[std::ops::Range<usize>]) -> Result<()> {
        let numbers = |number: &dyn Fn(usize) -> usize| -> Vec<u32> {
            (0..self.lists).map(|list| number(list) as u32).collect()
        };
        self.first().write(&numbers(&|list| places[list].start), 0)?;
        self.end().write(&numbers(&|list| places[list].end), 0)?;
        self.part_start().write(&numbers(&|list| list * self.capacity + places[list].start), 0)?;
        self.part_length().write(&numbers(&|list| places[list].len()), 0)
    }

    /// Returns the state of each sample, `[lists]`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&self) -> Result<Vec<SampleState>> {
        Ok(read_sample_states(&self.numbers.read()?))
    }

    /// Returns the drawn tokens of each list, in draw order.
    ///
    /// # Errors
    /// If the device fails.
    pub fn tokens(&self) -> Result<Vec<Vec<u32>>> {
        self.all().read()
    }
}

/// Extracts the state of each list from all counters, `[NUMBERS, lists]`.
pub(crate) fn read_sample_states(numbers: &[u32]) -> Vec<SampleState> {
    let lists = numbers.len() / NUMBERS;
    let number = |index: usize, list: usize| numbers[index * lists + list] as usize;
    let state = |list| SampleState {
        drawn: number(1, list),
        budget: number(5, list),
        held: number(6, list) > 0,
    };
    (0..lists).map(state).collect()
}
