//! Names, defaults and layouts of a family of models.

use std::fmt;

use crate::config::GateActivation;

/// Table of names, as pairs of a name and its translation.
pub(crate) type NameTable = &'static [(&'static str, &'static str)];

/// Family of models with the same structure.
#[allow(clippy::struct_excessive_bools, reason = "facts that do not depend on each other")]
pub(crate) struct Family {
    /// Name in reports.
    pub(crate) name: &'static str,
    /// Names in `architectures` of `config.json`.
    pub(crate) hugging_face: &'static [&'static str],
    /// Multimodal models whose language model is of the family.
    pub(crate) multimodal: Option<Multimodal>,
    /// Names in `general.architecture` of GGUF metadata.
    pub(crate) gguf: &'static [&'static str],
    /// Names of the parts of a layer in Hugging Face checkpoints, where they differ from
    /// [`weights::names`](crate::weights::names).
    pub(crate) parts: NameTable,
    /// Names of the parts of a layer in GGUF files, where they differ.
    pub(crate) gguf_parts: NameTable,
    /// Names in GGUF, without the architecture, of keys of `config.json`.
    pub(crate) keys: NameTable,
    /// Layout of the experts' tensors in Hugging Face checkpoints.
    pub(crate) experts: ExpertLayout,
    /// True if GGUF stores the rows of queries and keys in interleaved rotary order, in place of
    /// the order of Hugging Face.
    pub(crate) reordered: bool,
    /// True if rotated elements pair with their neighbours.
    pub(crate) interleaved_pairs: bool,
    /// Default of the share of a head's elements that are rotated; `None` if all are.
    pub(crate) rotated: Option<f64>,
    /// Default of `rope_theta`.
    pub(crate) theta: f32,
    /// Default of `tie_word_embeddings`.
    pub(crate) tied: bool,
    /// Default of `head_dim`, if it does not follow from other dimensions.
    pub(crate) head_dim: Option<usize>,
    /// True if a missing number of KV heads equals that of query heads.
    pub(crate) may_lack_kv_heads: bool,
    /// True if Hugging Face checkpoints store weights of norms less 1.
    pub(crate) centred_norms: bool,
    /// True if Hugging Face checkpoints may have experts in MXFP4.
    pub(crate) mxfp4: bool,
    /// Activation of the feed-forward network's gate.
    pub(crate) activation: GateActivation,
}

/// Multimodal models, of which only the language model is read. Its keys are in `text_config`.
#[derive(Clone, Copy)]
pub(crate) struct Multimodal {
    /// Name in `architectures` of `config.json`.
    pub(crate) name: &'static str,
    /// Names in `model_type` of `text_config`.
    pub(crate) text_types: &'static [&'static str],
    /// Defaults of keys that published files lack.
    pub(crate) defaults: &'static [(&'static str, u64)],
}

/// Layout of the experts' tensors in Hugging Face checkpoints.
#[derive(Clone, Copy)]
pub(crate) enum ExpertLayout {
    /// `experts.{number}.{part}.weight` for each expert, `[outputs, inputs]`.
    Separate,
    /// One tensor for all experts, `[experts, inputs, outputs]`, or its MXFP4 blocks.
    Joined(JoinedColumns),
}

/// Order of the columns of gate and up in one tensor.
#[derive(Clone, Copy)]
pub(crate) enum JoinedColumns {
    /// Columns of gate and up alternate.
    Alternating,
    /// All columns of gate, then those of up.
    Halves,
}

/// Llama, from which other families differ in some fields.
pub(crate) const LLAMA_LIKE: Family = Family {
    name: "Llama",
    hugging_face: &[],
    multimodal: None,
    gguf: &[],
    parts: &[],
    gguf_parts: &[],
    keys: &[],
    experts: ExpertLayout::Separate,
    reordered: false,
    interleaved_pairs: false,
    rotated: None,
    theta: 10000.0,
    tied: false,
    head_dim: None,
    may_lack_kv_heads: true,
    centred_norms: false,
    mxfp4: false,
    activation: GateActivation::Silu,
};

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}
