//! Text to tokens and back, as `tokenizer.json` or GGUF's metadata says.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tokenizers::{
    DecodeStream, DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper,
    PreTokenizerWrapper,
};

use crate::gguf::{self, Gguf};
use crate::{Classes, Config, Error, Result};

/// A model's tokenizer.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    path: PathBuf,
    inner: tokenizers::Tokenizer,
    /// Once somebody has asked.
    pub(crate) classes: OnceLock<Classes>,
}

impl Tokenizer {
    /// Loads a model's tokenizer: of a GGUF file, what its metadata describes; of a directory,
    /// `tokenizer.json`. What that says of padding and of cutting texts
    /// short is left out: a text here is all of its tokens.
    ///
    /// # Errors
    /// [`Error::File`], or [`Error::Checkpoint`] if it is no tokenizer, or is another model's:
    /// one with tokens that the model does not have.
    pub fn open(path: &Path, config: &Config) -> Result<Self> {
        if gguf::is_one(path) {
            let inner = gguf::tokenizer::tokenizer(&Gguf::open(path)?.metadata);
            let inner = inner.map_err(|reason| Error::checkpoint(path, reason))?;
            return Self::from_parts(path, inner, config);
        }
        let path = path.join("tokenizer.json");
        let bytes = std::fs::read(&path).map_err(|source| Error::file(&path, source))?;
        let inner = tokenizers::Tokenizer::from_bytes(bytes)
            .map_err(|error| Error::checkpoint(&path, error.to_string()))?;
        Self::from_parts(&path, inner, config)
    }

    /// Takes a tokenizer that was read from a file.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if it has tokens that the model does not have.
    pub(crate) fn from_parts(
        path: &Path,
        mut inner: tokenizers::Tokenizer,
        config: &Config,
    ) -> Result<Self> {
        let refuse = |error: tokenizers::Error| Error::checkpoint(path, error.to_string());
        inner.with_padding(None).with_truncation(None).map_err(refuse)?;
        let beyond = inner.get_vocab(true).into_iter();
        let beyond = beyond.filter(|&(_, token)| token as usize >= config.vocab_size);
        if let Some((text, token)) = beyond.max_by_key(|&(_, token)| token) {
            let reason = format!(
                "token {token} ({text:?}); expected less than the model's `vocab_size` = {}",
                config.vocab_size
            );
            return Err(Error::checkpoint(path, reason));
        }
        Ok(Self { path: path.into(), inner, classes: OnceLock::new() })
    }

    /// The tokens at the beginning of a sequence: with those that the tokenizer puts around texts,
    /// such as `<bos>`.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if the tokenizer cannot take the text.
    pub fn first(&self, text: &str) -> Result<Vec<u32>> {
        self.encode(text, true)
    }

    /// The tokens of a text that goes on from another.
    ///
    /// # Errors
    /// As [`first`](Self::first).
    pub fn next(&self, text: &str) -> Result<Vec<u32>> {
        self.encode(text, false)
    }

    fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        let encoded = self.inner.encode_fast(text, special).map_err(|error| self.refuse(&error))?;
        Ok(encoded.get_ids().to_vec())
    }

    /// The text of tokens, without special ones.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if the tokenizer cannot decode them.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        self.inner.decode(tokens, true).map_err(|error| self.refuse(&error))
    }

    /// Every token, with its text unless it is special.
    pub(crate) fn texts(&self) -> Result<Vec<(u32, Option<String>)>> {
        let added = self.inner.get_added_tokens_decoder();
        let text = |token: u32| {
            if added.get(&token).is_some_and(|added| added.special) {
                return Ok((token, None));
            }
            let text = self.inner.decode(&[token], false).map_err(|error| self.refuse(&error))?;
            Ok((token, Some(text)))
        };
        self.inner.get_vocab(true).into_values().map(text).collect()
    }

    /// Decodes token by token.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream { tokenizer: self, inner: self.inner.decode_stream(true) }
    }

    fn refuse(&self, error: &tokenizers::Error) -> Error {
        Error::checkpoint(&self.path, error.to_string())
    }
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
}

impl TextStream<'_> {
    /// The text that a token completes: none while a character lacks bytes.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn push(&mut self, token: u32) -> Result<Option<String>> {
        self.inner.step(token).map_err(|error| self.tokenizer.refuse(&error))
    }
}
