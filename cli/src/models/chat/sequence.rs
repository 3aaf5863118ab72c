//! Token sequence of a conversation.

use indicatif::ProgressBar;
use vattention_llm::{PrefillOptions, PromptReader, Result as LlmResult, Session, Tokenizer};

use crate::outputs::Interrupt;
use crate::progress;

/// Number of tokens that are read between two checks for Ctrl-C.
const BLOCK: usize = 256;

/// Sequence of the tokens of a rendered conversation.
pub(super) struct ChatSequence<'m> {
    pub(super) session: Session<'m>,
    /// Tokens that the session has read.
    tokens: Vec<u32>,
    /// Tokens of the conversation that the session has not read, such as an answer's last token.
    unread: Vec<u32>,
    /// Text of `tokens` and `unread`.
    text: String,
}

impl<'m> ChatSequence<'m> {
    /// Returns an empty sequence.
    pub(super) fn new(session: Session<'m>) -> Self {
        Self { session, tokens: Vec::new(), unread: Vec::new(), text: String::new() }
    }

    /// Returns the tokens that the session must read to continue with a conversation; `None` if the
    /// conversation does not continue the sequence.
    ///
    /// The tokens of an answer can differ from those that the tokenizer makes of its text. In that
    /// case, the texts are compared.
    pub(super) fn find_new_tokens(
        &self,
        rendered: &str,
        tokenizer: &Tokenizer,
    ) -> LlmResult<Option<Vec<u32>>> {
        let tokens = tokenizer.next(rendered)?;
        let new = if let Some(new) = tokens.strip_prefix(self.tokens.as_slice()) {
            new.to_vec()
        } else if let Some(new) = rendered.strip_prefix(&self.text) {
            [self.unread.as_slice(), &tokenizer.next(new)?].concat()
        } else {
            Vec::new()
        };
        Ok(Some(new).filter(|new| !new.is_empty()))
    }

    /// Reads `new` tokens, which continue the sequence with a conversation: by dense attention if
    /// the sequence is empty, and otherwise by the pipeline. Returns the logits after the last
    /// token; `None` after Ctrl-C.
    pub(super) fn read(
        &mut self,
        rendered: String,
        new: Vec<u32>,
        interrupt: &Interrupt,
    ) -> LlmResult<Option<Vec<f32>>> {
        self.text = rendered;
        self.unread = new;
        let bar = progress::bar("tokens");
        let logits = if self.session.is_empty() {
            self.read_densely(interrupt, &bar)
        } else {
            self.read_by_pipeline(interrupt, &bar)
        };
        bar.finish_and_clear();
        logits
    }

    fn read_densely(
        &mut self,
        interrupt: &Interrupt,
        bar: &ProgressBar,
    ) -> LlmResult<Option<Vec<f32>>> {
        let model = self.session.model();
        let mut reader = PromptReader::new(model, &self.unread, PrefillOptions::default())?;
        while !reader.is_finished() {
            if interrupt.is_requested() {
                return Ok(None);
            }
            reader.read_block();
            progress::show(bar, reader.tokens_read(), self.unread.len());
        }
        let logits = self.session.begin(&reader.finish()?)?;
        self.tokens = std::mem::take(&mut self.unread);
        Ok(Some(logits))
    }

    fn read_by_pipeline(
        &mut self,
        interrupt: &Interrupt,
        bar: &ProgressBar,
    ) -> LlmResult<Option<Vec<f32>>> {
        let mut logits = Vec::new();
        let total = self.unread.len();
        while !self.unread.is_empty() {
            if interrupt.is_requested() {
                return Ok(None);
            }
            let block: Vec<u32> = self.unread.drain(..BLOCK.min(self.unread.len())).collect();
            logits = self.session.steps(logits, &block)?;
            self.tokens.extend(block);
            progress::show(bar, total - self.unread.len(), total);
        }
        Ok(Some(logits))
    }

    /// Adds the tokens and the text of an answer. The session has read all of these tokens, or all
    /// but the last ones.
    pub(super) fn end_answer(&mut self, generated: &[u32], text: &str) {
        let (read, unread) = generated.split_at(self.session.len() - self.tokens.len());
        self.tokens.extend(read);
        self.unread = unread.to_vec();
        self.text.push_str(text);
    }

    /// Tokens that the session has read.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Number of tokens of the conversation.
    pub(super) fn len(&self) -> usize {
        self.tokens.len() + self.unread.len()
    }
}
