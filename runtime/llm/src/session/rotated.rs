//! Rotation of queries, keys and values, before keys and values are stored in 8 bits.
//!
//! A row of 8 bits has one scale, which its largest element sets: a channel with large numbers, as
//! the biases of some models give to keys, makes all others coarse. A random orthogonal rotation
//! `R` spreads such a channel over all elements. It changes no product of a query and a key,
//! `(R q)·(R k) = q·k`. Values are rotated by another rotation, by whose inverse the output is
//! rotated back. All heads and layers of all sequences have the same rotations, because saved
//! sessions contain rotated rows.
//!
//! Cost: O(heads · dim log dim) for each token and layer.
//!
//! Ashkboos et al. (2024), "QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs",
//! <https://arxiv.org/abs/2404.00456>.

use ndarray::{Array3, ArrayView3};
use vattention_core::step::Stream;
use vattention_core::{Attention, PipelineConfig, Shape, Site, Storage, TokenClass};
use vattention_index::Rotation;

/// Purpose of the streams that draw the rotations; no other stream has this purpose.
const PURPOSE: u16 = u16::MAX - 5;

/// Returns true if a sequence rotates its rows: if they are stored in 8 bits, and no part of the
/// pipeline depends on single channels.
pub fn rotates_rows(pipeline: &PipelineConfig, storage: Storage) -> bool {
    storage == Storage::Q8 && pipeline.is_rotation_invariant()
}

/// Rotations of the rows of one model.
#[derive(Clone, Debug)]
pub(super) struct RowRotations {
    /// Rotation of queries and keys.
    keys: Rotation,
    values: Rotation,
}

impl RowRotations {
    pub(super) fn new(shape: Shape) -> Self {
        let place = Site { seed: 0, sequence: 0, layer: 0, kv_head: 0, shape };
        let rotation = |member, dim| Rotation::new(dim, &Stream::new(&place, PURPOSE, 0, member));
        Self { keys: rotation(0, shape.head_dim), values: rotation(1, shape.value_dim) }
    }

    /// Rotates queries or keys, `[_, _, head_dim]`.
    pub(super) fn rotate_keys(&self, rows: ArrayView3<'_, f32>) -> Array3<f32> {
        rotate(&self.keys, rows)
    }

    /// Rotates values, `[_, _, value_dim]`.
    pub(super) fn rotate_values(&self, rows: ArrayView3<'_, f32>) -> Array3<f32> {
        rotate(&self.values, rows)
    }

    /// Rotates queries, keys and values.
    pub(super) fn rotate_rows(
        &self,
        [queries, keys, values]: [ArrayView3<'_, f32>; 3],
    ) -> [Array3<f32>; 3] {
        [self.rotate_keys(queries), self.rotate_keys(keys), self.rotate_values(values)]
    }

    /// Rotates attention outputs back, rows of `value_dim` elements.
    pub(super) fn restore_outputs(&self, outputs: &mut [f32], value_dim: usize) {
        outputs.chunks_exact_mut(value_dim).for_each(|row| self.values.undo(row));
    }
}

fn rotate(rotation: &Rotation, rows: ArrayView3<'_, f32>) -> Array3<f32> {
    let mut rotated = rows.as_standard_layout().into_owned();
    for mut row in rotated.rows_mut() {
        rotation.apply(row.as_slice_mut().expect("rows in standard order"));
    }
    rotated
}

/// Appends keys and values, `[kv_heads, tokens, dim]`, after the rotations.
pub(super) fn append_rows(
    attention: &mut dyn Attention,
    rotations: Option<&RowRotations>,
    [keys, values]: [ArrayView3<'_, f32>; 2],
    classes: Option<&[TokenClass]>,
) -> vattention_core::Result<()> {
    let Some(rotations) = rotations else {
        return attention.append_rows(keys.into(), values.into(), classes);
    };
    let (keys, values) = (rotations.rotate_keys(keys), rotations.rotate_values(values));
    attention.append_rows(keys.view().into(), values.view().into(), classes)
}

/// Makes the selectors observe a prompt's queries, `[query_heads, queries, head_dim]`, after the
/// rotations.
pub(super) fn observe(
    attention: &mut dyn Attention,
    rotations: Option<&RowRotations>,
    queries: &Array3<f32>,
) -> vattention_core::Result<()> {
    let rotated = rotations.map(|rotations| rotations.rotate_keys(queries.view()));
    attention.observe(rotated.as_ref().unwrap_or(queries).view())
}
