//! Token selectors, one strategy per file.
//!
//! Linking this crate makes them known to pipeline files; the `vattention` facade does.

#[cfg(test)]
mod clusters_golden;
mod double_sparsity;
mod duo_attention;
mod fastgen;
mod h2o;
mod hash_attention;
mod index_of;
mod inf_llm;
mod kept;
mod learned;
mod loki;
mod magic_pig;
mod network;
mod oracle_top_k;
mod oracle_top_p;
mod per_token;
#[cfg(test)]
mod picked;
mod pq_cache;
mod quest;
mod received;
mod retrieval_attention;
mod scissorhands;
mod sink;
mod snapkv;
mod sparq;
mod squeezed_attention;
mod tactic;
mod top_p;
mod twilight;
mod window;

use vattention_core::{Error, Result, Selector};

pub use double_sparsity::{DoubleSparsity, Importance};
pub use duo_attention::DuoAttention;
pub use fastgen::FastGen;
pub use h2o::H2o;
pub use hash_attention::{Bits, Codes, HashAttention, HashIndex};
pub use index_of::IndexOf;
pub use inf_llm::InfLlm;
pub use loki::Loki;
pub use magic_pig::MagicPig;
pub use network::{Activation, Affine, CodeMap, Network};
pub use oracle_top_k::OracleTopK;
pub use oracle_top_p::{MassOf, OracleTopP};
pub use pq_cache::{Codebook, Metric, PartBits, PartCodes, PartTable, PqCache};
pub use quest::Quest;
pub use retrieval_attention::RetrievalAttention;
pub use scissorhands::Scissorhands;
pub use sink::Sink;
pub use snapkv::{Odd, Pooling, SnapKv};
pub use sparq::SparQ;
pub use squeezed_attention::{Coarse, SqueezedAttention};
pub use tactic::Tactic;
pub use twilight::Twilight;
pub use window::Window;

/// What building a component gives: the worker, or an error that names the component.
fn built(
    component: &str,
    worker: Result<impl Selector + 'static, String>,
) -> Result<Box<dyn Selector>> {
    named(component, worker).map(|worker| Box::new(worker) as _)
}

/// A result, with the reason why there is none as the error of a component.
fn named<T>(component: &str, result: Result<T, String>) -> Result<T> {
    result.map_err(|reason| Error::Build { component: component.into(), reason })
}
