//! Tensors of a directory: one safetensors file, or several and an index. Only the tensors of the
//! language model are read of a multimodal model.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::names::hugging_face_name;
use super::nesting::Nesting;
use super::shard::WeightShard;
use crate::family::{Family, LLAMA_LIKE};
use crate::files::{find_gguf, read_json};
use crate::matrix::Matrix;
use crate::{Error, Result};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Suffix of tensors of old checkpoints that hold the rotary frequencies, which are computed here.
const IGNORED: &str = ".rotary_emb.inv_freq";

/// Tensors of a directory that have not been taken yet.
#[derive(Debug)]
pub(crate) struct Folder {
    /// File that lists the tensors.
    listing: PathBuf,
    shards: Vec<WeightShard>,
    /// Index into `shards` for each tensor of the language model.
    places: BTreeMap<String, usize>,
    nesting: Nesting,
    /// Family of the model, whose names the tensors have.
    family: &'static Family,
}

#[derive(Debug, Deserialize)]
struct ShardIndex {
    weight_map: BTreeMap<String, String>,
}

impl Folder {
    /// Opens the files of a directory, and checks that they are complete and hold the tensors of
    /// the index. Numbers are read when a tensor is taken.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let (single, index) = (dir.join(SINGLE), dir.join(INDEX));
        if single.exists() {
            let shard = WeightShard::open(&single)?;
            let places = shard.names().map(|name| (name.to_owned(), 0)).collect();
            Ok(Self::new(single, vec![shard], places))
        } else if index.exists() {
            Self::open_shards(dir, index)
        } else {
            let reason = match find_gguf(dir) {
                Some(advice) => format!("neither {SINGLE} nor {INDEX}; {advice}"),
                None => format!("expected {SINGLE} or {INDEX} in this directory"),
            };
            Err(Error::checkpoint(dir, reason))
        }
    }

    fn open_shards(dir: &Path, listing: PathBuf) -> Result<Self> {
        let index: ShardIndex = read_json(&listing)?;
        let files: Vec<&String> =
            index.weight_map.values().collect::<BTreeSet<_>>().into_iter().collect();
        let outside = |file: &str| Path::new(file).file_name().is_none_or(|name| name != file);
        if let Some(file) = files.iter().find(|file| outside(file)) {
            let reason = format!("`weight_map` names {file:?}; expected a file of this directory");
            return Err(Error::checkpoint(&listing, reason));
        }
        let shards: Vec<WeightShard> =
            files.iter().map(|file| WeightShard::open(&dir.join(file))).collect::<Result<_>>()?;
        let mut places = BTreeMap::new();
        for (name, file) in &index.weight_map {
            let place = files.binary_search(&file).unwrap_or_default();
            if !shards[place].names().any(|held| held == name) {
                let reason = format!("no tensor `{name}`, which {INDEX} says is here");
                return Err(Error::checkpoint(shards[place].path(), reason));
            }
            places.insert(name.clone(), place);
        }
        Ok(Self::new(listing, shards, places))
    }

    fn new(
        listing: PathBuf,
        shards: Vec<WeightShard>,
        mut places: BTreeMap<String, usize>,
    ) -> Self {
        let nesting = Nesting::find(places.keys().map(String::as_str));
        places.retain(|name, _| nesting.contains(name));
        Self { listing, shards, places, nesting, family: &LLAMA_LIKE }
    }

    /// Files that contain the tensors.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        self.shards.iter().map(|shard| shard.path().into()).collect()
    }

    pub(super) fn set_family(&mut self, family: &'static Family) {
        self.family = family;
    }

    pub(super) fn family(&self) -> &'static Family {
        self.family
    }

    /// Returns the name of a tensor in this directory.
    pub(super) fn name(&self, name: &str) -> String {
        self.nesting.nest(&hugging_face_name(self.family, name))
    }

    /// Returns the name of a tensor of all experts, which has no suffix.
    pub(super) fn joined_name(&self, name: &str) -> String {
        self.name(name).trim_end_matches(".weight").to_owned()
    }

    /// Reads a matrix of this shape: in bf16 if it is stored in bf16, otherwise in f32.
    pub(crate) fn matrix(&mut self, name: &str, shape: [usize; 2]) -> Result<Matrix> {
        let name = &self.name(name);
        self.take_shard(name, &shape)?.matrix(name, shape)
    }

    /// Reads matrices of these numbers of rows from a tensor of this shape.
    pub(super) fn matrices(
        &mut self,
        name: &str,
        shape: [usize; 2],
        rows: &[usize],
    ) -> Result<Vec<Matrix>> {
        let name = &self.name(name);
        self.take_shard(name, &shape)?.matrices(name, shape, rows)
    }

    /// Reads a vector of `size` elements.
    pub(crate) fn vector(&mut self, name: &str, size: usize) -> Result<Vec<f32>> {
        let name = &self.name(name);
        self.take_shard(name, &[size])?.numbers(name, &[size])
    }

    /// Takes a tensor, named as in the directory, that is expected to have this shape, and returns
    /// its shard.
    pub(super) fn take_shard(&mut self, name: &str, shape: &[usize]) -> Result<&mut WeightShard> {
        let Some(place) = self.places.remove(name) else {
            let reason = format!("no tensor `{name}`; expected one of shape {shape:?}");
            return Err(Error::checkpoint(&self.listing, reason));
        };
        Ok(&mut self.shards[place])
    }

    /// Returns whether a tensor of this name exists and has not been taken yet.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.places.contains_key(&self.name(name))
    }

    /// Returns whether all tensors of a layer have been taken.
    pub(super) fn is_layer_taken(&self, layer: usize) -> bool {
        let prefix = self.nesting.nest(&format!("model.layers.{layer}."));
        !self.places.keys().any(|name| name.starts_with(&prefix) && !name.ends_with(IGNORED))
    }

    /// Bytes in memory of the tensors that have not been taken yet.
    pub(crate) fn bytes(&self) -> u64 {
        let counted = |(name, _): &(&String, &usize)| !name.ends_with(IGNORED);
        let places = self.places.iter().filter(counted);
        places.map(|(name, &place)| self.shards[place].bytes_in_memory(name)).sum()
    }

    /// Refuses tensors that have not been taken: they do not belong to the configured model.
    pub(crate) fn finish(self) -> Result<()> {
        match self.places.iter().find(|(name, _)| !name.ends_with(IGNORED)) {
            None => Ok(()),
            Some((name, &place)) => {
                let reason = format!("tensor `{name}` has no place in the model of config.json");
                Err(Error::checkpoint(self.shards[place].path(), reason))
            }
        }
    }
}
