//! Prompts that are read block by block, with other work in between.

use super::block::BlockRunner;
use super::shared::PromptBlock;
use super::tail::PromptTail;
use super::{LayerPrompt, PrefillOptions, Prefilled, check_finite};
use crate::{Model, Result, TokenLogprob, score_token};

/// Maximum number of tokens whose logits are computed together, which bounds memory.
const SCORED_TOGETHER: usize = 64;

/// Prompt that is read block by block through all layers. The results are bitwise equal to those of
/// [`Model::prefill`], which reads the prompt layer by layer.
///
/// Memory holds the keys and values of all layers in f32.
#[allow(missing_debug_implementations)]
pub struct PromptReader<'m> {
    model: &'m Model,
    block: usize,
    prompt: Prefilled,
    /// Number of tokens that were read or copied.
    read: usize,
    /// Output of the last layer for the block that was read last, `[tokens, hidden_size]`.
    x: Vec<f32>,
    runner: BlockRunner,
}

impl<'m> PromptReader<'m> {
    /// Creates the reader of a prompt, before its first block.
    ///
    /// # Errors
    /// [`Error::Input`](crate::Error::Input) if `tokens` is empty, contains tokens that the model
    /// does not have, or exceeds the model's context.
    pub fn new(model: &'m Model, tokens: &[u32], options: PrefillOptions) -> Result<Self> {
        model.check_prompt(tokens)?;
        let config = model.config();
        let layer = |number| LayerPrompt::new(config, number, tokens.len(), options.observed);
        let layers = (0..config.layers).map(layer).collect();
        Ok(Self {
            model,
            block: options.block.max(1),
            prompt: Prefilled { tokens: tokens.to_vec(), layers, logits: Vec::new() },
            read: 0,
            x: Vec::new(),
            runner: BlockRunner::new(options.strategy),
        })
    }

    /// Number of tokens that were read or copied so far.
    pub fn tokens_read(&self) -> usize {
        self.read
    }

    /// Returns true if all tokens were read.
    pub fn is_finished(&self) -> bool {
        self.read == self.prompt.tokens.len()
    }

    /// Number of whole blocks that may be copied instead of read: the blocks before the last token
    /// and before the tokens whose queries are observed.
    pub fn sharable_blocks(&self) -> usize {
        self.prompt.sharable_blocks(self.block)
    }

    /// Tokens of the prompt, including those that are still to be read.
    pub fn tokens(&self) -> &[u32] {
        &self.prompt.tokens
    }

    /// Tokens of block `i`.
    pub fn block_tokens(&self, i: usize) -> &[u32] {
        let first = i * self.block;
        &self.prompt.tokens[first..(first + self.block).min(self.prompt.tokens.len())]
    }

    /// Reads the next block through all layers.
    ///
    /// # Panics
    /// Panics if all tokens were read.
    pub fn read_block(&mut self) {
        assert!(!self.is_finished(), "the prompt is read");
        let first = self.read;
        let end = (first + self.block).min(self.prompt.tokens.len());
        self.x = self.model.embed(&self.prompt.tokens[first..end]);
        let tables = self.model.tables(first..end);
        for (layer, prompt) in self.model.layers.iter().zip(&mut self.prompt.layers) {
            self.runner.run(layer, &mut self.x, &tables, (first, 0), prompt);
        }
        self.read = end;
    }

    /// Copies the next block from an earlier prompt with the same tokens so far, instead of reading
    /// it.
    ///
    /// # Panics
    /// Panics if the block is of another model, or not [sharable](Self::sharable_blocks).
    pub fn copy_block(&mut self, block: &PromptBlock) {
        assert!(self.read / self.block < self.sharable_blocks(), "a block that must be read");
        let end = self.read + self.block;
        block.paste(&mut self.prompt.layers, self.read..end);
        self.read = end;
    }

    /// Copies the rest of the same prompt, which completes this one without reading a token.
    ///
    /// # Panics
    /// Panics if the [sharable blocks](Self::sharable_blocks) have not been copied, or the tail is
    /// of another prompt.
    pub fn copy_tail(&mut self, tail: &PromptTail) {
        assert_eq!(self.read, self.sharable_blocks() * self.block, "tokens before the tail");
        tail.paste(&mut self.prompt);
        self.read = self.prompt.tokens.len();
    }

    /// Copies block `i`, which was read or copied, for later prompts.
    ///
    /// # Panics
    /// Panics if the block is incomplete.
    pub fn block(&self, i: usize) -> PromptBlock {
        let (first, end) = (i * self.block, (i + 1) * self.block);
        assert!(end <= self.read, "an incomplete block");
        PromptBlock::copy(&self.prompt.layers, first..end, i)
    }

    /// Scores the next token of each position of the block that was read last, with the `top` most
    /// likely tokens of the position. The last position of the prompt has no next token and no
    /// score.
    ///
    /// # Errors
    /// [`Error::Input`](crate::Error::Input) if logits are not finite.
    pub fn score_next_tokens(&self, top: usize) -> Result<Vec<TokenLogprob>> {
        let hidden = self.model.config().hidden_size;
        let first = self.read - self.x.len() / hidden;
        let targets = &self.prompt.tokens[first + 1..(self.read + 1).min(self.prompt.tokens.len())];
        let rows = self.x.chunks(SCORED_TOGETHER * hidden);
        let mut scores = Vec::with_capacity(targets.len());
        for (rows, targets) in rows.zip(targets.chunks(SCORED_TOGETHER)) {
            let logits = check_finite(self.model.logits(&rows[..targets.len() * hidden]))?;
            let positions = logits.chunks_exact(self.model.config().vocab_size);
            let scored = positions.zip(targets);
            scores.extend(scored.map(|(logits, &target)| score_token(logits, target, top)));
        }
        Ok(scores)
    }

    /// Returns the prompt with the logits after its last token.
    ///
    /// # Errors
    /// [`Error::Input`](crate::Error::Input) if logits are not finite.
    ///
    /// # Panics
    /// Panics if a token was not read.
    pub fn finish(mut self) -> Result<Prefilled> {
        assert!(self.is_finished(), "a prompt that is not read");
        // A copied tail has the logits.
        if self.prompt.logits.is_empty() {
            let last = self.x.len() - self.model.config().hidden_size;
            self.prompt.logits = check_finite(self.model.logits(&self.x[last..]))?;
        }
        Ok(self.prompt)
    }
}
