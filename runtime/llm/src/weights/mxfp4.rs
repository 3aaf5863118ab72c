//! Experts in MXFP4 as Hugging Face stores them: two tensors of bytes.
//!
//! The names end in `_blocks`, `[experts, outputs, inputs / 32, 16]`, and in `_scales`,
//! `[experts, outputs, inputs / 32]`. A byte has two neighbouring weights, the first one in its low
//! half; a byte of a GGUF file has weights that are half a block apart.

use rayon::prelude::*;

use super::CheckpointTensors;
use super::folder::Folder;
use crate::matrix::Matrix;
use crate::packed::{BLOCK, LARGEST_EXPONENT, PackedMatrix, QuantFormat};
use crate::{Error, Result};

/// Bytes of the weights of a block.
const PAIRS: usize = BLOCK / 2;

/// Blocks and scales of some rows.
#[derive(Clone, Copy)]
struct Mxfp4Rows<'a> {
    /// `[rows, blocks, 16]`
    pairs: &'a [u8],
    /// `[rows, blocks]`
    scales: &'a [u8],
    /// Number of blocks of a row.
    blocks: usize,
}

impl CheckpointTensors {
    /// Reads the matrices of `count` experts in MXFP4 from `{name}_blocks` and `{name}_scales`. A
    /// stored matrix `[outputs, inputs]` is split into `PARTS` matrices: output `i` belongs to
    /// matrix `i % PARTS`.
    ///
    /// # Errors
    /// [`Error::File`], or [`Error::Checkpoint`] with the tensor: it is missing, its shape or
    /// number type is another one, or a scale is not finite.
    ///
    /// # Panics
    /// If `outputs` is not a multiple of `PARTS`.
    pub(crate) fn mxfp4_experts<const PARTS: usize>(
        &mut self,
        name: &str,
        count: usize,
        shape: [usize; 2],
    ) -> Result<Vec<[Matrix; PARTS]>> {
        assert!(shape[0].is_multiple_of(PARTS), "equal parts");
        match self {
            Self::Folder(folder) => read_experts(folder, name, count, shape),
            Self::Gguf(file) => {
                let reason = format!("no tensor `{name}_blocks`; expected one tensor per part");
                Err(Error::checkpoint(file.path(), reason))
            }
        }
    }
}

fn read_experts<const PARTS: usize>(
    folder: &mut Folder,
    name: &str,
    count: usize,
    [outputs, inputs]: [usize; 2],
) -> Result<Vec<[Matrix; PARTS]>> {
    let shape = [count, outputs, inputs / BLOCK, PAIRS];
    let pairs_name = format!("{name}_blocks");
    let shard = folder.take_shard(&pairs_name, &shape)?;
    if !inputs.is_multiple_of(BLOCK) {
        let reason = format!(" has blocks of {BLOCK} weights; expected rows of {inputs}");
        return Err(shard.refuse(&pairs_name, &reason));
    }
    let pairs = shard.byte_tensor(&pairs_name, &shape)?;
    let scales_name = format!("{name}_scales");
    let shard = folder.take_shard(&scales_name, &shape[..3])?;
    let scales = shard.byte_tensor(&scales_name, &shape[..3])?;
    if let Some(i) = scales.iter().position(|&scale| scale > LARGEST_EXPONENT) {
        let reason = format!(
            ": number {i} is {}, a scale with weights that are not finite; expected at most \
             {LARGEST_EXPONENT}",
            scales[i]
        );
        return Err(shard.refuse(&scales_name, &reason));
    }
    let size = outputs * inputs / BLOCK;
    let experts = pairs.par_chunks_exact(size * PAIRS).zip(scales.par_chunks_exact(size));
    let experts = experts.map(|(pairs, scales)| {
        let rows = Mxfp4Rows { pairs, scales, blocks: inputs / BLOCK };
        std::array::from_fn(|part| rows.pack(part, PARTS))
    });
    Ok(experts.collect())
}

impl Mxfp4Rows<'_> {
    /// Packs every row of `step` rows, beginning with row `first`.
    fn pack(self, first: usize, step: usize) -> Matrix {
        let rows = self.scales.len() / self.blocks;
        let mut bytes = Vec::with_capacity(self.scales.len() / step * (1 + PAIRS));
        for row in (first..rows).step_by(step) {
            for block in row * self.blocks..(row + 1) * self.blocks {
                bytes.push(self.scales[block]);
                bytes.extend(separate_halves(&self.pairs[block * PAIRS..][..PAIRS]));
            }
        }
        let shape = [rows / step, self.blocks * BLOCK];
        let packed = PackedMatrix::new(QuantFormat::Mxfp4, &bytes, shape);
        Matrix::packed(packed.expect("the scales are finite"))
    }
}

