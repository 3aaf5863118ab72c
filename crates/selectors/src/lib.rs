//! Token selectors, one strategy per file.
//!
//! Linking this crate registers the selectors, so that pipeline files can name them. The
//! `vattention` facade links it.

mod ark_vale;
mod block_scores;
mod cluster_kv;
#[cfg(test)]
mod clusters_golden;
mod direction_clusters;
mod double_sparsity;
mod duo_attention;
mod fastgen;
mod h2o;
mod hash_attention;
mod index_scope;
mod inf_llm;
mod kept_tokens;
mod loki;
mod magic_pig;
mod network;
mod oracle_top_k;
mod oracle_top_p;
mod pq_cache;
mod predicted_logits;
mod prompt_attention;
mod prompt_eviction;
mod quest;
mod received_attention;
mod retrieval_attention;
mod reuse;
mod rotated_codes;
mod scissorhands;
mod sink;
mod snapkv;
mod socket;
mod sparq;
mod squeezed_attention;
mod tactic;
#[cfg(test)]
mod test_picks;
mod top_p;
mod tova;
mod twilight;
mod window;

use vattention_core::{Error, Result, Selector};

pub use ark_vale::ArkVale;
pub use cluster_kv::ClusterKv;
pub use double_sparsity::{DoubleSparsity, Importance};
pub use duo_attention::DuoAttention;
pub use fastgen::FastGen;
pub use h2o::H2o;
pub use hash_attention::{Bits, Codes, HashAttention, HashIndex};
pub use index_scope::IndexScope;
pub use inf_llm::InfLlm;
pub use loki::Loki;
pub use magic_pig::MagicPig;
pub use network::{Activation, Affine, CodeMap, Network};
pub use oracle_top_k::OracleTopK;
pub use oracle_top_p::{MassScope, OracleTopP};
pub use pq_cache::{Codebook, Metric, PartBits, PartCodes, PartTable, PqCache};
pub use prompt_eviction::{EvictionScore, PromptEviction};
pub use quest::Quest;
pub use retrieval_attention::RetrievalAttention;
pub use reuse::Reuse;
pub use rotated_codes::RotatedCodesTopK;
pub use scissorhands::Scissorhands;
pub use sink::Sink;
pub use snapkv::{PoolWidth, Pooling, SnapKv};
pub use socket::Socket;
pub use sparq::SparQ;
pub use squeezed_attention::{CoarseClusters, SqueezedAttention};
pub use tactic::Tactic;
pub use tova::Tova;
pub use twilight::Twilight;
pub use window::Window;

/// Boxes a selector; an error names the component.
fn box_selector(
    component: &str,
    selector: Result<impl Selector + 'static, String>,
) -> Result<Box<dyn Selector>> {
    name_error(component, selector).map(|selector| Box::new(selector) as _)
}

/// Turns the reason of a failure into a build error of a component.
fn name_error<T>(component: &str, result: Result<T, String>) -> Result<T> {
    result.map_err(|reason| Error::Build { component: component.into(), reason })
}
