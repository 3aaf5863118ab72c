//! Training loop over layers and steps.

use std::collections::BTreeMap;

use candle_core::Tensor;
use half::f16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use safetensors::Dtype;
use serde_json::Value;
use vattention_core::Shape;
use vattention_trace::{Tensors, TraceLayer};

use super::adam::Adam;
use super::batch::{Batch, below};
use super::checkpoint::identity;
use super::learner::{Learner, Parameters};
use super::model::Maps;
use super::{Checkpoint, TrainingSettings};
use crate::{Corpus, Error, Result};

/// Steps between two checkpoints.
const CHECKPOINT_STEPS: usize = 100;

/// Held-out data, on which recall is measured and which training must not use.
#[derive(Clone, Copy, Debug)]
pub enum HeldOut<'a> {
    /// Other traces.
    Traces(&'a Corpus),
    /// The last eighth of each trace's queries, at least one.
    LastQueries,
}

/// Inputs of a training run.
#[derive(Clone, Copy, Debug)]
pub struct Training<'a> {
    /// Traces to train on.
    pub corpus: &'a Corpus,
    /// Settings of the run.
    pub settings: &'a TrainingSettings,
    /// Data that is excluded from training.
    pub held_out: HeldOut<'a>,
    /// File in which the state is stored during the run.
    pub checkpoint: &'a Checkpoint,
}

/// Trained maps of layers.
#[derive(Clone, Debug)]
pub struct TrainedMaps {
    layers: BTreeMap<usize, Parameters>,
    scale: Option<f32>,
}

impl HeldOut<'_> {
    fn has_traces(self) -> bool {
        matches!(self, Self::Traces(_))
    }

    /// Returns the number of a trace's first queries that training may use.
    pub(super) fn training_queries(self, queries: usize) -> usize {
        match self {
            Self::Traces(_) => queries,
            Self::LastQueries => queries - (queries / 8).max(1),
        }
    }
}

impl Training<'_> {
    /// Trains from the beginning or from the checkpoint. After each step, `progress` gets the
    /// number of completed steps, the number of all steps, and the loss. The checkpoint is written
    /// every 100 steps, and is not removed at the end.
    ///
    /// # Errors
    /// Settings that are out of range, held-out data or a checkpoint that do not fit, or a loss
    /// that is not finite.
    pub fn run(
        &self,
        resume: bool,
        progress: &mut dyn FnMut(usize, usize, f32),
    ) -> Result<TrainedMaps> {
        self.check()?;
        let identity = identity(self.corpus, self.settings, self.held_out.has_traces());
        let state = resume.then(|| self.checkpoint.read(&identity)).transpose()?;
        let mut layers = BTreeMap::new();
        let total = self.corpus.layers().len() * self.settings.steps;
        for (number, shape) in self.corpus.layers() {
            let before = layers.len() * self.settings.steps;
            let mut show = |step, loss| progress(before + step, total, loss);
            let mut learner = self.start(number, shape)?;
            match &state {
                Some(state) if number < state.layer => {
                    layers.insert(number, state.parameters(number, &learner)?);
                    continue;
                }
                Some(state) if number == state.layer => state.restore(&mut learner)?,
                _ => {}
            }
            self.train_layer(number, &mut learner, &identity, &layers, &mut show)?;
            layers.insert(number, learner.parameters());
        }
        Ok(TrainedMaps { layers, scale: self.corpus.scale() })
    }

    fn check(&self) -> Result<()> {
        self.settings.check()?;
        expect_held_out(self.corpus, self.held_out)
    }

    fn start(&self, number: usize, shape: Shape) -> Result<Learner> {
        let widths = self.settings.widths(shape.head_dim);
        let maps =
            Maps::random(shape.query_heads, &widths, &mut random(self.settings.seed, number, 0))?;
        let adam = Adam::new(&maps.parameters())?;
        Ok(Learner { maps, adam, step: 0 })
    }

    fn train_layer(
        &self,
        number: usize,
        learner: &mut Learner,
        identity: &Value,
        done: &BTreeMap<usize, Parameters>,
        show: &mut dyn FnMut(usize, f32),
    ) -> Result<()> {
        let traces: Vec<TraceLayer> = self.corpus.layer(number).collect::<Result<_>>()?;
        while learner.step < self.settings.steps {
            let mut random = random(self.settings.seed, number, learner.step + 1);
            let layer = &traces[below(traces.len(), &mut random)];
            let queries = self.held_out.training_queries(layer.queries.dim().1);
            let batches = Batch::draw(layer, queries, self.settings, &mut random)?;
            let loss = learner.train_step(&batches, self.settings)?;
            expect_finite(loss, learner.step, number)?;
            if learner.step.is_multiple_of(CHECKPOINT_STEPS) {
                self.checkpoint.write(identity, done, number, learner)?;
            }
            show(learner.step, loss);
        }
        Ok(())
    }
}

