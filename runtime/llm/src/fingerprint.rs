//! Fingerprint of a model, which identifies the model of stored keys and values.

use sha2::{Digest as _, Sha256};

use crate::{LayerWindow, Model, PrefillOptions, Result};

/// Number of tokens that the model reads for its fingerprint.
const TOKENS: usize = 8;

/// Window that stands for a full layer in the digest.
const FULL: LayerWindow = LayerWindow { size: 0, aligned: false };

impl Model {
    /// Computes a digest of the windows of layers, and of the keys, values and logits of eight
    /// tokens. The digest differs between models, and between machines whose instruction sets round
    /// differently, so stored keys and values of an equal fingerprint can be reused. Weights and
    /// settings that do not affect these tokens, such as other experts and embeddings, do not
    /// affect the digest.
    ///
    /// Cost: a prefill of eight tokens.
    ///
    /// # Errors
    /// [`Error::Input`](crate::Error::Input) if logits are not finite.
    pub fn fingerprint(&self) -> Result<[u8; 32]> {
        let config = self.config();
        let count = TOKENS.min(config.context);
        let tokens: Vec<u32> =
            (0..count).map(|i| (i * config.vocab_size / TOKENS) as u32).collect();
        let prompt = self.prefill(&tokens, PrefillOptions::default())?;
        let mut hash = Sha256::new();
        for layer in &prompt.layers {
            layer.keys.iter().chain(&layer.values).for_each(|x| hash.update(x.to_le_bytes()));
        }
        for form in &config.layer_forms {
            let LayerWindow { size, aligned } = form.window.unwrap_or(FULL);
            hash.update((size as u64).to_le_bytes());
            hash.update([u8::from(aligned)]);
        }
        prompt.logits.iter().for_each(|logit| hash.update(logit.to_le_bytes()));
        Ok(hash.finalize().into())
    }
}
