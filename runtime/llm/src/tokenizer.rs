//! Conversion between text and tokens, by `tokenizer.json` or GGUF metadata.

mod bytes;
mod names;
mod stream;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tokenizers::{Encoding, Token};

use vattention_core::PipelineConfig;

use crate::files::{is_gguf, read_text};
use crate::gguf::{self, Gguf};
use crate::grammar::{CompiledGrammar, Grammar, GrammarCompiler};
use crate::{Classes, Config, Error, Result};

pub use stream::TextStream;

/// Tokenizer of a model.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    path: PathBuf,
    inner: tokenizers::Tokenizer,
    /// Tokens that the tokenizer puts before every text, such as `<bos>`.
    before: Vec<u32>,
    /// Number of tokens in the model's vocabulary.
    vocab_size: usize,
    /// Tokens that end a text.
    ends: Vec<u32>,
    /// Classes of all tokens, computed on first use.
    classes: OnceLock<Classes>,
    /// Token of ASCII letters and digits, after which other tokens are decoded; found on first use.
    ordinary: OnceLock<Option<u32>>,
    /// Compiler of grammars over the bytes of all tokens, built on first use.
    grammars: OnceLock<GrammarCompiler>,
}

impl Tokenizer {
    /// Loads a model's tokenizer: from the metadata of a GGUF file, or from `tokenizer.json` of a
    /// directory. Its settings for padding and truncation are ignored, so that a text yields all of
    /// its tokens.
    ///
    /// # Errors
    /// [`Error::File`], or [`Error::Checkpoint`] if the tokenizer is invalid.
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

    /// Wraps a tokenizer that was read from a file.
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
        Ok(Self {
            path: path.into(),
            inner,
            before,
            vocab_size: config.vocab_size,
            ends: config.ends.clone(),
            classes: OnceLock::new(),
            ordinary: OnceLock::new(),
            grammars: OnceLock::new(),
        })
    }

    /// Encodes a text at the beginning of a sequence, with the tokens that the tokenizer puts
    /// before texts, such as `<bos>`; they are not repeated if the text begins with them. Tokens
    /// that the tokenizer puts after texts, such as `<eos>`, are omitted, because the sequence
    /// continues.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if the tokenizer refuses the text, or returns a token that the model
    /// does not have.
    pub fn first(&self, text: &str) -> Result<Vec<u32>> {
        self.begin(self.next(text)?)
    }

    /// Puts the tokens that the tokenizer puts before texts, such as `<bos>`, before those of a
    /// [text](Self::next) that begins a sequence, unless they are there already.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if the model does not have a token.
    pub fn begin(&self, tokens: Vec<u32>) -> Result<Vec<u32>> {
        if tokens.starts_with(&self.before) {
            return Ok(tokens);
        }
        self.check_known(&self.before)?;
        Ok([self.before.as_slice(), &tokens].concat())
    }

    /// Encodes a text that continues another.
    ///
    /// # Errors
    /// The errors of [`first`](Self::first).
    pub fn next(&self, text: &str) -> Result<Vec<u32>> {
        let encoded = self.inner.encode_fast(text, false).map_err(|error| self.refuse(&error))?;
        self.check_known(encoded.get_ids())?;
        Ok(encoded.get_ids().to_vec())
    }

    /// Refuses tokens that the model does not have. Some tokenizers have such tokens, which few
    /// texts contain.
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

    /// Decodes tokens to text, without special tokens.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if the tokenizer cannot decode them.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        self.inner.decode(tokens, true).map_err(|error| self.refuse(&error))
    }

    /// Returns every token of the model with its text; special tokens have none.
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

    /// Returns a decoder for tokens that arrive one by one.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream::new(self)
    }

    /// Compiles a grammar for this vocabulary.
    ///
    /// Cost: the first call decodes the vocabulary, token by token. Each call needs time that grows
    /// with the grammar.
    ///
    /// # Errors
    /// The errors of [`decode`](Self::decode), and [`Error::Grammar`] if the grammar is invalid or
    /// not supported, or the model has no token that ends a text.
    pub fn compile_grammar(&self, grammar: &Grammar) -> Result<CompiledGrammar> {
        self.grammar_compiler()?.compile(grammar)
    }

    fn grammar_compiler(&self) -> Result<&GrammarCompiler> {
        if let Some(grammars) = self.grammars.get() {
            return Ok(grammars);
        }
        let words = (0..self.vocab_size as u32).map(|token| self.token_bytes(token));
        let built = GrammarCompiler::new(words.collect::<Result<_>>()?, &self.ends)?;
        Ok(self.grammars.get_or_init(|| built))
    }

    fn refuse(&self, error: &tokenizers::Error) -> Error {
        Error::checkpoint(&self.path, error.to_string())
    }

    /// Returns the class of each token. A token is special if the tokenizer marks it as special,
    /// such as `<bos>` and the marks of a chat template. It is punctuation if its text, apart from
    /// surrounding white space, consists of Unicode punctuation (category P).
    ///
    /// Cost: the first call decodes the vocabulary, token by token.
    ///
    /// # Errors
    /// The errors of [`decode`](Self::decode).
    pub fn classes(&self) -> Result<Classes> {
        if let Some(classes) = self.classes.get() {
            return Ok(classes.clone());
        }
        let found = Classes::from_texts(self.texts()?);
        Ok(self.classes.get_or_init(|| found).clone())
    }

    /// Returns the [classes](Self::classes) if a pipeline needs them.
    ///
    /// # Errors
    /// The errors of [`classes`](Self::classes).
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
