//! Tests of models in IQ4_NL, IQ4_XS and MXFP4, which equal the same models with their weights in
//! F32, as this file decodes them.

use std::path::Path;

use crate::common::gguf_file::{MetadataValue, StoredTensor, write_gguf};
use crate::gguf::{distance, logits};
use half::f16;
use vattention_llm::{Model, weight_bytes};

const HIDDEN: usize = 256;
const VOCABULARY: usize = 64;
const LAYERS: usize = 2;
const EXPERTS: usize = 3;

const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

#[derive(Clone, Copy, Debug, PartialEq)]
enum BlockType {
    Iq4Nl,
    Iq4Xs,
    Mxfp4,
}

impl BlockType {
    const ALL: [Self; 3] = [Self::Iq4Nl, Self::Iq4Xs, Self::Mxfp4];

    /// Number in GGUF.
    fn number(self) -> u32 {
        match self {
            Self::Iq4Nl => 20,
            Self::Iq4Xs => 23,
            Self::Mxfp4 => 39,
        }
    }

    /// Weights and bytes of a block.
    fn sizes(self) -> (usize, usize) {
        match self {
            Self::Iq4Nl => (32, 18),
            Self::Iq4Xs => (256, 136),
            Self::Mxfp4 => (32, 17),
        }
    }

    /// Makes random blocks of weights of about `1 / √256`.
    fn make_blocks(self, count: usize, seed: u32) -> Vec<u8> {
        let (weights, size) = self.sizes();
        let mut state = seed;
        let mut draw = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let mut bytes: Vec<u8> = (0..count / weights * size).map(|_| draw()).collect();
        for block in bytes.chunks_exact_mut(size) {
            let sign = if draw() % 2 == 0 { 1.0 } else { -1.0 };
            let scale = match self {
                Self::Iq4Nl => 8e-4,
                Self::Iq4Xs => 5e-5,
                Self::Mxfp4 => {
                    block[0] = 121 + draw() % 3;
                    continue;
                }
            };
            let scale = f16::from_f32(sign * scale * (1.0 + f32::from(draw()) / 255.0));
            block[..2].copy_from_slice(&scale.to_le_bytes());
        }
        bytes
    }

    /// Returns the weights of blocks, by the definitions of llama.cpp.
    fn decode(self, bytes: &[u8]) -> Vec<f32> {
        bytes.chunks_exact(self.sizes().1).flat_map(|block| self.decode_block(block)).collect()
    }

    fn decode_block(self, block: &[u8]) -> Vec<f32> {
        let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
        let nibble = |bytes: &[u8], i: usize| usize::from(bytes[i % 16] >> (i / 16 * 4) & 15);
        match self {
            Self::Iq4Nl => {
                (0..32).map(|i| scale * f32::from(IQ4[nibble(&block[2..], i)])).collect()
            }
            Self::Iq4Xs => {
                let high = u16::from_le_bytes([block[2], block[3]]);
                let factor = |part: usize| {
                    let low = block[4 + part / 2] >> (part % 2 * 4) & 15;
                    f32::from(u16::from(low) | (high >> (2 * part) & 3) << 4) - 32.0
                };
                let weight = |i: usize| {
                    let codes = &block[8 + i / 32 * 16..];
                    scale * factor(i / 32) * f32::from(IQ4[nibble(codes, i % 32)])
                };
                (0..256).map(weight).collect()
            }
            Self::Mxfp4 => {
                let scale = 2.0_f32.powi(i32::from(block[0]) - 127);
                let weight = |code: usize| {
                    let sign = if code < 8 { 1.0 } else { -1.0 };
                    sign * scale * E2M1[code % 8]
                };
                (0..32).map(|i| weight(nibble(&block[1..], i))).collect()
            }
        }
    }
}

fn f32_tensor(name: String, shape: &[usize], numbers: &[f32]) -> StoredTensor {
    let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    StoredTensor { name, shape: shape.into(), type_number: 0, bytes }
}

/// Shapes of the matrices, which are quantised.
fn matrices() -> Vec<(String, Vec<usize>)> {
    let mut shapes = vec![("token_embd.weight".to_owned(), vec![VOCABULARY, HIDDEN])];
    for layer in 0..LAYERS {
        for (part, shape) in [
            ("attn_q", vec![HIDDEN, HIDDEN]),
            ("attn_k", vec![HIDDEN / 2, HIDDEN]),
            ("attn_v", vec![HIDDEN / 2, HIDDEN]),
            ("attn_output", vec![HIDDEN, HIDDEN]),
            ("ffn_gate_exps", vec![EXPERTS, 2 * HIDDEN, HIDDEN]),
            ("ffn_up_exps", vec![EXPERTS, 2 * HIDDEN, HIDDEN]),
            ("ffn_down_exps", vec![EXPERTS, HIDDEN, 2 * HIDDEN]),
        ] {
            shapes.push((format!("blk.{layer}.{part}.weight"), shape));
        }
    }
    shapes
}

