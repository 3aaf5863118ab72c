//! Checkpoints, backends and pipelines for the tests.

pub(crate) mod gguf_file;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use vattention_backends::{Cpu, Reference};
use vattention_config::Loader;
use vattention_core::{Backend, PipelineConfig};
use {vattention_estimators as _, vattention_selectors as _};

pub(crate) const CASES: [&str; 32] = [
    "llama3",
    "llama-sharded",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen3-moe",
    "qwen3-moe-mixed",
    "qwen2-yarn",
    "ministral3",
    "mistral-window",
    "qwen2-window",
    "gemma2",
    "gemma3",
    "gemma3-multimodal",
    "mistral3-multimodal",
    "llama4",
    "llama4-unnormalised",
    "gpt-oss",
    "gpt-oss-mxfp4",
    "phi3",
    "phi3-window",
    "granite",
    "smollm3",
    "smollm3-window",
    "olmo2",
    "olmo3",
    "mixtral",
    "glm",
    "glm4",
    "seed-oss",
    "ernie4.5",
    "exaone4",
];

/// Returns the cases that have layers without a window, which follow the pipeline.
pub(crate) fn cases_with_full_layers() -> impl Iterator<Item = &'static str> {
    let sliding = ["mistral-window", "mistral3-multimodal", "phi3-window"];
    CASES.into_iter().filter(move |name| !sliding.contains(name))
}

pub(crate) fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Copies a case, for tests that damage it.
pub(crate) fn copy(name: &str) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(case(name)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    copy
}

pub(crate) fn backends() -> [Box<dyn Backend>; 2] {
    [Box::new(Reference), Box::new(Cpu::default())]
}

pub(crate) fn dense() -> Arc<PipelineConfig> {
    Arc::new(PipelineConfig::default())
}

/// Sink, window, the tokens of the largest logits, and a sample without a promise.
pub(crate) fn sparse() -> Arc<PipelineConfig> {
    let text = r#"
        [[selectors]]
        type = "sink"
        size = 4

        [[selectors]]
        type = "window"
        size = 16

        [[selectors]]
        type = "oracle-top-k"
        size = 32

        [sampler]
        base = 64

        [estimator]
        type = "ratio"
        delta = 0.1
        size = 100
    "#;
    Loader::default().parse("sparse.toml", text).unwrap()
}

/// The largest logits, and a sample as large as its promise requires.
pub(crate) fn promised() -> Arc<PipelineConfig> {
    let text = r#"
        [[selectors]]
        type = "oracle-top-k"
        size = 100

        [estimator]
        type = "ratio"
        epsilon = 0.5
        delta = 0.2
    "#;
    Loader::default().parse("promised.toml", text).unwrap()
}

/// SnapKV, which keeps the tokens that the last queries of a prompt vote for.
pub(crate) fn snapkv() -> Arc<PipelineConfig> {
    let text = r#"
        [[selectors]]
        type = "snapkv"
        size = 40
        window = 32
    "#;
    Loader::default().parse("snapkv.toml", text).unwrap()
}