/// Reorders the nibbles of a block from neighbours in a byte to the halves of the block.
fn separate_halves(pairs: &[u8]) -> [u8; PAIRS] {
    let nibble = |i: usize| pairs[i / 2] >> (4 * (i % 2)) & 15;
    std::array::from_fn(|i| nibble(i) | nibble(i + PAIRS) << 4)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::path::{Path, PathBuf};

    use candle_core::{Device, Tensor, safetensors};

    use super::*;

    const NAME: &str = "model.layers.0.mlp.experts.gate_up_proj";
    const SHAPE: [usize; 2] = [6, 64];

    fn golden() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/mxfp4")
    }

    /// The expected numbers are those of transformers (`tools/make_mxfp4_golden.py`).
    #[test]
    fn weights_are_those_of_transformers() {
        let path = golden().join("golden.safetensors");
        let expected = safetensors::load(path, &Device::Cpu).unwrap().remove(NAME).unwrap();
        let expected: Vec<Vec<Vec<f32>>> = expected.to_vec3().unwrap();
        assert_eq!(expected.len(), 3);
        let open = || CheckpointTensors::open(&golden()).unwrap();
        let mut weights = open();
        let whole = weights.mxfp4_experts::<1>(NAME, 3, SHAPE).unwrap();
        weights.finish().unwrap();
        let pairs = open().mxfp4_experts::<2>(NAME, 3, SHAPE).unwrap();
        for (expert, rows) in expected.iter().enumerate() {
            for (i, row) in rows.iter().enumerate() {
                assert_eq!(&whole[expert][0].row(i), row, "expert {expert}, row {i}");
                let part = &pairs[expert][i % 2];
                assert_eq!(&part.row(i / 2), row, "expert {expert}, row {i} of a part");
                assert_eq!(part.outputs(), 3);
            }
        }
    }

    #[test]
    fn memory_is_that_of_the_file() {
        let CheckpointTensors::Folder(folder) = CheckpointTensors::open(&golden()).unwrap() else {
            panic!("a folder")
        };
        assert_eq!(folder.bytes(), 3 * 6 * 2 * 17);
    }

    /// Error for the golden tensors with one of them replaced, after the name of the file.
    fn refusal(name: &str, tensor: Option<Tensor>, shape: [usize; 2]) -> String {
        let mut tensors: HashMap<String, Tensor> =
            safetensors::load(golden().join("model.safetensors"), &Device::Cpu).unwrap();
        let name = format!("{NAME}{name}");
        match tensor {
            Some(tensor) => tensors.insert(name, tensor),
            None => tensors.remove(&name),
        };
        let folder = tempfile::tempdir().unwrap();
        safetensors::save(&tensors, folder.path().join("model.safetensors")).unwrap();
        let mut weights = CheckpointTensors::open(folder.path()).unwrap();
        let error = weights.mxfp4_experts::<1>(NAME, 3, shape).unwrap_err().to_string();
        error.split_once(".safetensors: ").unwrap().1.to_owned()
    }

    #[test]
    fn wrong_tensors_are_named() {
        let bytes =
            |shape: &[usize], byte: u8| Tensor::full(byte, shape, &Device::Cpu).map(Some).unwrap();
        let cases = [
            ("_scales", None, "_scales`; expected one of shape [3, 6, 2]"),
            ("_blocks", None, "_blocks`; expected one of shape [3, 6, 2, 16]"),
            ("_scales", bytes(&[3, 6, 3], 1), "_scales` has shape [3, 6, 3]; expected [3, 6, 2]"),
            ("_blocks", bytes(&[3, 6, 32], 1), "has shape [3, 6, 32]; expected [3, 6, 2, 16]"),
            (
                "_scales",
                bytes(&[3, 6, 2], 255),
                "_scales`: number 0 is 255, a scale with weights that are not finite; expected at \
                 most 252",
            ),
            (
                "_blocks",
                Some(Tensor::zeros((3, 6, 2, 16), candle_core::DType::F32, &Device::Cpu).unwrap()),
                "_blocks` is F32; expected U8",
            ),
        ];
        for (name, tensor, expected) in cases {
            let message = refusal(name, tensor, SHAPE);
            assert!(message.contains(expected), "{message}; expected {expected}");
        }
        let message = refusal("", bytes(&[1], 0), [6, 70]);
        assert!(message.ends_with("has blocks of 32 weights; expected rows of 70"), "{message}");
    }
}
