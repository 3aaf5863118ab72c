//! Checkpoints, from which an interrupted training run continues.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor, safetensors};
use serde_json::{Value, json};
use vattention_trace::{Tensors, write_beside};

use super::TrainingSettings;
use super::adam::AdamMoments;
use super::learner::{Learner, Parameters};
use crate::{Corpus, Error, Result};

const FORMAT: &str = "vattention-hash-checkpoint/1";

/// File with the state of a training run, in the folder of its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    path: PathBuf,
}

/// Content of a checkpoint.
pub(super) struct TrainingState {
    /// Layer that is being trained.
    pub(super) layer: usize,
    /// Completed steps of this layer.
    pub(super) step: usize,
    tensors: HashMap<String, Tensor>,
    path: PathBuf,
}

impl Checkpoint {
    /// Returns the checkpoint of an output file, whose name is the output's with `.checkpoint`.
    pub fn beside(output: &Path) -> Self {
        let mut name = output.as_os_str().to_owned();
        name.push(".checkpoint");
        Self { path: name.into() }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &PathBuf {
        &self.path
    }

    /// Deletes the file, if it exists.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn remove(&self) -> Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(vattention_trace::Error::File { path: self.path.clone(), source }.into())
            }
            _ => Ok(()),
        }
    }

    /// Writes the completed layers, and the layer that is being trained.
    pub(super) fn write(
        &self,
        training: &Value,
        done: &BTreeMap<usize, Parameters>,
        layer: usize,
        learner: &Learner,
    ) -> Result<()> {
        let mut tensors = Tensors::default();
        for (number, parameters) in done {
            push_all(&mut tensors, &format!("layers.{number}"), parameters)?;
        }
        push_all(&mut tensors, &format!("layers.{layer}"), &learner.parameters())?;
        for ((name, _), moments) in learner.maps.parameters().iter().zip(&learner.adam.moments) {
            push(&mut tensors, format!("first.{name}"), &moments.first)?;
            push(&mut tensors, format!("second.{name}"), &moments.second)?;
        }
        let place = json!({ "layer": layer, "step": learner.step });
        let metadata = [("format", FORMAT.into()), ("training", training.to_string())];
        let place = ("place", place.to_string());
        let metadata = metadata.into_iter().chain([place]).map(|(key, text)| (key.into(), text));
        Ok(write_beside(&self.path, &tensors.into_bytes(metadata.collect()))?)
    }

    /// Reads the state of a training run, and refuses the state of a different run.
    pub(super) fn read(&self, training: &Value) -> Result<TrainingState> {
        let refuse = |reason: String| Error::checkpoint(&self.path, reason);
        let bytes = std::fs::read(&self.path)
            .map_err(|source| vattention_trace::Error::File { path: self.path.clone(), source })?;
        let (_, header) = ::safetensors::SafeTensors::read_metadata(&bytes)
            .map_err(|error| refuse(format!("not a whole checkpoint: {error}")))?;
        let metadata = header.metadata().clone().unwrap_or_default();
        if metadata.get("format").map(String::as_str) != Some(FORMAT) {
            return Err(refuse(format!("not a checkpoint: expected the format `{FORMAT}`")));
        }
        let json = |key: &str| -> Result<Value> {
            let text = metadata.get(key).map_or("", String::as_str);
            let read = serde_json::from_str(text);
            read.map_err(|error| refuse(format!("metadata `{key}`: {error}")))
        };
        expect_same(&json("training")?, training).map_err(refuse)?;
        let place = json("place")?;
        let number = |key: &str| {
            let number = place[key].as_u64().map(|n| n as usize);
            number.ok_or_else(|| refuse(format!("metadata `place` has no `{key}`")))
        };
        let (layer, step) = (number("layer")?, number("step")?);
        let [layers, steps] = [&training["layers"], &training["steps"]];
        let is_layer = layers.as_array().is_some_and(|layers| layers.contains(&json!(layer)));
        if !is_layer || steps.as_u64().is_none_or(|steps| step as u64 > steps) {
            let expected = format!("a layer of {layers} and at most {steps} steps");
            let reason = format!("metadata `place` is {place}: expected {expected}");
            return Err(refuse(reason));
        }
        let tensors = safetensors::load_buffer(&bytes, &Device::Cpu)
            .map_err(|error| refuse(error.to_string()))?;
        Ok(TrainingState { layer, step, tensors, path: self.path.clone() })
    }
}

impl TrainingState {
    /// Returns the parameters of a completed layer.
    pub(super) fn parameters(&self, layer: usize, learner: &Learner) -> Result<Parameters> {
        let read = |(name, like): (String, Tensor)| {
            let tensor = self.tensor(&format!("layers.{layer}.{name}"), &like)?.clone();
            Ok((name, tensor))
        };
        learner.parameters().into_iter().map(read).collect()
    }

    /// Restores the layer that was being trained.
    pub(super) fn restore(&self, learner: &mut Learner) -> Result<()> {
        let Learner { maps, adam, step } = learner;
        for ((name, var), moments) in maps.parameters().into_iter().zip(&mut adam.moments) {
            var.set(self.tensor(&format!("layers.{}.{name}", self.layer), var)?)?;
            *moments = AdamMoments {
                first: self.tensor(&format!("first.{name}"), var)?.clone(),
                second: self.tensor(&format!("second.{name}"), var)?.clone(),
            };
        }
        *step = self.step;
        Ok(())
    }

    /// Returns a tensor with the type and the shape of `like`.
    ///
    /// # Errors
    /// If the checkpoint does not have such a tensor.
    fn tensor(&self, name: &str, like: &Tensor) -> Result<&Tensor> {
        let refuse = |reason: String| Error::checkpoint(&self.path, reason);
        let tensor =
            self.tensors.get(name).ok_or_else(|| refuse(format!("there is no `{name}`")))?;
        let found = (tensor.dtype(), tensor.dims());
        let expected = (like.dtype(), like.dims());
        if found != expected {
            return Err(refuse(format!("`{name}` is {found:?}: expected {expected:?}")));
        }
        Ok(tensor)
    }
}

/// Returns everything that must be equal in a checkpoint and in the training run that continues
/// from the checkpoint.
pub(super) fn identity(corpus: &Corpus, settings: &TrainingSettings, held_out: bool) -> Value {
    let traces: Vec<String> = corpus.paths().map(|path| path.display().to_string()).collect();
    let layers: Vec<usize> = corpus.layers().map(|(number, _)| number).collect();
    let mut all = json!({ "traces": traces, "layers": layers, "held_out": held_out });
    if let (Value::Object(all), Value::Object(settings)) = (&mut all, json!(settings)) {
        all.extend(settings);
    }
    all
}

fn expect_same(found: &Value, expected: &Value) -> Result<(), String> {
    let empty = serde_json::Map::new();
    for (key, expected) in expected.as_object().unwrap_or(&empty) {
        if &found[key] != expected {
            let found = &found[key];
            return Err(format!("was made with {key} = {found}; expected {expected} to continue"));
        }
    }
    Ok(())
}

/// Adds the parameters of a layer.
fn push_all(tensors: &mut Tensors, prefix: &str, parameters: &[(String, Tensor)]) -> Result<()> {
    parameters
        .iter()
        .try_for_each(|(name, tensor)| push(tensors, format!("{prefix}.{name}"), tensor))
}

fn push(tensors: &mut Tensors, name: String, tensor: &Tensor) -> Result<()> {
    let numbers: Vec<f32> = tensor.flatten_all()?.to_vec1()?;
    tensors.push_f32(name, tensor.dims(), &numbers);
    Ok(())
}