/// Refuses held-out traces of another model, and traces with too few queries to hold some out.
pub(super) fn expect_held_out(corpus: &Corpus, held_out: HeldOut<'_>) -> Result<()> {
    match held_out {
        HeldOut::Traces(other) => corpus.expect_same_model(other),
        HeldOut::LastQueries => corpus.expect_queries(2),
    }
}

/// Refuses a loss that is not finite, which is the result of too large a learning rate.
pub(super) fn expect_finite(loss: f32, step: usize, layer: usize) -> Result<()> {
    if loss.is_finite() {
        return Ok(());
    }
    let reason =
        format!("the loss became {loss} in step {step} of layer {layer}; expected a smaller rate");
    Err(Error::setting("learning_rate", reason))
}

/// Returns the random number generator of a step. It depends only on seed, layer and step, so that
/// a resumed run draws the same numbers. Step 0 draws the initial parameters.
pub(super) fn random(seed: u64, layer: usize, step: usize) -> ChaCha8Rng {
    let mut bytes = [0; 32];
    for (place, number) in [seed, layer as u64, step as u64].iter().enumerate() {
        bytes[8 * place..][..8].copy_from_slice(&number.to_le_bytes());
    }
    ChaCha8Rng::from_seed(bytes)
}

impl TrainedMaps {
    /// Returns the maps of layers; `scale` is the factor of queries, if the traces have one.
    pub(super) fn new(layers: BTreeMap<usize, Parameters>, scale: Option<f32>) -> Self {
        Self { layers, scale }
    }

    /// Returns the file that `hash-attention` reads. Numbers are rounded to f16, which halves the
    /// file and rarely changes a bit of a code.
    ///
    /// # Errors
    /// A number that is too large for f16, and errors of the tensor library.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut tensors = Tensors::default();
        for (number, parameters) in &self.layers {
            for (name, tensor) in parameters {
                let name = format!("layers.{number}.{name}");
                let bytes = f16_bytes(&name, tensor)?;
                tensors.push(name, Dtype::F16, tensor.dims(), &bytes);
            }
        }
        let mut metadata = BTreeMap::from([("format".into(), "vattention-hash/1".into())]);
        metadata.extend(self.scale.map(|scale| ("scale".into(), scale.to_string())));
        Ok(tensors.into_bytes(metadata))
    }
}

fn f16_bytes(name: &str, tensor: &Tensor) -> Result<Vec<u8>> {
    let numbers: Vec<f32> = tensor.flatten_all()?.to_vec1()?;
    let rounded = numbers.iter().map(|&x| f16::from_f32(x));
    let bytes: Vec<u8> = rounded.clone().flat_map(f16::to_le_bytes).collect();
    if rounded.into_iter().all(f16::is_finite) {
        return Ok(bytes);
    }
    let reason = format!("{name} became too large for f16; expected a smaller rate");
    Err(Error::setting("learning_rate", reason))
}

#[cfg(test)]
mod tests;
