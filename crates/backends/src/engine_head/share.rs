//! Indexes that sequences with common tokens share.

use vattention_core::{Error, Result};

use super::EngineHead;
use crate::head_rows::HeadRows;
use crate::row_checksums::RowChecksums;

/// Number of new tokens from which on their index becomes a shared segment. The index of fewer
/// tokens is copied, because a scan of many short segments is slower than one of a long segment.
const SEGMENT: usize = 1024;

impl EngineHead {
    /// Checks that KV heads can [share](Self::share_index) the indexes.
    ///
    /// # Errors
    /// Returns [`Error::NoSharing`] with the name of a selector or sampler whose index serves one
    /// sequence only, and the reason.
    pub fn check_shareable(&self) -> Result<()> {
        self.pipeline.check_shareable()
    }

    /// Checksums of the indexed rows, by which an engine finds a donor of an index. They are
    /// computed if the indexes can be shared.
    pub fn checksums(&self) -> Option<&RowChecksums> {
        self.checksums.as_ref()
    }

    /// Takes over the index of the tokens that this KV head, which has no tokens yet, has in common
    /// with `donor`, and returns their number. [`append`](Self::append) continues behind them, and
    /// all results are those of a KV head that has indexed every token itself.
    ///
    /// `rows` are those of the new sequence, at least of its first tokens. The common tokens are
    /// the longest prefix, in whole blocks of 64 tokens, whose rows equal those that the donor has
    /// indexed, by [checksums](RowChecksums): the donor's rows may have been overwritten, and its
    /// tokens may have been truncated. The donor may continue, be truncated or dropped afterwards.
    ///
    /// Cost: a pass over the common rows. The index itself is shared, except that of fewer than
    /// 1024 tokens, and a few bytes per token (the norms and factors of `priority`), which are
    /// copied. A shared segment is freed with the last KV head that uses a part of it.
    ///
    /// # Errors
    /// Returns the error of [`check_shareable`](Self::check_shareable), and an error if this KV
    /// head has tokens, if the donor belongs to another layer or KV head or was created from
    /// another [`PipelineConfig`](vattention_core::PipelineConfig), and for rows of a wrong shape;
    /// then nothing has changed.
    pub fn share_index(&mut self, donor: &mut Self, rows: &HeadRows<'_>) -> Result<usize> {
        self.check_not_lost()?;
        donor.check_not_lost()?;
        rows.check(self.shape())?;
        if self.tokens > 0 {
            return Err(Error::shape("tokens", "0 before an index is shared", self.tokens));
        }
        let common = donor.checksums().map(|checksums| checksums.match_rows(rows));
        let common = common.unwrap_or_default();
        donor.share_newest();
        let tokens = common.tokens();
        self.lost = true;
        let taken = self.pipeline.take_indexes(&donor.pipeline, &rows.keys.range(0..tokens));
        self.lost = false;
        taken?;
        self.shared = donor.shared.min(tokens);
        self.checksums = Some(common);
        self.tokens = tokens;
        Ok(tokens)
    }

    /// Moves the index of the newest tokens to memory that later clones share, if it is large.
    pub(super) fn share_newest(&mut self) {
        if self.tokens - self.shared >= SEGMENT {
            self.lost = true;
            self.pipeline.share();
            self.lost = false;
            self.shared = self.tokens;
        }
    }
}