/// Norms and routers, which are in F32.
fn other_tensors() -> Vec<StoredTensor> {
    let ones = |name: String, size| f32_tensor(name, &[size], &vec![1.0; size]);
    let mut tensors = vec![ones("output_norm.weight".into(), HIDDEN)];
    for layer in 0..LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        for (part, size) in [
            ("attn_norm", HIDDEN),
            ("ffn_norm", HIDDEN),
            ("attn_q_norm", HIDDEN / 4),
            ("attn_k_norm", HIDDEN / 4),
        ] {
            tensors.push(ones(name(part), size));
        }
        let router: Vec<f32> = (0..EXPERTS * HIDDEN).map(|i| (i as f32 * 1.7).sin()).collect();
        tensors.push(f32_tensor(name("ffn_gate_inp"), &[EXPERTS, HIDDEN], &router));
    }
    tensors
}

/// Writes a model of experts with these tensors.
fn write_model(path: &Path, matrices: Vec<StoredTensor>) {
    let number = |number: usize| MetadataValue::U32(number as u32);
    let metadata = [
        ("general.architecture", MetadataValue::Text("qwen3moe")),
        ("qwen3moe.block_count", number(LAYERS)),
        ("qwen3moe.context_length", number(256)),
        ("qwen3moe.embedding_length", number(HIDDEN)),
        ("qwen3moe.feed_forward_length", number(2 * HIDDEN)),
        ("qwen3moe.expert_count", number(EXPERTS)),
        ("qwen3moe.expert_used_count", number(2)),
        ("qwen3moe.expert_feed_forward_length", number(2 * HIDDEN)),
        ("qwen3moe.attention.head_count", number(4)),
        ("qwen3moe.attention.head_count_kv", number(2)),
        ("qwen3moe.attention.layer_norm_rms_epsilon", MetadataValue::F32(1e-5)),
        ("qwen3moe.vocab_size", number(VOCABULARY)),
        ("tokenizer.ggml.eos_token_id", number(0)),
    ];
    let mut tensors = other_tensors();
    tensors.extend(matrices);
    write_gguf(path, &metadata, &tensors);
}

/// Makes the quantised matrices of a model.
fn quantised_matrices(block_type: BlockType) -> Vec<StoredTensor> {
    let make = |(seed, (name, shape)): (usize, (String, Vec<usize>))| {
        let bytes = block_type.make_blocks(shape.iter().product(), seed as u32);
        StoredTensor { name, shape, type_number: block_type.number(), bytes }
    };
    matrices().into_iter().enumerate().map(make).collect()
}

fn decode(block_type: BlockType, tensor: &StoredTensor) -> StoredTensor {
    f32_tensor(tensor.name.clone(), &tensor.shape, &block_type.decode(&tensor.bytes))
}

#[test]
fn models_match_their_dequantised_weights() {
    for block_type in BlockType::ALL {
        let folder = tempfile::tempdir().unwrap();
        let [path, wide] = ["model.gguf", "wide.gguf"].map(|name| folder.path().join(name));
        let matrices = quantised_matrices(block_type);
        write_model(&wide, matrices.iter().map(|tensor| decode(block_type, tensor)).collect());
        let stored: usize = matrices.iter().map(|tensor| tensor.bytes.len()).sum();
        write_model(&path, matrices);

        let ours = logits(&Model::open(&path).unwrap());
        let expected = logits(&Model::open(&wide).unwrap());
        let largest = expected.iter().flatten().fold(0.0_f32, |a, b| a.max(b.abs()));
        assert!(largest > 0.1, "{block_type:?}: {largest}");
        let distance = distance(&ours, &expected) / largest;
        // Rounding errors of the products pass through softmax and experts of several layers.
        assert!(distance < 5e-5, "{block_type:?}: {distance:e}");

        let others: usize = other_tensors().iter().map(|tensor| tensor.bytes.len()).sum();
        let in_memory = weight_bytes(&path).unwrap() as usize - others;
        let expected = if block_type == BlockType::Iq4Xs { stored / 136 * 138 } else { stored };
        assert_eq!(in_memory, expected, "{block_type:?}");
    }
}

#[test]
fn scales_that_are_not_finite_are_refused() {
    let infinity = f16::INFINITY.to_le_bytes();
    let names = ["token_embd.weight", "blk.1.ffn_up_exps.weight"];
    for (block_type, scale) in [
        (BlockType::Iq4Nl, &infinity[..]),
        (BlockType::Iq4Xs, &infinity[..]),
        (BlockType::Mxfp4, &[255]),
    ] {
        for name in names {
            let mut matrices = quantised_matrices(block_type);
            let tensor = matrices.iter_mut().find(|tensor| tensor.name == name).unwrap();
            let place = 5 * block_type.sizes().1;
            tensor.bytes[place..place + scale.len()].copy_from_slice(scale);
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("model.gguf");
            write_model(&path, matrices);
            let message = Model::open(&path).unwrap_err().to_string();
            let expected = format!(
                "{}: tensor `{name}`: the numbers of block 5 are not finite; expected finite ones",
                path.display()
            );
            assert_eq!(message, expected, "{block_type:?}");
        }
    }
}
