//! KV heads of all sequences of one layer, and calls that concern several of them.

use std::collections::{BTreeMap, HashMap};

use numpy::ndarray::{ArrayView3, s};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use vattention::backends::{EngineHead, HeadRows, Workers};
use vattention::{Output, Shape, TokenClass};

use super::batch::SequenceBatch;
use super::pool::Pool;
use crate::error::{core, core_at};

/// KV heads of all sequences of one layer.
pub(super) struct Sequences {
    /// KV heads without tokens. New sequences are forks, which share what a pipeline has loaded.
    empty: Vec<EngineHead>,
    pub(super) started: BTreeMap<u32, Vec<EngineHead>>,
    pub(super) workers: Workers,
    /// True if new sequences take over the index of tokens that another sequence has too.
    share_index: bool,
}

/// A KV head of a sequence of a batch.
struct HeadCall<'a> {
    sequence: u32,
    /// Position of the sequence in the batch.
    place: usize,
    kv_head: usize,
    head: &'a mut EngineHead,
    rows: HeadRows<'a>,
}

impl Sequences {
    pub(super) fn new(empty: Vec<EngineHead>, workers: Workers, share_index: bool) -> Self {
        Self { empty, started: BTreeMap::new(), workers, share_index }
    }

    /// A KV head without tokens, for what is common to all.
    pub(super) fn first_head(&self) -> &EngineHead {
        &self.empty[0]
    }

    /// Number of tokens of each sequence.
    pub(super) fn lengths(&self) -> BTreeMap<u32, usize> {
        self.started.iter().map(|(&sequence, heads)| (sequence, heads[0].len())).collect()
    }

    /// Size of all indexes in bytes.
    pub(super) fn index_bytes(&self) -> usize {
        self.started.values().flatten().map(EngineHead::index_bytes).sum()
    }

    /// Indexes new rows, and starts sequences that are unknown. `classes` are those of the tokens
    /// of each sequence that were not appended before.
    pub(super) fn append(
        &mut self,
        batch: &SequenceBatch,
        pool: &Pool<'_>,
        classes: Option<&[Vec<TokenClass>]>,
    ) -> PyResult<()> {
        let mut new = batch.sequences.clone();
        new.retain(|sequence| !self.started.contains_key(sequence));
        for &sequence in &new {
            let heads = self.empty.iter_mut().map(|head| head.fork(Some(sequence)));
            self.started.insert(sequence, heads.collect());
        }
        let shared = if self.share_index { self.share_indexes(batch, pool, &new) } else { Ok(()) };
        let appended = shared.and_then(|()| self.append_rows(batch, pool, classes, &new));
        if appended.is_err() {
            self.started.retain(|sequence, _| !new.contains(sequence));
        }
        appended
    }

