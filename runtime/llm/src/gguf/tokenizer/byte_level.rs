//! Byte-level BPE: bytes are written as characters, and merged in the order of the merges' ranks.

use std::collections::HashSet;

use tokenizers::Tokenizer;
use tokenizers::models::bpe::{BPE, Merges};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::keys::TokenizerKeys;
use super::pre::PreTokenizer;
use super::vocabulary::GgufVocabulary;
use crate::gguf::value::quoted;

const MERGES: &str = "tokenizer.ggml.merges";

pub(super) fn tokenizer(
    keys: TokenizerKeys,
    vocabulary: &GgufVocabulary,
    pre: &PreTokenizer,
) -> Result<Tokenizer, String> {
    let merges = merges(&keys.texts(MERGES)?, vocabulary)?;
    let model = BPE::builder()
        .vocab_and_merges(vocabulary.vocab(), merges)
        .ignore_merges(pre.ignore_merges)
        .build()
        .map_err(|error| format!("`{MERGES}`: {error}"))?;
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_normalizer(pre.normalizer()).map_err(|error| error.to_string())?;
    tokenizer.with_pre_tokenizer(Some(pre.build()?));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    Ok(tokenizer)
}

fn merges(lines: &[&str], vocabulary: &GgufVocabulary) -> Result<Merges, String> {
    let mut distinct = HashSet::with_capacity(lines.len());
    let merge = |(place, line)| {
        let refuse = |expected: &str| {
            format!("`{MERGES}`: item {place} is {}; expected {expected}", quoted(line))
        };
        let parts = line
            .split_once(' ')
            .filter(|(left, right)| !left.is_empty() && !right.is_empty() && !right.contains(' '));
        let (left, right) = parts.ok_or_else(|| refuse("two pieces with a space between them"))?;
        let is_token = |piece: &str| vocabulary.id(piece).is_some();
        if !is_token(left) || !is_token(right) || !is_token(&[left, right].concat()) {
            return Err(refuse("two tokens whose concatenation is a token"));
        }
        if !distinct.insert(line) {
            return Err(refuse("a merge that no earlier item has"));
        }
        Ok((left.to_owned(), right.to_owned()))
    };
    lines.iter().copied().enumerate().map(merge).collect()
}
