//! Training the maps of `hash-attention`.
//!
//! Each query head has a network for queries and a network for keys. Both map a row to `bits`
//! numbers, whose signs are the code. Training replaces the sign by `tanh`. The logit of "this key
//! is one of the `top` keys with the largest `q·k`" is `Σ tanh(query bit) · tanh(key bit)`, with
//! binary cross-entropy and weighted positives. Layers are trained one after the other, and all
//! heads of a layer together.
//!
//! Desai, Yang, Cuadron, Zaharia, Gonzalez, Stoica (2024), "HashAttention: Semantic Sparsity for
//! Faster Inference", <https://arxiv.org/abs/2412.14468>. The authors read each document once, in
//! bf16. A step here takes random queries and a random run of consecutive tokens of a random trace,
//! in f32.
//!
//! [`train_hata`] trains one matrix per KV head instead of these networks.

mod adam;
mod batch;
mod checkpoint;
mod hata;
mod labels;
mod learner;
mod loss;
mod model;
mod recall;
mod settings;
mod train;

pub use checkpoint::Checkpoint;
pub use hata::{HataSettings, train_hata};
pub use recall::{LayerRecall, recall};
pub use settings::TrainingSettings;
pub use train::{HeldOut, TrainedMaps, Training};
