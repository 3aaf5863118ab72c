//! Decoder-only transformers whose decode attention is computed by vattention's backends.
//!
//! A [`Model`] holds the weights of a Hugging Face directory or a GGUF file. A [`Session`] is one
//! sequence of the model, with one [`Attention`](vattention_core::Attention) per layer on any
//! backend. The prompt is read by causal attention, which is dense unless [`PrefillOptions`] name
//! another [`Strategy`], and its keys (after rotation) and values are appended to each layer's
//! attention. Every later token attends by the session's pipeline.
//!
//! ```no_run
//! use std::{ops::ControlFlow, path::Path, sync::Arc};
//! use vattention_core::{Backend, Options, PipelineConfig};
//! use vattention_llm::{Model, Prompt, Result, Session};
//!
//! fn answer(backend: &dyn Backend, context: &[u32], question: &[u32]) -> Result<()> {
//!     let model = Model::open(Path::new("Llama-3.2-1B-Instruct"))?;
//!     let pipeline = Arc::new(PipelineConfig::default());
//!     let mut session = Session::new(&model, backend, &pipeline, &Options::default())?;
//!     let prompt = Prompt { dense: context, sparse: question };
//!     let generation = session.generate(prompt, 100, |token, session| {
//!         println!("{token}: read {:.1} %", 100.0 * session.density().unwrap_or(1.0));
//!         ControlFlow::Continue(())
//!     })?;
//!     println!("{:?}", generation.tokens);
//!     Ok(())
//! }
//! ```

mod attention_form;
mod chat;
mod classes;
mod config;
mod config_files;
mod dense;
mod digest;
mod drafts;
mod error;
mod experts;
mod exponential;
mod families;
mod family;
mod feed_forward;
mod files;
mod fingerprint;
mod gated;
mod generate;
mod gguf;
mod grammar;
mod inputs;
mod layer;
mod linear;
mod logprobs;
mod matrix;
mod model;
mod packed;
mod prefill;
mod product;
mod report;
mod rope;
mod row;
mod sampling;
mod session;
mod tokenizer;
mod twin;
mod weights;

pub use chat::{Chat, ChatMessages, ChatTemplate};
pub use classes::Classes;
pub use config::{
    Biases, Block, Config, ExpertWeights, Experts, GateActivation, HeadNorm, LayerForm, LayerWindow,
};
pub use digest::model_digest;
pub use error::{Error, Result};
pub use generate::{Generation, Prompt, Stop, most_likely_token};
pub use grammar::{CompiledGrammar, Grammar};
pub use logprobs::{TokenLogprob, log_probabilities, score_token};
pub use model::Model;
pub use prefill::{
    BlockShape, LayerPrompt, PrefillOptions, Prefilled, PromptBlock, PromptReader, PromptTail,
    SampleAttention, Strategy,
};
pub use report::{LayerReport, mean_density};
pub use rope::{Rotary, Scaling, Sharpening};
pub use sampling::{GeneratedToken, GenerationParams, SamplingParams, TextGenerator};
pub use session::{
    DraftCounts, MOST_DRAFTS, SLIDING_LAYER, SavedSession, Session, SessionContent, SessionOrigin,
    Speculation, rotates_rows,
};
pub use tokenizer::{TextStream, Tokenizer};
pub use weights::{weight_bytes, weight_files};
