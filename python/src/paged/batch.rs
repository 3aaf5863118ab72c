//! Sequences of a call, and the blocks of the pool in which their rows are.

use std::collections::HashSet;

use numpy::ndarray::{Array1, Array2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use vattention::Shape;

use super::pool::Pool;
use super::table::BlockTable;
use crate::array::InputArray;

/// Sequences of a call, each once.
pub(super) struct SequenceBatch {
    pub(super) sequences: Vec<u32>,
    pub(super) tables: Vec<BlockTable>,
}

impl SequenceBatch {
    /// Reads `sequences` `[sequences]`, `block_tables` `[sequences, blocks]` and `lengths`
    /// `[sequences]`.
    pub(super) fn new(
        sequences: &Bound<'_, PyAny>,
        block_tables: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        pool: &Pool<'_>,
    ) -> PyResult<Self> {
        let sequences = parse_sequences(sequences)?;
        let numbers: Array2<i64> =
            InputArray::new("block_tables", block_tables)?.integers("[sequences, blocks]")?;
        let lengths: Array1<i64> = InputArray::new("lengths", lengths)?.integers("[sequences]")?;
        check_count("block_tables", numbers.nrows(), sequences.len())?;
        check_count("lengths", lengths.len(), sequences.len())?;
        let mut tables = Vec::new();
        for (i, &length) in lengths.iter().enumerate() {
            let names = [format!("block_tables[{i}]"), format!("lengths[{i}]")];
            tables.push(BlockTable::new(names, numbers.row(i), length, pool.size())?);
        }
        Ok(Self { sequences, tables })
    }

    /// Reads `block_table` `[blocks]` and `length` of one sequence.
    pub(super) fn single(
        sequence: u32,
        block_table: &Bound<'_, PyAny>,
        length: i64,
        pool: &Pool<'_>,
    ) -> PyResult<Self> {
        let table: Array1<i64> =
            InputArray::new("block_table", block_table)?.integers("[blocks]")?;
        let names = ["block_table".into(), "length".into()];
        let tables = vec![BlockTable::new(names, table.view(), length, pool.size())?];
        Ok(Self { sequences: vec![sequence], tables })
    }
}

/// Reads the numbers of sequences, each of which may occur once.
fn parse_sequences(sequences: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let numbers: Array1<i64> = InputArray::new("sequences", sequences)?.integers("[sequences]")?;
    let mut before = HashSet::new();
    let parse = |(i, &number): (usize, &i64)| {
        let sequence = u32::try_from(number).map_err(|_| {
            let most = u32::MAX;
            PyValueError::new_err(format!("sequences[{i}]: expected 0 to {most}, got {number}"))
        })?;
        if !before.insert(sequence) {
            return Err(PyValueError::new_err(format!(
                "sequences[{i}]: expected each sequence once, got {sequence} again"
            )));
        }
        Ok(sequence)
    };
    numbers.iter().enumerate().map(parse).collect()
}

/// Checks that there is one entry for each sequence.
pub(super) fn check_count(name: &str, got: usize, expected: usize) -> PyResult<()> {
    if got == expected {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("{name}: expected {expected}, one per sequence, got {got}")))
}

/// Checks the shape of queries: `count` of each query head.
pub(super) fn check_queries(got: &[usize], count: usize, shape: Shape) -> PyResult<()> {
    let expected = [shape.query_heads, count, shape.head_dim];
    if got == expected {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("queries: expected {expected:?}, got {got:?}")))
}
