//! Built-in pipelines: the files of the folder `configs` that need no weights, found by name.

use vattention_config::NamedPipeline;
use vattention_core::inventory;

/// Registers files of the folder `configs`, named without `.toml`.
macro_rules! carry {
    ($($name:literal),* $(,)?) => {
        $(inventory::submit! {
            NamedPipeline {
                name: $name,
                text: include_str!(concat!("../configs/", $name, ".toml")),
            }
        })*
    };
}

carry![
    "dense",
    "fastgen",
    "h2o-paper",
    "h2o-sampled",
    "h2o",
    "hash-hybrid",
    "hash-hyperplanes",
    "hybrid",
    "inf-llm-paper",
    "inf-llm",
    "magic-pig-hybrid",
    "magic-pig-paper",
    "magic-pig",
    "oracle-top-k",
    "oracle-top-p",
    "pq-cache-paper",
    "pq-cache",
    "priority-layer",
    "priority-limited",
    "priority-rigorous",
    "priority",
    "pyramid-kv",
    "quest-paper",
    "quest",
    "random",
    "retrieval-attention",
    "scissorhands",
    "snapkv",
    "sparq",
    "squeezed-attention-hierarchical",
    "squeezed-attention",
    "stratified",
    "streaming-llm",
    "tactic",
    "twilight",
    "vattention-oracle",
    "vattention-paper-denominator-clt",
    "vattention-paper-denominator-hoeffding",
    "vattention-paper-denominator-sub-gaussian",
    "vattention-paper-numerator-clt",
    "vattention-paper-numerator-hoeffding",
    "vattention-paper-sdpa-clt",
    "vattention-paper-sdpa-hoeffding",
    "vattention-rigorous",
    "vattention-strict",
];
