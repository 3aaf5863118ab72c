//! Text to tokens and back, as `tokenizer.json` or GGUF's metadata says.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tokenizers::{
    DecodeStream, DecoderWrapper, Encoding, ModelWrapper, NormalizerWrapper, PostProcessorWrapper,
    PreTokenizerWrapper, Token,
};

use vattention_core::PipelineConfig;

use crate::files::{is_gguf, read_text};
use crate::gguf::{self, Gguf};
use crate::{Classes, Config, Error, Result};

/// A model's tokenizer.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    path: PathBuf,
    inner: tokenizers::Tokenizer,
    /// Tokens that the tokenizer puts before every text, such as `<bos>`.
    before: Vec<u32>,
    /// Number of tokens in the model's vocabulary.
    vocab_size: usize,
    /// Once somebody has asked.
    classes: OnceLock<Classes>,
}

impl Tokenizer {
    /// Loads a model's tokenizer: of a GGUF file, what its metadata describes; of a directory,
    /// `tokenizer.json`. What that says of padding and of cutting texts
    /// short is left out: a text here is all of its tokens.
    ///
    /// # Errors
    /// [`Error::File`], or [`Error::Checkpoint`] if it is no tokenizer.
    pub fn open(path: &Path, config: &Config) -> Result<Self> {
        if is_gguf(path) {
            let inner = gguf::tokenizer::tokenizer(&Gguf::open(path)?.metadata);
            let inner = inner.map_err(|reason| Error::checkpoint(path, reason))?;
            return Self::from_parts(path, inner, config);
        }
        let path = path.join("tokenizer.json");
        let text = read_text(&path)?;
        let inner = tokenizers::Tokenizer::from_bytes(text)
            .map_err(|error| Error::checkpoint(&path, error.to_string()))?;
        Self::from_parts(&path, inner, config)
    }

    /// Takes a tokenizer that was read from a file.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if the tokenizer cannot be used.
    pub(crate) fn from_parts(
        path: &Path,
        mut inner: tokenizers::Tokenizer,
        config: &Config,
    ) -> Result<Self> {
        let refuse = |error: tokenizers::Error| Error::checkpoint(path, error.to_string());
        inner.with_padding(None).with_truncation(None).map_err(refuse)?;
        let before = tokens_before(&inner).map_err(refuse)?;
        let vocab_size = config.vocab_size;
        Ok(Self { path: path.into(), inner, before, vocab_size, classes: OnceLock::new() })
    }

    /// Tokens of a text at the beginning of a sequence, with those that the tokenizer puts before
    /// texts, such as `<bos>`; they are not repeated if the text begins with them. Tokens that the
    /// tokenizer puts after texts, such as `<eos>`, are left out, because the sequence continues.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if the tokenizer refuses the text, or returns a token that the model
    /// does not have.
    pub fn first(&self, text: &str) -> Result<Vec<u32>> {
        let tokens = self.next(text)?;
        if tokens.starts_with(&self.before) {
            return Ok(tokens);
        }
        self.check_known(&self.before)?;
        Ok([self.before.as_slice(), &tokens].concat())
    }

    /// The tokens of a text that goes on from another.
    ///
    /// # Errors
    /// As [`first`](Self::first).
    pub fn next(&self, text: &str) -> Result<Vec<u32>> {
        let encoded = self.inner.encode_fast(text, false).map_err(|error| self.refuse(&error))?;
        self.check_known(encoded.get_ids())?;
        Ok(encoded.get_ids().to_vec())
    }

    /// Refuses tokens that the model does not have. Tokenizers of some models have such tokens,
    /// which few texts contain.
    fn check_known(&self, tokens: &[u32]) -> Result<()> {
        let Some(&token) = tokens.iter().find(|&&token| token as usize >= self.vocab_size) else {
            return Ok(());
        };
        let text = self.inner.id_to_token(token).unwrap_or_default();
        let reason = format!(
            "the text has token {token} ({text:?}); expected tokens less than the model's \
             `vocab_size` = {}",
            self.vocab_size
        );
        Err(Error::checkpoint(&self.path, reason))
    }

