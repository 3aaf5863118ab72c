//! Writing of sessions.

use std::collections::HashMap;
use std::io::{self, Write};

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use sha2::{Digest, Sha256};
use vattention_core::engine::AttentionState;
use vattention_core::{Shape, Storage};

use super::header::{DIGEST, DIGEST_BYTES, FORMAT, PromptEnd, SavedHeader, TensorLayout};
use super::numbers::to_bytes;
use super::{SessionOrigin, describe_prefill};
use crate::session::Session;
use crate::{Error, Result};

/// Content of a session that only the caller has.
#[derive(Clone, Copy, Debug)]
pub struct SessionContent<'a> {
    /// All tokens of the session.
    pub tokens: &'a [u32],
    /// Logits after the last token, `[vocab_size]`.
    pub logits: &'a [f32],
    /// Text of the tokens, if it is known.
    pub text: Option<&'a str>,
}

impl Session<'_> {
    /// Writes the session, from which [`restore`](Self::restore) continues with the same results.
    ///
    /// Cost: the bytes of the stored keys and values are read, digested and written; memory holds
    /// those of one layer.
    ///
    /// # Errors
    /// [`Error::Input`] if the tokens or logits are not those of the session; [`Error::Attention`]
    /// if a selector has learned from steps, or rows of evicted tokens have been freed;
    /// [`Error::Write`] if `out` fails; [`Error::Lost`] if the session is lost.
    pub fn save(
        &self,
        out: impl Write,
        origin: &SessionOrigin,
        content: &SessionContent<'_>,
    ) -> Result<()> {
        self.check_not_lost()?;
        self.check_content(content)?;
        let config = self.model.config();
        let Shape { head_dim, value_dim, .. } = config.shape;
        // Sliding layers do not observe prompts.
        let full = (0..config.layers).find(|layer| config.window(*layer).is_none());
        let header = self.header(origin, content, &self.layer_state(full.unwrap_or(0))?);
        let mut out = DigestWriter { out, digest: Sha256::new() };
        let mut write = |bytes: &[u8]| out.write_all(bytes).map_err(Error::Write);
        write(&encode_header(&header, &header.tensors(config, self.storage))?)?;
        write(&content.tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<_>>())?;
        write(&to_bytes(content.logits, config.vocab_size, Storage::F32))?;
        for (layer, attention) in self.layers.iter().enumerate() {
            let failed = |source| Error::Attention { layer, source };
            let first = header.first_row(layer, config);
            let rows = attention.read_rows(first..self.len).map_err(failed)?;
            write(&to_bytes(&rows.keys, head_dim, self.storage))?;
            write(&to_bytes(&rows.values, value_dim, self.storage))?;
            let state = self.layer_state(layer)?;
            for prompt in &state.prompts {
                write(&to_bytes(&prompt.queries, head_dim, Storage::F32))?;
            }
            let sizes = state.first_sizes.iter().flat_map(|sizes| sizes.to_le_bytes());
            write(&sizes.collect::<Vec<_>>())?;
        }
        out.finish().map_err(Error::Write)
    }

    /// Refuses tokens and logits that are not those of the session.
    fn check_content(&self, content: &SessionContent<'_>) -> Result<()> {
        let (tokens, vocabulary) = (content.tokens.len(), self.model.config().vocab_size);
        if tokens != self.len || tokens == 0 {
            let reason = format!("{tokens}; expected the session's {}, at least 1", self.len);
            return Err(Error::input("tokens to save", reason));
        }
        self.model.check(content.tokens, 0)?;
        if content.logits.len() != vocabulary {
            let reason = format!("{}; expected {vocabulary}", content.logits.len());
            return Err(Error::input("logits to save", reason));
        }
        Ok(())
    }

    fn layer_state(&self, layer: usize) -> Result<AttentionState> {
        self.layers[layer].state().map_err(|source| Error::Attention { layer, source })
    }

    fn header(
        &self,
        origin: &SessionOrigin,
        content: &SessionContent<'_>,
        state: &AttentionState,
    ) -> SavedHeader {
        let ends = state
            .prompts
            .iter()
            .map(|prompt| PromptEnd { tokens: prompt.tokens, queries: prompt.queries.dim().1 });
        SavedHeader {
            model: origin.model.clone(),
            pipeline: origin.pipeline.clone(),
            prefill: describe_prefill(&self.prefill_options),
            prefill_density: self.prefill_density,
            storage: self.storage.name().into(),
            rotated: self.rotations.is_some(),
            tokens: self.len,
            step: state.step,
            prompts: ends.collect(),
            text: content.text.map(str::to_owned),
        }
    }
}

/// Returns the bytes before the first tensor.
fn encode_header(header: &SavedHeader, tensors: &[TensorLayout]) -> Result<Vec<u8>> {
    let failed = |error: String| Error::Write(io::Error::other(error));
    let json = serde_json::to_string(header).map_err(|error| failed(error.to_string()))?;
    // With several strings, their order in the file would be random.
    let strings = HashMap::from([(FORMAT.to_owned(), json)]);
    let mut first = 0;
    let digest = TensorLayout::new(DIGEST, Dtype::U8, &[DIGEST_BYTES]);
    let place = |TensorLayout { name, dtype, shape }: &TensorLayout| {
        let end = first + shape.iter().product::<usize>() * dtype.bitsize() / 8;
        let info = TensorInfo { dtype: *dtype, shape: shape.clone(), data_offsets: (first, end) };
        first = end;
        (name.clone(), info)
    };
    let infos = tensors.iter().chain([&digest]).map(place).collect();
    let metadata =
        Metadata::new(Some(strings), infos).map_err(|error| failed(error.to_string()))?;
    let mut text = serde_json::to_vec(&metadata).map_err(|error| failed(error.to_string()))?;
    // The format aligns tensors to 8 bytes.
    text.resize(text.len().next_multiple_of(8), b' ');
    Ok([&(text.len() as u64).to_le_bytes()[..], &text].concat())
}

/// Writer that computes the digest of all bytes.
struct DigestWriter<W> {
    out: W,
    digest: Sha256,
}

impl<W: Write> DigestWriter<W> {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.digest.update(bytes);
        self.out.write_all(bytes)
    }

    /// Writes the digest.
    fn finish(mut self) -> io::Result<()> {
        self.out.write_all(&self.digest.finalize())?;
        self.out.flush()
    }
}
