//! Random hash tables of signs, and the vectors that they hash.

use multiversion::multiversion;
use serde::{Deserialize, Serialize};
use vattention_core::Tokens;
use vattention_core::schemars::{self, JsonSchema};

use crate::bounded::Bounded;

/// Keys hashed at a time.
pub const BLOCK: usize = 128;

/// Which vectors are hashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Transform {
    /// Query and key with one more number, such that the angle follows from their product alone.
    SimpleLsh,
    /// Query and key as they are, as in the authors' code.
    #[default]
    Angular,
}

impl Transform {
    /// Elements of a hashed vector.
    pub(super) fn dim(self, head_dim: usize) -> usize {
        head_dim + usize::from(self == Self::SimpleLsh)
    }
}

/// The signs that a table hashes to, 10 as the authors have.
pub type TableBits = Bounded<1, 16, 10>;

/// Hash tables of signs. A signature is a number of `bits` bits; bit `j` of table `t` is set where
/// the product with vector `t · bits + j` is positive.
#[derive(Clone, Debug)]
pub struct Lsh {
    /// Normals of hyperplanes, `[tables · bits, transform.dim(head_dim)]`.
    planes: Vec<f32>,
    head_dim: usize,
    bits: TableBits,
    transform: Transform,
}

impl Lsh {
    /// Tables of these normals, `[tables · bits, head_dim]`, or one number more for `simple-lsh`.
    ///
    /// # Panics
    /// If that is no whole number of tables.
    pub fn new(planes: Vec<f32>, head_dim: usize, bits: TableBits, transform: Transform) -> Self {
        let table = usize::from(bits.get()) * transform.dim(head_dim);
        assert!(planes.len().is_multiple_of(table), "a whole number of tables");
        Self { planes, head_dim, bits, transform }
    }

    /// A query's signature in each table. It does not depend on the query's length.
    pub fn signatures(&self, query: &[f32]) -> Vec<u16> {
        let dim = self.transform.dim(self.head_dim);
        let count = self.planes.len() / dim;
        let mut products = vec![0.0; count];
        let planes = Tokens::new(&self.planes, count, dim).columns(0..self.head_dim);
        planes.dots(0..count, query, &mut products);
        let pack = |signs: &[f32]| {
            signs.iter().enumerate().fold(0, |all, (j, &x)| all | u16::from(x > 0.0) << j)
        };
        products.chunks_exact(self.bits.get().into()).map(pack).collect()
    }

    /// The signatures of at most [`BLOCK`] keys, `[tables][BLOCK]`; what is beyond the keys means
    /// nothing. `largest` is at least the keys' largest norm, and matters for `simple-lsh` only.
    ///
    /// # Panics
    /// If there are more keys, or they are not of the tables' dimension.
    pub fn key_signatures(&self, keys: &[Vec<f32>], largest: f64) -> Vec<[u16; BLOCK]> {
        let dim = self.transform.dim(self.head_dim);
        let mut columns = vec![[0.0; BLOCK]; dim];
        for (token, key) in keys.iter().enumerate() {
            let extra = (largest * largest - squared_norm(key)).max(0.0).sqrt() as f32;
            let numbers = key.iter().copied().chain([extra]);
            columns.iter_mut().zip(numbers).for_each(|(column, x)| column[token] = x);
        }
        let tables = self.planes.chunks_exact(dim * usize::from(self.bits.get()));
        tables
            .map(|planes| {
                let mut signatures = [0; BLOCK];
                for (bit, plane) in planes.chunks_exact(dim).enumerate() {
                    add_signs(plane, &columns, bit, &mut signatures);
                }
                signatures
            })
            .collect()
    }

    /// The cosine of the angle between the hashed vectors of a query and a key, whose signatures
    /// were made with the same `largest`. Of a zero vector, whose signs are all alike whatever the
    /// tables, 0, which is as probable to agree with another; of two, 1.
    pub fn cosine(&self, query: &[f32], key: &[f32], largest: f64) -> f64 {
        let product = product(query, key);
        let key = match self.transform {
            Transform::SimpleLsh => largest,
            Transform::Angular => squared_norm(key).sqrt(),
        };
        let query = squared_norm(query).sqrt();
        if query * key > 0.0 { product / (query * key) } else { f64::from(u8::from(query == key)) }
    }
}

/// In f64, where no key is too long or too short.
pub(super) fn squared_norm(vector: &[f32]) -> f64 {
    product(vector, vector)
}

/// A dot product in f64, in partial sums side by side.
fn product(a: &[f32], b: &[f32]) -> f64 {
    const LANES: usize = 8;
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            sums[i] += f64::from(a[i]) * f64::from(b[i]);
        }
    }
    for (i, (&a, &b)) in a_rest.iter().zip(b_rest).enumerate() {
        sums[i] += f64::from(a) * f64::from(b);
    }
    sums.iter().sum()
}

/// Sets a bit of each signature whose key, a column of `[dim][BLOCK]`, has a positive product with
/// the plane.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
fn add_signs(plane: &[f32], columns: &[[f32; BLOCK]], bit: usize, signatures: &mut [u16; BLOCK]) {
    let mut products = [0.0_f32; BLOCK];
    for (w, column) in plane.iter().zip(columns) {
        for (product, x) in products.iter_mut().zip(column) {
            *product += w * x;
        }
    }
    for (signature, product) in signatures.iter_mut().zip(products) {
        *signature |= u16::from(product > 0.0) << bit;
    }
}
