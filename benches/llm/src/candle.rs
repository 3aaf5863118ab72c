//! The Llama of candle-transformers.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama::{Cache, Config, Llama as Model, LlamaConfig};
use serde_json::Value;
use vattention_llm::most_likely_token;

use crate::report::Step;
use crate::{BenchResult, Decoder};

/// Tokens of a forward pass that fills a cache.
const CHUNK: usize = 256;

/// The model with weights in f32, because candle cannot multiply bf16 on a CPU.
pub(crate) struct Llama {
    model: Model,
    config: Config,
}

/// A sequence and its next token.
pub(crate) struct Sequence<'m> {
    llama: &'m Llama,
    cache: Cache,
    len: usize,
    token: u32,
}

impl Llama {
    pub(crate) fn open(dir: &Path) -> BenchResult<Self> {
        let text = fs::read_to_string(dir.join("config.json"))?;
        let value: Value = serde_json::from_str(&text)?;
        let config: LlamaConfig = serde_json::from_str(&text)?;
        let size_of_head = config.hidden_size / config.num_attention_heads;
        if value["head_dim"].as_u64().is_some_and(|size| size != size_of_head as u64) {
            let head_dim = &value["head_dim"];
            return Err(format!(
                "head_dim: expected hidden_size / num_attention_heads, {size_of_head}, \
                 found {head_dim}"
            )
            .into());
        }
        let config = config.into_config(false);
        let bytes = fs::read(dir.join("model.safetensors"))?;
        let weights = VarBuilder::from_buffered_safetensors(bytes, DType::F32, &Device::Cpu)?;
        Ok(Self { model: Model::load(weights, &config)?, config })
    }

    /// A sequence of `context` random tokens.
    pub(crate) fn decoder(&self, context: usize) -> BenchResult<Sequence<'_>> {
        let small = self.smallest();
        let filler = Model::load(random_weights(&small)?, &small)?;
        let mut cache = Cache::new(true, DType::F32, &self.config, &Device::Cpu)?;
        for first in (0..context).step_by(CHUNK) {
            let tokens = (first..context.min(first + CHUNK)).map(|i| i as u32 % 2);
            let tokens: Vec<u32> = tokens.collect();
            filler.forward(
                &Tensor::new(&tokens[..], &Device::Cpu)?.unsqueeze(0)?,
                first,
                &mut cache,
            )?;
        }
        Ok(Sequence { llama: self, cache, len: context, token: 0 })
    }

    /// The smallest model that fills the same cache.
    fn smallest(&self) -> Config {
        let kv_heads = self.config.num_key_value_heads;
        let head_dim = self.config.hidden_size / self.config.num_attention_heads;
        Config {
            hidden_size: kv_heads * head_dim,
            num_attention_heads: kv_heads,
            intermediate_size: 1,
            vocab_size: 2,
            tie_word_embeddings: true,
            ..self.config.clone()
        }
    }
}

impl Decoder for Sequence<'_> {
    fn step(&mut self) -> BenchResult<Step> {
        let start = Instant::now();
        let token = Tensor::new(&[[self.token]], &Device::Cpu)?;
        let logits = self.llama.model.forward(&token, self.len, &mut self.cache)?;
        let logits = logits.flatten_all()?.to_vec1::<f32>()?;
        let seconds = start.elapsed().as_secs_f64();
        self.len += 1;
        self.token = most_likely_token(&logits)?;
        Ok(Step { seconds, read: None, parts: None })
    }
}

fn random_weights(config: &Config) -> BenchResult<VarBuilder<'static>> {
    let hidden = config.hidden_size;
    let normal = |rows: usize| Tensor::randn(0f32, 0.05, (rows, hidden), &Device::Cpu);
    let ones = || Tensor::ones(hidden, DType::F32, &Device::Cpu);
    let mut tensors = HashMap::from([
        (
            "model.embed_tokens.weight".to_owned(),
            Tensor::randn(0f32, 1.0, (2, hidden), &Device::Cpu)?,
        ),
        ("model.norm.weight".to_owned(), ones()?),
    ]);
    for layer in 0..config.num_hidden_layers {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        for part in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            tensors.insert(name(&format!("self_attn.{part}")), normal(hidden)?);
        }
        tensors.insert(name("mlp.gate_proj"), normal(1)?);
        tensors.insert(name("mlp.up_proj"), normal(1)?);
        tensors.insert(name("mlp.down_proj"), normal(1)?.t()?.contiguous()?);
        tensors.insert(name("input_layernorm"), ones()?);
        tensors.insert(name("post_attention_layernorm"), ones()?);
    }
    Ok(VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu))
}
