//! Grammars that restrict the tokens of a text, implemented by the crate `llguidance`.

use std::sync::Arc;
use std::{fmt, io, panic, thread};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::Value as Json;

use crate::{Error, Result};

/// Structure that a generated text must have.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// JSON that a schema allows.
    JsonSchema(Json),
    /// Any JSON object.
    JsonObject,
    /// Grammar in llguidance's variant of the Lark format.
    Lark(String),
    /// Regular expression that the whole text matches.
    Regex(String),
}

impl Grammar {
    /// Name of the grammar's kind, for error messages.
    fn name(&self) -> &'static str {
        match self {
            Self::JsonSchema(_) => "json_schema",
            Self::JsonObject => "json_object",
            Self::Lark(_) => "grammar",
            Self::Regex(_) => "regex",
        }
    }

    fn to_top_level(&self) -> TopLevelGrammar {
        match self {
            Self::JsonSchema(schema) => TopLevelGrammar::from_json_schema(schema.clone()),
            Self::JsonObject => {
                TopLevelGrammar::from_json_schema(serde_json::json!({"type": "object"}))
            }
            Self::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
            Self::Regex(text) => TopLevelGrammar::from_regex(text),
        }
    }
}

/// Stack of the thread that compiles a grammar, in bytes. The compiler follows references and
/// nested expressions by recursion.
const COMPILER_STACK: usize = 16 << 20;

/// Maximum length in bytes of a token that a grammar can use, a limit of the trie of tokens.
const LONGEST_TOKEN: usize = 1000;

/// Maximum number of references in a schema. The compiler follows chains of references by
/// recursion, and a chain must not exhaust the stack.
const MOST_REFERENCES: usize = 256;

/// Maximum total length of all tokens in bytes, a limit of the trie of tokens.
const MOST_BYTES: usize = (1 << 22) - 2;

/// Compiler of grammars for one vocabulary. Clones share the trie.
#[derive(Clone)]
pub(crate) struct GrammarCompiler(Arc<ParserFactory>);

impl GrammarCompiler {
    /// Builds the trie of a vocabulary from the bytes of each token. Tokens without bytes, such as
    /// special ones, are never part of a text; `ends` are the tokens that end a text.
    ///
    /// # Errors
    /// [`Error::Grammar`] if no token ends a text, or the vocabulary is too large.
    pub(crate) fn new(mut words: Vec<Vec<u8>>, ends: &[u32]) -> Result<Self> {
        let refuse = |reason: String| Error::Grammar { name: "grammar", reason };
        let ends: Vec<u32> =
            ends.iter().copied().filter(|&end| (end as usize) < words.len()).collect();
        let Some(&tok_eos) = ends.first() else {
            let reason = "the model has no token that ends a text; expected at least one";
            return Err(refuse(reason.into()));
        };
        for &end in &ends {
            words[end as usize].clear();
        }
        for word in &mut words {
            // The byte 0xFF, which no UTF-8 contains, marks special tokens in a trie.
            if word.contains(&TokTrie::SPECIAL_TOKEN_MARKER) || word.len() > LONGEST_TOKEN {
                word.clear();
            }
        }
        let bytes: usize = words.iter().map(Vec::len).sum();
        if bytes > MOST_BYTES {
            let expected = format!("expected at most {MOST_BYTES}");
            return Err(refuse(format!("the vocabulary has {bytes} bytes; {expected}")));
        }
        let info = TokRxInfo::new(words.len() as u32, tok_eos);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(&ends);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory =
            ParserFactory::new_simple(&environment).map_err(|error| refuse(error.to_string()))?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(Self(Arc::new(factory)))
    }

