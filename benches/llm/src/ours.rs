//! This library's session, with a context of random keys and values.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use ndarray::Array3;
use ndarray_rand::RandomExt;
use ndarray_rand::rand_distr::StandardNormal;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use vattention::config::Loader;
use vattention::{Options, PipelineConfig, Shape, Storage};
use vattention_llm::{Model, Session, most_likely_token};

use crate::clock::{Clocked, Log};
use crate::report::{Parts, Step};
use crate::{BenchResult, Decoder};

/// A sequence and its next token.
pub(crate) struct Ours<'m> {
    session: Session<'m>,
    log: Log,
    token: u32,
}

/// Name of the pipeline in tables.
pub(crate) fn name(file: Option<&PathBuf>) -> String {
    let stem =
        file.map_or("dense".into(), |file| file.file_stem().unwrap_or_default().to_string_lossy());
    format!("vattention {stem}")
}

/// Keys `[kv_heads, tokens, head_dim]` and values of a layer, with a standard normal distribution.
pub(crate) fn keys_values(shape: Shape, tokens: usize) -> (Array3<f32>, Array3<f32>) {
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let mut random =
        |dim| Array3::random_using((shape.kv_heads, tokens, dim), StandardNormal, &mut rng);
    (random(shape.head_dim), random(shape.value_dim))
}

impl<'m> Ours<'m> {
    pub(crate) fn new(
        model: &'m Model,
        file: Option<&PathBuf>,
        storage: &str,
        keys_values: &(Array3<f32>, Array3<f32>),
    ) -> BenchResult<Self> {
        let pipeline = match file {
            Some(file) => Loader::default().load(file)?,
            None => Arc::new(PipelineConfig::default()),
        };
        let storage = match storage {
            "f16" => Storage::F16,
            "bf16" => Storage::Bf16,
            _ => Storage::F32,
        };
        let log = Log::default();
        let inner = vattention::backend("cpu").ok_or("there is no backend `cpu`")?;
        let backend = Clocked { inner, log: log.clone() };
        let options = Options { storage, ..Options::default() };
        let session = Session::new(model, &backend, &pipeline, &options)?;
        let tokens = keys_values.0.dim().1;
        let session = session.with_context(tokens, |_| keys_values.clone())?;
        Ok(Self { session, log, token: 0 })
    }
}

impl Decoder for Ours<'_> {
    fn step(&mut self) -> BenchResult<Step> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let start = Instant::now();
        let logits = self.session.step(self.token)?;
        let end = Instant::now();
        self.token = most_likely_token(&logits)?;
        let calls = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Step {
            seconds: (end - start).as_secs_f64(),
            read: self.session.density(),
            parts: Parts::from_calls(start, &calls, end),
        })
    }
}
