//! Indexes that sequences with equal first rows share.

use pyo3::prelude::*;
use vattention::backends::{EngineHead, HeadRows, RowChecksums};

use super::batch::SequenceBatch;
use super::pool::Pool;
use super::sequences::Sequences;
use crate::error::{core, core_at};

/// A KV head of a new sequence, that of the sequence whose index it shares, and its rows.
struct SharedHead<'a> {
    kv_head: usize,
    head: &'a mut EngineHead,
    donor: &'a mut EngineHead,
    rows: &'a HeadRows<'a>,
}

impl Sequences {
    /// Gives each of the sequences `new`, which have no tokens, the index of the tokens that it has
    /// in common with another sequence.
    pub(super) fn share_indexes(
        &mut self,
        batch: &SequenceBatch,
        pool: &Pool<'_>,
        new: &[u32],
    ) -> PyResult<()> {
        for (&sequence, table) in batch.sequences.iter().zip(&batch.tables) {
            if !new.contains(&sequence) {
                continue;
            }
            let kv_heads = self.first_head().shape().kv_heads;
            let rows = (0..kv_heads).map(|kv_head| pool.head_rows(kv_head, table));
            let rows: Vec<HeadRows<'_>> = rows.collect::<Result<_, _>>().map_err(core)?;
            if let Some(donor) = self.find_donor(&rows[0]) {
                let mut heads = self.started.remove(&sequence).unwrap_or_default();
                let shared = self.share_with(sequence, &mut heads, donor, &rows);
                self.started.insert(sequence, heads);
                shared?;
            }
        }
        Ok(())
    }

    /// Finds the sequence that has the most tokens in common with the rows of the first KV head.
    fn find_donor(&self, rows: &HeadRows<'_>) -> Option<u32> {
        let checksums = RowChecksums::new(rows);
        let common = |heads: &[EngineHead]| {
            heads[0].checksums().map_or(0, |donor| donor.count_common_tokens(&checksums))
        };
        let counts = self.started.iter().map(|(&sequence, heads)| (common(heads), sequence));
        let (tokens, donor) = counts.max()?;
        (tokens > 0).then_some(donor)
    }

    /// Gives the KV heads of a sequence the index of the tokens in common with another one.
    fn share_with(
        &mut self,
        sequence: u32,
        heads: &mut [EngineHead],
        donor: u32,
        rows: &[HeadRows<'_>],
    ) -> PyResult<()> {
        let donors = self.started.get_mut(&donor).into_iter().flatten();
        let mut shared = Vec::new();
        for (kv_head, (head, donor)) in heads.iter_mut().zip(donors).enumerate() {
            shared.push(SharedHead { kv_head, head, donor, rows: &rows[kv_head] });
        }
        let share = |SharedHead { kv_head, head, donor, rows }: SharedHead<'_>| {
            let place = || format!("sequence {sequence}, KV head {kv_head}");
            head.share_index(donor, rows).map_err(|error| core_at(place(), error))
        };
        self.workers.map(shared, share).into_iter().collect::<PyResult<Vec<usize>>>().map(drop)
    }
}
