//! Training the maps of `hash-attention`.
//!
//! For each query head, one network sends its queries and one the keys to `bits` numbers; their
//! signs are the codes. In training `tanh` stands for the sign, and
//! `s = Σ tanh(query bit) · tanh(key bit)` is the logit of "this key is one of the `top` with the
//! largest `q·k`", under binary cross-entropy with positives weighted. All heads of a layer learn at
//! once, one layer after the other.
//!
//! Desai, Yang, Cuadron, Zaharia, Gonzalez, Stoica (2024), "HashAttention: Semantic Sparsity for
//! Faster Inference", <https://arxiv.org/abs/2412.14468>. Where the authors go through documents
//! once, a step here takes random queries and a random run of the tokens of a random trace; and f32
//! is used throughout, where they use bf16.
//!
//! [`train_hata`] trains one matrix for each KV head in place of these networks.

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
pub use train::{HeldOut, Training, Weights};
