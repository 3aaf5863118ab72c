//! BPE as in SentencePiece: merges are ordered by the scores of the resulting pieces.

use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, Merges};
use tokenizers::normalizers::utils::Sequence as Normalizers;
use tokenizers::normalizers::{Prepend, Replace};
use tokenizers::{DecoderWrapper, NormalizerWrapper, Tokenizer};

use super::TOKENS;
use super::keys::TokenizerKeys;
use super::vocabulary::{GgufVocabulary, TokenKind};
use crate::gguf::value::quoted;

const SCORES: &str = "tokenizer.ggml.scores";
const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
/// Character that represents a space in a piece.
const SPACE: &str = "▁";
/// Longest piece in bytes. Every split of a piece is looked up, which would take forever for a
/// piece that is far longer than real ones.
const LONGEST: usize = 1024;

pub(super) fn tokenizer(
    keys: TokenizerKeys,
    vocabulary: &GgufVocabulary,
) -> Result<Tokenizer, String> {
    let scores = keys.numbers(SCORES)?;
    if scores.len() != vocabulary.texts.len() {
        return Err(format!(
            "`{SCORES}` has {} items; expected {}, as many as `{TOKENS}`",
            scores.len(),
            vocabulary.texts.len()
        ));
    }
    let prefix = keys.flag(ADD_SPACE_PREFIX)?.unwrap_or(true);
    let mut model = BPE::builder()
        .vocab_and_merges(vocabulary.vocab(), merges(vocabulary, &scores)?)
        .byte_fallback(true)
        .fuse_unk(true);
    match find_unknown(keys, vocabulary)? {
        Some(text) => model = model.unk_token(text.to_owned()),
        None => check_bytes(vocabulary)?,
    }
    let model = model.build().map_err(|error| format!("`{SCORES}`: {error}"))?;
    let mut tokenizer = Tokenizer::new(model);
    let failed = |error: tokenizers::Error| error.to_string();
    tokenizer.with_normalizer(Some(normalizer(prefix).map_err(failed)?)).map_err(failed)?;
    tokenizer.with_decoder(Some(decoder(prefix).map_err(failed)?));
    Ok(tokenizer)
}

/// Returns every split of a piece into two pieces: in the order of scores, and for equal scores the
/// longest left piece first, as in Hugging Face's converter.
fn merges(vocabulary: &GgufVocabulary, scores: &[f32]) -> Result<Merges, String> {
    let mut found = Vec::new();
    for (id, &text) in vocabulary.texts.iter().enumerate() {
        if !takes_part_in_merges(vocabulary, text, id) {
            continue;
        }
        if text.len() > LONGEST {
            let shown = quoted(text);
            return Err(format!(
                "`{TOKENS}`: item {id} is {shown}; expected at most {LONGEST} bytes"
            ));
        }
        for (count, (middle, _)) in text.char_indices().enumerate().skip(1) {
            let (left, right) = text.split_at(middle);
            if is_piece(vocabulary, left) && is_piece(vocabulary, right) {
                found.push((scores[id], count, left, right));
            }
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
    Ok(found.into_iter().map(|(_, _, left, right)| (left.into(), right.into())).collect())
}

fn is_piece(vocabulary: &GgufVocabulary, text: &str) -> bool {
    vocabulary.id(text).is_some_and(|id| takes_part_in_merges(vocabulary, text, id as usize))
}

/// Returns true if a token takes part in merges. Special and user-defined tokens are found before
/// merging, and byte tokens replace the text that is left after merging.
fn takes_part_in_merges(vocabulary: &GgufVocabulary, text: &str, id: usize) -> bool {
    matches!(vocabulary.kinds[id], TokenKind::Normal | TokenKind::Unused)
        && vocabulary.id(text) == Some(id as u32)
}

/// Text of the token for text that has neither a piece nor bytes.
fn find_unknown<'m>(
    keys: TokenizerKeys,
    vocabulary: &GgufVocabulary<'m>,
) -> Result<Option<&'m str>, String> {
    let named = keys.token(UNKNOWN, vocabulary.texts.len())?.map(|id| id as usize);
    let id = named.or_else(|| vocabulary.kinds.iter().position(|&kind| kind == TokenKind::Unknown));
    Ok(id.map(|id| vocabulary.texts[id]).filter(|text| !text.is_empty()))
}

/// Checks that every byte has a token. Otherwise text without a piece would vanish, if there is no
/// unknown token.
fn check_bytes(vocabulary: &GgufVocabulary) -> Result<(), String> {
    for byte in 0..=u8::MAX {
        let text = format!("<0x{byte:02X}>");
        if vocabulary.id(&text).is_none() {
            return Err(format!("`{TOKENS}` has neither {text:?} nor an unknown token"));
        }
    }
    Ok(())
}

fn normalizer(prefix: bool) -> tokenizers::Result<NormalizerWrapper> {
    let spaces = Replace::new(" ", SPACE)?.into();
    if !prefix {
        return Ok(spaces);
    }
    Ok(Normalizers::new(vec![Prepend::new(SPACE.to_owned()).into(), spaces]).into())
}

fn decoder(prefix: bool) -> tokenizers::Result<DecoderWrapper> {
    let mut steps: Vec<DecoderWrapper> =
        vec![Replace::new(SPACE, " ")?.into(), ByteFallback::new().into(), Fuse::new().into()];
    if prefix {
        steps.push(Strip::new(' ', 1, 0).into());
    }
    Ok(Decoders::new(steps).into())
}