    fn append_rows(
        &mut self,
        batch: &SequenceBatch,
        pool: &Pool<'_>,
        classes: Option<&[Vec<TokenClass>]>,
        started: &[u32],
    ) -> PyResult<()> {
        let workers = self.workers.clone();
        let mut calls = self.calls(batch, pool)?;
        for call in &calls {
            let (length, least) = (call.rows.keys.len(), call.head.len());
            if length < least {
                return Err(call.wrong_length(batch, &format!("at least {least}"), length));
            }
        }
        let classes_of = |call: &HeadCall<'_>| {
            let is_new = started.contains(&call.sequence);
            let shared = if is_new { call.head.len() } else { 0 };
            classes.map(|all| all[call.place].get(shared..).unwrap_or_default())
        };
        let check = |call: &HeadCall<'_>| {
            let checked = call.head.check_append(&call.rows, classes_of(call));
            checked.map_err(|error| call.error(error))
        };
        workers.map(calls.iter().collect(), check).into_iter().collect::<PyResult<()>>()?;
        let append = |call: &mut HeadCall<'_>| {
            let appended = call.head.append_checked(&call.rows, classes_of(call));
            appended.map_err(|error| call.error(error))
        };
        workers.map(calls.iter_mut().collect(), append).into_iter().collect()
    }

    /// Shows the selectors the last queries of a prompt, `[query_heads, prompt, head_dim]`. The
    /// batch is one sequence.
    pub(super) fn observe(
        &mut self,
        batch: &SequenceBatch,
        pool: &Pool<'_>,
        queries: ArrayView3<'_, f32>,
    ) -> PyResult<()> {
        let workers = self.workers.clone();
        let mut calls = self.appended_calls(batch, pool)?;
        for call in &calls {
            let checked = call.head.check_observe(&call.rows, call.group(queries));
            checked.map_err(|error| call.error(error))?;
        }
        let observe = |call: &mut HeadCall<'_>| {
            let group = call.group(queries);
            call.head.observe(&call.rows, group).map_err(|error| call.error(error))
        };
        workers.map(calls.iter_mut().collect(), observe).into_iter().collect()
    }

    /// Computes a step of each sequence, for queries `[query_heads, sequences, head_dim]`. The
    /// output has the query of each sequence, in their order.
    pub(super) fn attend(
        &mut self,
        batch: &SequenceBatch,
        pool: &Pool<'_>,
        queries: ArrayView3<'_, f32>,
    ) -> PyResult<Output> {
        let Shape { query_heads, value_dim, .. } = self.first_head().shape();
        let count = batch.sequences.len();
        let workers = self.workers.clone();
        let calls = self.appended_calls(batch, pool)?;
        for call in &calls {
            let checked = call.head.check_attend(&call.rows, call.query(queries), None);
            checked.map_err(|error| call.error(error))?;
        }
        let attend = |call: HeadCall<'_>| {
            let query = call.query(queries);
            let output = call.head.attend(&call.rows, query, None);
            let output = output.map_err(|error| call.error(error))?;
            PyResult::Ok((call.place, call.heads(), output))
        };
        let mut joined = Output::zeros([query_heads, count, value_dim]);
        for output in workers.map(calls, attend) {
            let (place, heads, output) = output?;
            let places = s![heads.clone(), place..=place, ..];
            joined.out.slice_mut(places).assign(&output.out);
            let places = s![heads, place..=place];
            joined.log_denominator.slice_mut(places).assign(&output.log_denominator);
            joined.rows.extend(output.rows);
        }
        Ok(joined)
    }

    /// Removes all but the first tokens of each sequence, whose number is the length in the batch.
    pub(super) fn truncate(&mut self, batch: &SequenceBatch, pool: &Pool<'_>) -> PyResult<()> {
        let workers = self.workers.clone();
        let mut calls = self.calls(batch, pool)?;
        for call in &calls {
            let checked = call.head.check_truncate(&call.rows, call.rows.keys.len());
            checked.map_err(|error| call.error(error))?;
        }
        let truncate = |call: &mut HeadCall<'_>| {
            let tokens = call.rows.keys.len();
            call.head.truncate(&call.rows, tokens).map_err(|error| call.error(error))
        };
        workers.map(calls.iter_mut().collect(), truncate).into_iter().collect()
    }

    /// Starts a sequence that continues from the tokens and the step of another one.
    pub(super) fn fork(&mut self, sequence: u32, new: u32) -> PyResult<()> {
        if self.started.contains_key(&new) {
            return Err(PyValueError::new_err(format!(
                "new: expected a sequence that does not exist, got {new}; free it first"
            )));
        }
        let heads = self.started.get_mut(&sequence).ok_or_else(|| unknown(sequence))?;
        let fork = heads.iter_mut().map(|head| head.fork(Some(new))).collect();
        self.started.insert(new, fork);
        Ok(())
    }

    pub(super) fn free(&mut self, sequence: u32) -> PyResult<()> {
        self.started.remove(&sequence).map(drop).ok_or_else(|| unknown(sequence))
    }

    /// KV heads of a batch whose lengths are the numbers of appended tokens.
    fn appended_calls<'a>(
        &'a mut self,
        batch: &'a SequenceBatch,
        pool: &'a Pool<'_>,
    ) -> PyResult<Vec<HeadCall<'a>>> {
        let calls = self.calls(batch, pool)?;
        for call in &calls {
            let (length, appended) = (call.rows.keys.len(), call.head.len());
            if length != appended {
                return Err(call.wrong_length(batch, &appended.to_string(), length));
            }
        }
        Ok(calls)
    }

    /// KV heads of the sequences of a batch, in their order.
    fn calls<'a>(
        &'a mut self,
        batch: &'a SequenceBatch,
        pool: &'a Pool<'_>,
    ) -> PyResult<Vec<HeadCall<'a>>> {
        let mut heads: HashMap<u32, &mut Vec<EngineHead>> = HashMap::new();
        for (&sequence, found) in &mut self.started {
            heads.insert(sequence, found);
        }
        let mut calls = Vec::new();
        for (place, (&sequence, table)) in batch.sequences.iter().zip(&batch.tables).enumerate() {
            let heads = heads.remove(&sequence).ok_or_else(|| unknown(sequence))?;
            for (kv_head, head) in heads.iter_mut().enumerate() {
                let rows = pool.head_rows(kv_head, table).map_err(core)?;
                calls.push(HeadCall { sequence, place, kv_head, head, rows });
            }
        }
        Ok(calls)
    }
}

impl HeadCall<'_> {
    /// Query heads of the group.
    fn heads(&self) -> std::ops::Range<usize> {
        let group = self.head.shape().group();
        self.kv_head * group..(self.kv_head + 1) * group
    }

    /// Queries of the group, from those of all query heads.
    fn group<'q>(&self, queries: ArrayView3<'q, f32>) -> ArrayView3<'q, f32> {
        queries.slice_move(s![self.heads(), .., ..])
    }

    /// Query of the group, from those of all query heads and sequences.
    fn query<'q>(&self, queries: ArrayView3<'q, f32>) -> ArrayView3<'q, f32> {
        queries.slice_move(s![self.heads(), self.place..=self.place, ..])
    }

    fn error(&self, error: vattention::Error) -> PyErr {
        core_at(format!("sequence {}, KV head {}", self.sequence, self.kv_head), error)
    }

    fn wrong_length(&self, batch: &SequenceBatch, expected: &str, got: usize) -> PyErr {
        let (name, sequence) = (&batch.tables[self.place].length_name, self.sequence);
        PyValueError::new_err(format!(
            "{name}: expected {expected}, the tokens appended to sequence {sequence}, got {got}"
        ))
    }
}

fn unknown(sequence: u32) -> PyErr {
    PyValueError::new_err(format!(
        "sequence {sequence} is unknown: expected one that has been appended or forked, and not \
         freed"
    ))
}
