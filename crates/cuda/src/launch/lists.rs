//! Token lists on the device, one for each problem of a launch.

use vattention_core::{Error, Result};

use super::{Array, expect};
use crate::Device;

/// Token lists, each of which refers to the rows of one KV head.
#[derive(Debug)]
pub struct Lists<D: Device> {
    /// Tokens of all lists; if missing, each list is a prefix of its rows.
    pub(super) tokens: Option<Array<D, u32>>,
    /// Inclusion probability of each token; 1 if missing.
    pub(super) probabilities: Option<Array<D, f32>>,
    /// Index of each list's first token in `tokens`, `[lists]`.
    pub(super) starts: Array<D, u32>,
    /// Number of tokens of each list, `[lists]`.
    pub(super) lengths: Array<D, u32>,
    /// Number of rows that each list needs, `[lists]`.
    pub(super) rows: Vec<usize>,
    /// Upper bound on the length of the longest list.
    pub(super) longest: usize,
    /// Upper bound on the number of tokens of all lists.
    pub(super) total: usize,
}

impl<D: Device> Lists<D> {
    /// Creates list `i` from `indices[indptr[i]..indptr[i + 1]]`, with `probabilities` in (0, 1] of
    /// the same length as `indices`.
    ///
    /// # Errors
    /// If `indptr` is no partition of the indices, a probability is outside (0, 1], or there is no
    /// memory.
    pub fn new(
        device: &D,
        indptr: &[usize],
        indices: &[u32],
        probabilities: Option<&[f32]>,
    ) -> Result<Self> {
        let parts = indptr.first() == Some(&0)
            && indptr.last() == Some(&indices.len())
            && indptr.is_sorted();
        if !parts {
            let expected = format_args!("0 to {}, ascending", indices.len());
            return Err(Error::shape("indptr", expected, indptr));
        }
        if let Some(probabilities) = probabilities {
            expect("probabilities", indices.len(), probabilities.len())?;
            if let Some(p) = probabilities.iter().find(|&&p| !(p > 0.0 && p <= 1.0)) {
                return Err(Error::shape("a probability", "a number in (0, 1]", p));
            }
        }
        let lists = || indptr.windows(2).map(|ends| &indices[ends[0]..ends[1]]);
        let rows = |list: &[u32]| list.iter().max().map_or(0, |&last| last as usize + 1);
        let rows = lists().map(rows).collect();
        let lengths: Vec<usize> = lists().map(<[u32]>::len).collect();
        Ok(Self {
            tokens: Some(Array::new(device, indices)?),
            probabilities: probabilities.map(|p| Array::new(device, p)).transpose()?,
            rows,
            ..Self::beginnings(device, &lengths)?
        })
    }

    /// Allocates empty lists for `capacity` tokens each, all of them below `capacity`.
    ///
    /// # Errors
    /// If the capacities sum to 2³² or more, or there is no memory.
    pub fn room(device: &D, lists: usize, capacity: usize) -> Result<Self> {
        Self::room_of(device, Array::zeros(device, lists)?, capacity)
    }

    /// Allocates lists as [`room`](Self::room) does, whose lengths are in `lengths` `[lists]`.
    pub(crate) fn room_of(device: &D, lengths: Array<D, u32>, capacity: usize) -> Result<Self> {
        let full = Self::beginnings(device, &vec![capacity; lengths.len()])?;
        Ok(Self { tokens: Some(Array::zeros(device, full.total)?), lengths, ..full })
    }

    /// Creates list `i` as all tokens below `lengths[i]`.
    ///
    /// # Errors
    /// If the lengths sum to 2³² or more, or there is no memory.
    pub fn beginnings(device: &D, lengths: &[usize]) -> Result<Self> {
        let total = lengths.iter().copied().fold(0, usize::saturating_add);
        if u32::try_from(total).is_err() {
            return Err(Error::shape("tokens of all lists", "less than 2^32", total));
        }
        let numbers: Vec<u32> = lengths.iter().map(|&length| length as u32).collect();
        let next = |start: &mut u32, &length: &u32| Some(std::mem::replace(start, *start + length));
        let starts: Vec<u32> = numbers.iter().scan(0, next).collect();
        Ok(Self {
            tokens: None,
            probabilities: None,
            starts: Array::new(device, &starts)?,
            lengths: Array::new(device, &numbers)?,
            rows: lengths.to_vec(),
            longest: lengths.iter().copied().max().unwrap_or(0),
            total,
        })
    }

    /// Number of lists.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns true if there are no lists.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the tokens of each list, after all work started so far.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&self) -> Result<Vec<Vec<u32>>> {
        let tokens = self.tokens.as_ref().map(Array::read).transpose()?;
        let list = |(start, length): (u32, u32)| match &tokens {
            Some(tokens) => tokens[start as usize..][..length as usize].to_vec(),
            None => (0..length).collect(),
        };
        Ok(self.starts.read()?.into_iter().zip(self.lengths.read()?).map(list).collect())
    }

    /// Upper bound on the length of the longest list.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Upper bound on the number of tokens of all lists.
    pub fn total(&self) -> usize {
        self.total
    }
}