    /// Compiles a grammar.
    ///
    /// # Errors
    /// [`Error::Grammar`] if the grammar is invalid, or has an unsupported feature.
    pub(crate) fn compile(&self, grammar: &Grammar) -> Result<CompiledGrammar> {
        let name = grammar.name();
        let refuse = |reason: &str| Error::Grammar { name, reason: shorten(reason) };
        if let Grammar::JsonSchema(schema) = grammar {
            check_references(schema)?;
        }
        let compile = || Matcher::new(self.0.create_parser(grammar.to_top_level()));
        let start = thread::scope(|scope| {
            let builder = thread::Builder::new().stack_size(COMPILER_STACK);
            let compiling = builder.spawn_scoped(scope, compile)?;
            Ok(compiling.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked)))
        });
        let start = start.map_err(|error: io::Error| refuse(&error.to_string()))?;
        match start.get_error() {
            Some(reason) => Err(refuse(&reason)),
            None => Ok(CompiledGrammar { start: Arc::new(start), name }),
        }
    }
}

/// Refuses a schema with too many references.
fn check_references(schema: &Json) -> Result<()> {
    let references = count_references(schema);
    if references <= MOST_REFERENCES {
        return Ok(());
    }
    let reason = format!("{references} `$ref`; expected at most {MOST_REFERENCES}");
    Err(Error::Grammar { name: "json_schema", reason })
}

/// Returns the number of references within a schema.
fn count_references(schema: &Json) -> usize {
    match schema {
        Json::Array(items) => items.iter().map(count_references).sum(),
        Json::Object(fields) => {
            let here = ["$ref", "$dynamicRef"].iter().filter(|name| fields.contains_key(**name));
            here.count() + fields.values().map(count_references).sum::<usize>()
        }
        _ => 0,
    }
}

impl fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarCompiler").finish_non_exhaustive()
    }
}

/// [Grammar] that a tokenizer has compiled, for texts of the same tokenizer. Clones share the
/// compiled form.
#[derive(Clone)]
pub struct CompiledGrammar {
    /// State before the first token of a text.
    start: Arc<Matcher>,
    name: &'static str,
}

impl CompiledGrammar {
    /// Returns the state of a text before its first token. States are independent of each other.
    pub(crate) fn start(&self) -> GrammarState {
        GrammarState { matcher: self.start.deep_clone(), name: self.name }
    }
}

impl fmt::Debug for CompiledGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompiledGrammar").field("name", &self.name).finish_non_exhaustive()
    }
}

/// State of a grammar after the tokens so far.
pub(crate) struct GrammarState {
    matcher: Matcher,
    name: &'static str,
}

impl GrammarState {
    /// Sets the logits of tokens that cannot continue the text to -∞. An end token is only allowed
    /// after a complete text.
    ///
    /// # Errors
    /// [`Error::Grammar`] if no token can continue the text, or the grammar is too complex.
    pub(crate) fn mask(&mut self, logits: &mut [f32]) -> Result<()> {
        let allowed = self.matcher.compute_mask_or_eos().map_err(|error| self.refuse(&error))?;
        for (token, logit) in logits.iter_mut().enumerate() {
            if token >= allowed.len() || !allowed.get(token) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// Advances the state by a token that is not an end token.
    ///
    /// # Errors
    /// [`Error::Grammar`] if the token cannot continue the text.
    pub(crate) fn push(&mut self, token: u32) -> Result<()> {
        self.matcher.consume_token(token).map_err(|error| self.refuse(&error))
    }

    fn refuse(&self, error: &impl fmt::Display) -> Error {
        let reason = match shorten(&error.to_string()) {
            reason if reason.starts_with("NoExtension") => {
                "no token of the model's vocabulary continues the text".into()
            }
            reason => reason,
        };
        Error::Grammar { name: self.name, reason }
    }
}

/// Removes the description of the parser's state from an error message.
fn shorten(reason: &str) -> String {
    let end = ["\n<state>", "\n<non-verbose/>", "\n<backtrace>"].map(|mark| reason.find(mark));
    let end = end.into_iter().flatten().min().unwrap_or(reason.len());
    reason[..end].trim_end().to_owned()
}
