//! Principal directions of keys, for Loki, which ranks tokens by their components along the first
//! directions only.
//!
//! The directions of a KV head are the eigenvectors of the mean of `k kᵀ`, computed in f64. Keys
//! are not centred, because logits are dot products with keys that are not centred. The keys in a
//! trace include the position embedding.
//!
//! Singhania, Singh, He, Feizi, Bhatele (2024), "Loki: Low-rank Keys for Efficient Sparse
//! Attention", <https://arxiv.org/abs/2406.02542>.

use std::collections::BTreeMap;

use nalgebra::{DMatrix, SymmetricEigen};
use ndarray::{ArrayView2, Axis};
use vattention_trace::{Tensors, TraceLayer};

use crate::{Corpus, Result};

const FORMAT: &str = "vattention-loki/1";

/// Bases of the KV heads of layers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bases {
    layers: BTreeMap<usize, Vec<Basis>>,
}

/// Principal directions of one KV head.
#[derive(Clone, Debug, PartialEq)]
pub struct Basis {
    /// Unit vectors by decreasing mean square, `[dim, dim]`. In each vector, the entry with the
    /// largest absolute value is positive.
    pub rows: Vec<f32>,
    /// Mean square of the keys along each direction, `[dim]`.
    pub variance: Vec<f32>,
}

impl Bases {
    /// Finds the directions of every head.
    ///
    /// # Errors
    /// Errors of [`Corpus::layer`].
    pub fn calibrate(corpus: &Corpus) -> Result<Self> {
        let mut layers = BTreeMap::new();
        for (number, shape) in corpus.layers() {
            let zero = DMatrix::zeros(shape.head_dim, shape.head_dim);
            let (mut moments, mut tokens) = (vec![zero; shape.kv_heads], 0);
            for layer in corpus.layer(number) {
                let layer = layer?;
                add_moments(&layer, &mut moments);
                tokens += layer.keys.len_of(Axis(1));
            }
            let bases = moments.into_iter().map(|moment| Basis::new(moment / tokens as f64));
            layers.insert(number, bases.collect());
        }
        Ok(Self { layers })
    }

    /// Returns the bases of a layer's KV heads.
    pub fn layer(&self, number: usize) -> Option<&[Basis]> {
        self.layers.get(&number).map(Vec::as_slice)
    }

    /// Returns the file, with f32 tensors `layers.{l}.basis` `[kv_heads, dim, dim]` and
    /// `layers.{l}.variance` `[kv_heads, dim]`.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut tensors = Tensors::default();
        for (number, bases) in &self.layers {
            let (heads, dim) = (bases.len(), bases[0].variance.len());
            let rows: Vec<f32> = bases.iter().flat_map(|basis| basis.rows.clone()).collect();
            let variance: Vec<f32> = bases.iter().flat_map(|b| b.variance.clone()).collect();
            tensors.push_f32(format!("layers.{number}.basis"), &[heads, dim, dim], &rows);
            tensors.push_f32(format!("layers.{number}.variance"), &[heads, dim], &variance);
        }
        tensors.into_bytes(BTreeMap::from([("format".into(), FORMAT.into())]))
    }
}

impl Basis {
    /// Computes the eigenvectors of a mean of `k kᵀ`.
    fn new(moment: DMatrix<f64>) -> Self {
        let dim = moment.nrows();
        let eigen = SymmetricEigen::new(moment);
        let mut order: Vec<usize> = (0..dim).collect();
        order.sort_by(|&a, &b| eigen.eigenvalues[b].total_cmp(&eigen.eigenvalues[a]));
        let mut rows = Vec::with_capacity(dim * dim);
        for &component in &order {
            let vector = eigen.eigenvectors.column(component);
            let sign = vector[vector.iamax()].signum();
            rows.extend(vector.iter().map(|x| (sign * x) as f32));
        }
        // Rounding can make a variance of zero negative.
        let variance = order.iter().map(|&i| eigen.eigenvalues[i].max(0.0) as f32).collect();
        Self { rows, variance }
    }
}

/// Adds `Σ k kᵀ` of each head.
fn add_moments(layer: &TraceLayer, moments: &mut [DMatrix<f64>]) {
    for (keys, moment) in layer.keys.outer_iter().zip(moments) {
        *moment += second_moment(keys);
    }
}

fn second_moment(keys: ArrayView2<'_, f32>) -> DMatrix<f64> {
    let keys = keys.mapv(f64::from);
    let product = keys.t().dot(&keys);
    DMatrix::from_fn(keys.ncols(), keys.ncols(), |i, j| product[[i, j]])
}

#[cfg(test)]
mod tests;
