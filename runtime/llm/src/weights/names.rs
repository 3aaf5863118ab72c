//! Names of tensors. This crate names the tensors of all families as llama.cpp does, such as
//! `blk.3.attn_q.weight`; a family may have other names in Hugging Face checkpoints and in GGUF.

use crate::family::{Family, NameTable};

/// Names of tensors outside of layers: embeddings, last norm, weights of the logits.
pub(crate) const EMBEDDINGS: &str = "token_embd.weight";
pub(crate) const NORM: &str = "output_norm.weight";
pub(crate) const HEAD: &str = "output.weight";

/// Names of these tensors in Hugging Face checkpoints.
const OUTER: NameTable = &[
    (EMBEDDINGS, "model.embed_tokens.weight"),
    (NORM, "model.norm.weight"),
    (HEAD, "lm_head.weight"),
];

/// Names of the parts of a layer in Hugging Face checkpoints of Llama and most other models; `{}`
/// is the number of an expert.
const PARTS: NameTable = &[
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    (SINKS, "self_attn.sinks"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_gate_up", "mlp.gate_up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.{}.gate_proj"),
    ("ffn_up_exps", "mlp.experts.{}.up_proj"),
    ("ffn_down_exps", "mlp.experts.{}.down_proj"),
];

/// Part whose name in Hugging Face checkpoints has no suffix.
const SINKS: &str = "attn_sinks";

/// Returns the name of a tensor in Hugging Face checkpoints of a family. Unknown names are returned
/// unchanged.
pub(super) fn hugging_face_name(family: &Family, name: &str) -> String {
    if let Some(outer) = find(OUTER, name) {
        return outer.into();
    }
    let translated = split_name(name).and_then(|TensorName { layer, part, kind }| {
        let found = find(family.parts, part).or_else(|| find(PARTS, part))?;
        let suffix = if part == SINKS { String::new() } else { format!(".{kind}") };
        Some(format!("model.layers.{layer}.{found}{suffix}"))
    });
    translated.unwrap_or_else(|| name.into())
}

/// Returns the name of a tensor in GGUF files of a family.
pub(crate) fn gguf_name(family: &Family, name: &str) -> String {
    let translated = split_name(name).and_then(|TensorName { layer, part, kind }| {
        Some(format!("blk.{layer}.{}.{kind}", find(family.gguf_parts, part)?))
    });
    translated.unwrap_or_else(|| name.into())
}

/// Name of a tensor of a layer.
struct TensorName<'n> {
    /// Number of the layer.
    layer: &'n str,
    part: &'n str,
    /// `weight` or `bias`.
    kind: &'n str,
}

fn split_name(name: &str) -> Option<TensorName<'_>> {
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let (part, kind) = rest.split_once('.')?;
    Some(TensorName { layer, part, kind })
}

fn find(table: NameTable, name: &str) -> Option<&'static str> {
    table.iter().find(|(known, _)| *known == name).map(|(_, found)| *found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families;

    #[test]
    fn names_of_parts_are_found() {
        let hugging_face =
            |family, name| hugging_face_name(families::find(family).unwrap().family, name);
        let llama = |name| hugging_face("LlamaForCausalLM", name);
        assert_eq!(llama(HEAD), "lm_head.weight");
        assert_eq!(llama("blk.12.attn_q.bias"), "model.layers.12.self_attn.q_proj.bias");
        assert_eq!(llama("blk.0.ffn_down.weight"), "model.layers.0.mlp.down_proj.weight");
        let gate = "model.layers.3.mlp.experts.{}.gate_proj.weight";
        assert_eq!(llama("blk.3.ffn_gate_exps.weight"), gate);
        assert_eq!(llama("another"), "another");
        let gemma = |name| hugging_face("Gemma2ForCausalLM", name);
        assert_eq!(
            gemma("blk.1.ffn_norm.weight"),
            "model.layers.1.pre_feedforward_layernorm.weight"
        );
        let oss = families::find("GptOssForCausalLM").unwrap().family;
        assert_eq!(
            hugging_face_name(oss, "blk.1.attn_sinks.weight"),
            "model.layers.1.self_attn.sinks"
        );
        assert_eq!(gguf_name(oss, "blk.1.ffn_norm.weight"), "blk.1.post_attention_norm.weight");
        assert_eq!(gguf_name(oss, "blk.1.attn_norm.weight"), "blk.1.attn_norm.weight");
    }
}
