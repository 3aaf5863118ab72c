//! Experts of a layer, in each layout of checkpoints.

use super::CheckpointTensors;
use super::folder::Folder;
use crate::Result;
use crate::config::Experts;
use crate::family::{ExpertLayout, JoinedColumns};
use crate::gguf::Gguf;
use crate::matrix::Matrix;

/// Linear maps of all experts of a layer.
pub(crate) struct ExpertMaps {
    pub(crate) gates: Vec<ExpertMap>,
    pub(crate) ups: Vec<ExpertMap>,
    pub(crate) downs: Vec<ExpertMap>,
}

/// Linear map of an expert.
pub(crate) struct ExpertMap {
    /// `[outputs, inputs]`
    pub(crate) weight: Matrix,
    /// `[outputs]`
    pub(crate) bias: Option<Vec<f32>>,
}

impl CheckpointTensors {
    /// Reads the experts of a layer of a model with `hidden` elements per token.
    pub(crate) fn experts(
        &mut self,
        layer: usize,
        hidden: usize,
        config: &Experts,
    ) -> Result<ExpertMaps> {
        if let Self::Folder(folder) = self
            && let ExpertLayout::Joined(columns) = folder.family().experts
        {
            return self.read_joined(layer, hidden, config, columns);
        }
        let mut read = |part: &str, sizes: [usize; 2]| match self {
            Self::Folder(folder) => read_separate(folder, layer, part, config, sizes),
            Self::Gguf(file) => read_stacked(file, layer, part, config, sizes),
        };
        let (outer, inner) = ([hidden, config.inner], [config.inner, hidden]);
        Ok(ExpertMaps {
            gates: read("ffn_gate_exps", outer)?,
            ups: read("ffn_up_exps", outer)?,
            downs: read("ffn_down_exps", inner)?,
        })
    }

    /// Reads tensors that hold all experts. Biases of gate and up alternate.
    fn read_joined(
        &mut self,
        layer: usize,
        hidden: usize,
        config: &Experts,
        columns: JoinedColumns,
    ) -> Result<ExpertMaps> {
        let Experts { count, inner, biased, .. } = *config;
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let [gate_up, down] = ["ffn_gate_up_exps", "ffn_down_exps"].map(name);
        let pairs = self.joined_matrices::<2>(&gate_up, count, [2 * inner, hidden], columns)?;
        let downs = self.joined_matrices::<1>(&down, count, [hidden, inner], columns)?;
        let (mut gate_biases, mut up_biases) = (vec![None; count], vec![None; count]);
        let mut down_biases = vec![None; count];
        if biased {
            let both = self.joined_biases(&gate_up, count, 2 * inner)?;
            let every_second = |first: usize| {
                let select = move |bias: &Vec<f32>| {
                    Some(bias.iter().skip(first).step_by(2).copied().collect())
                };
                both.iter().map(select).collect()
            };
            (gate_biases, up_biases) = (every_second(0), every_second(1));
            down_biases = self.joined_biases(&down, count, hidden)?.into_iter().map(Some).collect();
        }
        let (gates, ups): (Vec<_>, Vec<_>) = pairs.into_iter().map(|[gate, up]| (gate, up)).unzip();
        let downs = downs.into_iter().map(|[down]| down).collect();
        Ok(ExpertMaps {
            gates: join(gates, gate_biases),
            ups: join(ups, up_biases),
            downs: join(downs, down_biases),
        })
    }

    /// Reads the matrices of all experts, `[outputs, inputs]`: numbers `[experts, inputs, outputs]`
    /// in the order of `columns`, or blocks in MXFP4, of which output `i` belongs to matrix
    /// `i % N`.
    fn joined_matrices<const N: usize>(
        &mut self,
        name: &str,
        count: usize,
        shape: [usize; 2],
        columns: JoinedColumns,
    ) -> Result<Vec<[Matrix; N]>> {
        let Self::Folder(folder) = self else { unreachable!("joined experts of a folder") };
        let name = folder.joined_name(name);
        if folder.has(&format!("{name}_blocks")) {
            return self.mxfp4_experts(&name, count, shape);
        }
        let shape = [count, shape[1], shape[0]];
        folder.take_shard(&name, &shape)?.transposed_matrices(&name, shape, columns)
    }

    fn joined_biases(&mut self, name: &str, count: usize, size: usize) -> Result<Vec<Vec<f32>>> {
        let Self::Folder(folder) = self else { unreachable!("joined experts of a folder") };
        let name = format!("{}_bias", folder.joined_name(name));
        let numbers = folder.take_shard(&name, &[count, size])?.numbers(&name, &[count, size])?;
        Ok(numbers.chunks_exact(size).map(<[f32]>::to_vec).collect())
    }
}

/// Reads one tensor for each expert.
fn read_separate(
    folder: &mut Folder,
    layer: usize,
    part: &str,
    config: &Experts,
    [inputs, outputs]: [usize; 2],
) -> Result<Vec<ExpertMap>> {
    let mut maps = Vec::with_capacity(config.count);
    for expert in 0..config.count {
        let name = |kind: &str| {
            let name = folder.name(&format!("blk.{layer}.{part}.{kind}"));
            name.replace("{}", &expert.to_string())
        };
        let (weight, bias) = (name("weight"), name("bias"));
        let weight = folder.matrix(&weight, [outputs, inputs])?;
        let bias = config.biased.then(|| folder.vector(&bias, outputs)).transpose()?;
        maps.push(ExpertMap { weight, bias });
    }
    Ok(maps)
}

/// Reads one tensor that has the experts one after the other.
fn read_stacked(
    file: &mut Gguf,
    layer: usize,
    part: &str,
    config: &Experts,
    [inputs, outputs]: [usize; 2],
) -> Result<Vec<ExpertMap>> {
    let count = config.count;
    let name = |kind: &str| format!("blk.{layer}.{part}.{kind}");
    let weights =
        file.matrices(&name("weight"), &[count, outputs, inputs], &vec![outputs; count])?;
    let mut biases = vec![None; count];
    if config.biased {
        let numbers = file.numbers(&name("bias"), &[count, outputs])?;
        biases = numbers.chunks_exact(outputs).map(|bias| Some(bias.to_vec())).collect();
    }
    Ok(join(weights, biases))
}

fn join(weights: Vec<Matrix>, biases: Vec<Option<Vec<f32>>>) -> Vec<ExpertMap> {
    weights.into_iter().zip(biases).map(|(weight, bias)| ExpertMap { weight, bias }).collect()
}
