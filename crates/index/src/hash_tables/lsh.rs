//! Signatures of queries and keys in random hash tables.

use multiversion::multiversion;
use serde::{Deserialize, Serialize};
use vattention_core::Tokens;
use vattention_core::schemars::{self, JsonSchema};

use crate::bounded::Bounded;

/// Number of keys that are hashed together.
pub const BLOCK: usize = 128;

/// Transform of query and keys before hashing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Transform {
    /// One more element for query and key, so that their angle depends on their product only.
    SimpleLsh,
    /// No transform, as in the authors' code.
    #[default]
    Angular,
}

impl Transform {
    /// Number of elements of a hashed vector.
    pub(super) fn dim(self, head_dim: usize) -> usize {
        head_dim + usize::from(self == Self::SimpleLsh)
    }
}

/// Number of signs in the hash of a table; the default of 10 is the authors'.
pub type TableBits = Bounded<1, 16, 10>;

/// Hash tables of signs. A signature is a number of `bits` bits: bit `j` of the signature in table
/// `t` is set if the product with plane `t · bits + j` is positive.
#[derive(Clone, Debug)]
pub struct Lsh {
    /// Normals of hyperplanes, `[tables · bits, transform.dim(head_dim)]`.
    planes: Vec<f32>,
    head_dim: usize,
    bits: TableBits,
    transform: Transform,
}

impl Lsh {
    /// Creates tables from the normals of their planes, `[tables · bits, head_dim]`, with one more
    /// element each for `simple-lsh`.
    ///
    /// # Panics
    /// If the normals are not a whole number of tables.
    pub fn new(planes: Vec<f32>, head_dim: usize, bits: TableBits, transform: Transform) -> Self {
        let table = usize::from(bits.get()) * transform.dim(head_dim);
        assert!(planes.len().is_multiple_of(table), "a whole number of tables");
        Self { planes, head_dim, bits, transform }
    }

    /// Products of a query with the normals of all planes, `[tables · bits]`.
    fn products(&self, query: &[f32]) -> Vec<f32> {
        let dim = self.transform.dim(self.head_dim);
        let count = self.planes.len() / dim;
        let mut products = vec![0.0; count];
        let planes = Tokens::new(&self.planes, count, dim).columns(0..self.head_dim);
        planes.dots(0..count, query, &mut products);
        products
    }

    /// Signature of a query in each table. Signatures do not depend on the query's length.
    pub fn signatures(&self, query: &[f32]) -> Vec<u16> {
        let products = self.products(query);
        let pack = |signs: &[f32]| {
            signs.iter().enumerate().fold(0, |all, (j, &x)| all | u16::from(x > 0.0) << j)
        };
        products.chunks_exact(self.bits.get().into()).map(pack).collect()
    }

    /// Probabilities with which a query falls into each bucket of each table,
    /// `[tables][2^bits]`, if sign `j` of its signature is positive with probability
    /// `1 / (1 + exp(−2 h_j))`, independently of the others. `soften` maps the product with a plane
    /// to `h_j`.
    pub fn bucket_probabilities(
        &self,
        query: &[f32],
        soften: impl Fn(f32) -> f32,
    ) -> Vec<Vec<f32>> {
        let products = self.products(query);
        let table = |products: &[f32]| {
            let mut buckets = vec![1.0];
            for &product in products {
                let half = soften(product);
                let [positive, negative] = [-half, half].map(|x| 1.0 / (1.0 + libm::expf(2.0 * x)));
                let with_sign: Vec<f32> = buckets.iter().map(|p| p * positive).collect();
                for p in &mut buckets {
                    *p *= negative;
                }
                buckets.extend(with_sign);
            }
            buckets
        };
        products.chunks_exact(self.bits.get().into()).map(table).collect()
    }

    /// Signatures of at most [`BLOCK`] keys, `[tables][BLOCK]`; signatures beyond the number of
    /// keys have no meaning. `largest` is at least the keys' largest norm; only `simple-lsh` uses
    /// it.
    ///
    /// # Panics
    /// If there are more than [`BLOCK`] keys.
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

    /// Cosine of the angle between the hashed vectors of a query and a key. `largest` is the value
    /// with which the key's signature was computed.
    ///
    /// A zero vector makes no angle, and all its sign bits are 0, whatever the tables. So it agrees
    /// with another vector in one sign with probability 1/2, which is that of the result 0, and
    /// with another zero vector in all signs, for which the result is 1.
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

/// Squared norm in f64, which neither overflows nor underflows.
pub(super) fn squared_norm(vector: &[f32]) -> f64 {
    product(vector, vector)
}

/// Dot product in f64, in partial sums that vector instructions compute together.
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

/// Sets `bit` in the signature of each key that has a positive product with the plane. Keys are the
/// columns of `[dim][BLOCK]`.
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
