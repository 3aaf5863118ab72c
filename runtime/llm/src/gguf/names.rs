//! Names of tensors in Hugging Face checkpoints and in GGUF files.

/// Names of tensors outside of layers.
const OUTER: [(&str, &str); 3] = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output.weight"),
];

/// Names of the parts of a layer.
const PARTS: [(&str, &str); 15] = [
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    (QUERY, "attn_q"),
    (KEY, "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.experts.gate_proj", "ffn_gate_exps"),
    ("mlp.experts.up_proj", "ffn_up_exps"),
    ("mlp.experts.down_proj", "ffn_down_exps"),
];

/// Returns the GGUF name of a Hugging Face name; unknown names are returned unchanged.
pub(super) fn find_gguf_name(name: &str) -> String {
    if let Some((_, gguf)) = OUTER.iter().find(|(outer, _)| *outer == name) {
        return (*gguf).into();
    }
    let gguf = layer(name).and_then(|(number, part, kind)| {
        let (_, gguf) = PARTS.iter().find(|(hf, _)| *hf == part)?;
        Some(format!("blk.{number}.{gguf}.{kind}"))
    });
    gguf.unwrap_or_else(|| name.into())
}

/// Parts to which rotary position embeddings are applied.
pub(super) const QUERY: &str = "self_attn.q_proj";
pub(super) const KEY: &str = "self_attn.k_proj";

/// Returns the part of a layer that a tensor belongs to.
pub(super) fn part(name: &str) -> Option<&str> {
    layer(name).map(|(_, part, _)| part)
}

/// Splits a tensor's name into the number of the layer, the part, and `weight` or `bias`.
fn layer(name: &str) -> Option<(&str, &str, &str)> {
    let (number, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let (part, kind) = rest.rsplit_once('.')?;
    Some((number, part, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts_are_found() {
        assert_eq!(find_gguf_name("lm_head.weight"), "output.weight");
        assert_eq!(find_gguf_name("model.layers.12.self_attn.q_proj.bias"), "blk.12.attn_q.bias");
        assert_eq!(find_gguf_name("model.layers.0.mlp.down_proj.weight"), "blk.0.ffn_down.weight");
        assert_eq!(find_gguf_name("model.layers.3.mlp.gate.weight"), "blk.3.ffn_gate_inp.weight");
        let experts = "model.layers.3.mlp.experts.up_proj.weight";
        assert_eq!(find_gguf_name(experts), "blk.3.ffn_up_exps.weight");
        assert_eq!(find_gguf_name("another"), "another");
    }
}