    /// The text of tokens, without special ones.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if the tokenizer cannot decode them.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        self.inner.decode(tokens, true).map_err(|error| self.refuse(&error))
    }

    /// Every token of the model, with its text unless it is special.
    pub(crate) fn texts(&self) -> Result<Vec<(u32, Option<String>)>> {
        let added = self.inner.get_added_tokens_decoder();
        let text = |token: u32| {
            if added.get(&token).is_some_and(|added| added.special) {
                return Ok((token, None));
            }
            let text = self.inner.decode(&[token], false).map_err(|error| self.refuse(&error))?;
            Ok((token, Some(text)))
        };
        let known = |token: &u32| (*token as usize) < self.vocab_size;
        self.inner.get_vocab(true).into_values().filter(known).map(text).collect()
    }

    /// Decodes token by token.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream {
            tokenizer: self,
            inner: self.inner.decode_stream(true),
            tokens: Vec::new(),
            shown: String::new(),
        }
    }

    fn refuse(&self, error: &tokenizers::Error) -> Error {
        Error::checkpoint(&self.path, error.to_string())
    }

    /// The class of each token: special as the tokenizer says, such as `<bos>` and the marks of a chat template that are tokens of
    /// their own; punctuation if its text, but for white space around it, is of Unicode's punctuation (category P) alone.
    ///
    /// Cost: the first time it decodes the vocabulary, a token at a time.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn classes(&self) -> Result<Classes> {
        if let Some(classes) = self.classes.get() {
            return Ok(classes.clone());
        }
        let found = Classes::from_texts(self.texts()?);
        Ok(self.classes.get_or_init(|| found).clone())
    }

    /// The same, if a pipeline needs it.
    ///
    /// # Errors
    /// As there.
    pub fn classes_for(&self, pipeline: &PipelineConfig) -> Result<Option<Classes>> {
        pipeline.needs_classes().map(|_| self.classes()).transpose()
    }
}

/// Tokens that a tokenizer puts before a text, found by encoding a single token.
fn tokens_before(tokenizer: &tokenizers::Tokenizer) -> tokenizers::Result<Vec<u32>> {
    let text = Encoding::from_tokens(vec![Token::new(0, "a".into(), (0, 1))], 0);
    let around = tokenizer.post_process(text, None, true)?;
    let first = around.get_sequence_ids().iter().position(Option::is_some).unwrap_or(0);
    Ok(around.get_ids()[..first].to_vec())
}

/// The text of tokens that come one by one.
#[allow(missing_debug_implementations)]
pub struct TextStream<'t> {
    tokenizer: &'t Tokenizer,
    inner: DecodeStream<
        't,
        ModelWrapper,
        NormalizerWrapper,
        PreTokenizerWrapper,
        PostProcessorWrapper,
        DecoderWrapper,
    >,
    tokens: Vec<u32>,
    /// The text so far.
    shown: String,
}

impl TextStream<'_> {
    /// The text that a token completes: none while a character lacks bytes.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn push(&mut self, token: u32) -> Result<Option<String>> {
        self.tokens.push(token);
        let text = self.inner.step(token).map_err(|error| self.tokenizer.refuse(&error))?;
        self.shown.extend(text.as_deref());
        Ok(text)
    }

    /// Returns the rest of the text after the last token. If it ends inside a character, the
    /// incomplete character is U+FFFD, as in [`Tokenizer::decode`].
    ///
    /// # Errors
    /// Errors of [`Tokenizer::decode`].
    pub fn finish(&mut self) -> Result<Option<String>> {
        let whole = self.tokenizer.decode(&self.tokens)?;
        let rest = whole.strip_prefix(&self.shown).unwrap_or_default().to_owned();
        self.shown = whole;
        Ok(Some(rest).filter(|rest| !rest.is_empty()))
    }
}
