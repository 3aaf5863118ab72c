//! Tokenizer of a GGUF file, from the metadata `tokenizer.ggml.*`.

mod byte_level;
pub(crate) mod keys;
mod pre;
mod sentence_piece;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::collections::HashMap;

use candle_core::quantized::gguf_file::Value;
use tokenizers::Tokenizer;
use tokenizers::processors::template::{SpecialToken, TemplateProcessing};

use super::value::quoted;
use keys::{TokenizerKeys, missing};
use vocabulary::GgufVocabulary;

const MODEL: &str = "tokenizer.ggml.model";
pub(crate) const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
pub(crate) const BOS: &str = "tokenizer.ggml.bos_token_id";
pub(crate) const EOS: &str = "tokenizer.ggml.eos_token_id";
const EOT: &str = "tokenizer.ggml.eot_token_id";
const EOM: &str = "tokenizer.ggml.eom_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";

/// Texts of tokens that always end a text, even if the metadata does not say so: a file names one
/// end token, but chat models have several.
const END_TEXTS: [&str; 14] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<EOT>",
    "_<EOT>",
    "<｜end▁of▁sentence｜>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
];

fn ends_a_text(text: &str) -> bool {
    END_TEXTS.contains(&text)
}

/// Builds the tokenizer that the metadata describes.
///
/// # Errors
/// The key, its value, and what was expected.
pub(crate) fn tokenizer(metadata: &HashMap<String, Value>) -> Result<Tokenizer, String> {
    let keys = TokenizerKeys(metadata);
    let model = keys.text(MODEL)?.ok_or_else(|| missing(MODEL, "`gpt2` or `llama`"))?;
    let (mut tokenizer, vocabulary, add_bos) = match model {
        "gpt2" => {
            let pre = pre::read(keys)?;
            let vocabulary = GgufVocabulary::read(keys)?;
            (byte_level::tokenizer(keys, &vocabulary, pre)?, vocabulary, pre.add_bos)
        }
        "llama" => {
            let vocabulary = GgufVocabulary::read(keys)?;
            (sentence_piece::tokenizer(keys, &vocabulary)?, vocabulary, true)
        }
        other => {
            return Err(format!("`{MODEL}` is {}; expected `gpt2` or `llama`", quoted(other)));
        }
    };
    tokenizer.add_tokens(vocabulary.added()).map_err(|error| format!("`{TOKENS}`: {error}"))?;
    let around = SurroundingTokens::read(keys, &vocabulary, add_bos)?;
    tokenizer.with_post_processor(around.processor()?);
    Ok(tokenizer)
}

/// Returns the tokens that end a text, in ascending order; `vocab_size` bounds them.
///
/// # Errors
/// The errors of [`tokenizer`], except that a file may have no end token.
pub(crate) fn ends(
    metadata: &HashMap<String, Value>,
    vocab_size: usize,
) -> Result<Vec<u32>, String> {
    let keys = TokenizerKeys(metadata);
    let texts = if metadata.contains_key(TOKENS) { keys.texts(TOKENS)? } else { Vec::new() };
    let mut ends = Vec::new();
    for key in [EOS, EOT, EOM] {
        ends.extend(keys.token(key, vocab_size)?);
    }
    let known = texts.iter().enumerate().filter(|(_, text)| ends_a_text(text));
    ends.extend(known.map(|(id, _)| id as u32));
    ends.sort_unstable();
    ends.dedup();
    Ok(ends)
}

/// Tokens that surround a text.
struct SurroundingTokens {
    before: Option<(u32, String)>,
    after: Option<(u32, String)>,
}

impl SurroundingTokens {
    fn read(
        keys: TokenizerKeys,
        vocabulary: &GgufVocabulary,
        add_bos: bool,
    ) -> Result<Self, String> {
        let read = |add: &str, default, key| {
            let id = keys.token(key, vocabulary.texts.len())?;
            if !keys.flag(add)?.unwrap_or(default) {
                return Ok(None);
            }
            let id = id.ok_or_else(|| missing(key, "the token to add to every text"))?;
            Ok::<_, String>(Some((id, vocabulary.texts[id as usize].to_owned())))
        };
        Ok(Self { before: read(ADD_BOS, add_bos, BOS)?, after: read(ADD_EOS, false, EOS)? })
    }

    fn processor(self) -> Result<Option<TemplateProcessing>, String> {
        let mut template = vec!["$A"];
        let mut tokens = Vec::new();
        let mut add = |name: &'static str, place, token: Option<(u32, String)>| {
            let Some((id, text)) = token else { return Ok(()) };
            template.insert(place, name);
            tokens.push(SpecialToken::new(name.to_owned(), vec![id], vec![text])?);
            Ok::<_, tokenizers::Error>(())
        };
        let added = add("eos", 1, self.after).and_then(|()| add("bos", 0, self.before));
        added.map_err(|error| error.to_string())?;
        if tokens.is_empty() {
            return Ok(None);
        }
        let processor = TemplateProcessing::builder()
            .try_single(template.join(" "))?
            .special_tokens(tokens)
            .build();
        processor.map(Some).map_err(|error| error.to_string())
    }
}
