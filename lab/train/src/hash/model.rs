//! Networks of all query heads of one layer.

use candle_core::{Device, Result, Tensor, Var};
use rand_chacha::rand_core::RngCore;

/// Networks of the queries and of the keys.
#[derive(Debug)]
pub(super) struct Maps {
    query: Mlp,
    key: Mlp,
}

/// Affine layers with SiLU between them.
#[derive(Debug)]
struct Mlp(Vec<AffineMap>);

#[derive(Debug)]
struct AffineMap {
    /// `[heads, in, out]`.
    weight: Var,
    /// `[heads, out]`.
    bias: Var,
}

impl Maps {
    /// Returns random networks in which layer `i` has `widths[i]` inputs.
    pub(super) fn random(heads: usize, widths: &[usize], rng: &mut impl RngCore) -> Result<Self> {
        let query = Mlp::random(heads, widths, rng)?;
        Ok(Self { query, key: Mlp::random(heads, widths, rng)? })
    }

    /// Returns a copy of the networks of one head, with variables of their own.
    pub(super) fn head(&self, head: usize) -> Result<Self> {
        Ok(Self { query: self.query.head(head)?, key: self.key.head(head)? })
    }

    /// Returns the logits `[heads, queries, keys]` of queries `[heads, queries, dim]` and keys
    /// `[heads, keys, dim]`.
    pub(super) fn logits(&self, queries: &Tensor, keys: &Tensor) -> Result<Tensor> {
        let (queries, keys) = self.numbers(queries, keys)?;
        queries.tanh()?.matmul(&keys.tanh()?.transpose(1, 2)?)
    }

    /// Returns the numbers `[heads, rows, bits]` whose signs are the codes of queries and keys.
    pub(super) fn numbers(&self, queries: &Tensor, keys: &Tensor) -> Result<(Tensor, Tensor)> {
        Ok((self.query.apply(queries)?, self.key.apply(keys)?))
    }

    /// Returns the parameters, with their names in a file of weights.
    pub(super) fn parameters(&self) -> Vec<(String, &Var)> {
        let mut all = Vec::new();
        for (side, mlp) in [("query", &self.query), ("key", &self.key)] {
            for (i, AffineMap { weight, bias }) in mlp.0.iter().enumerate() {
                all.push((format!("{side}.{i}.weight"), weight));
                all.push((format!("{side}.{i}.bias"), bias));
            }
        }
        all
    }
}

impl Mlp {
    fn random(heads: usize, widths: &[usize], rng: &mut impl RngCore) -> Result<Self> {
        let layer = |pair: &[usize]| AffineMap::random(heads, pair[0], pair[1], rng);
        Ok(Self(widths.windows(2).map(layer).collect::<Result<_>>()?))
    }

    fn head(&self, head: usize) -> Result<Self> {
        Ok(Self(self.0.iter().map(|layer| layer.head(head)).collect::<Result<_>>()?))
    }

    /// Maps `[heads, rows, in]` to `[heads, rows, out]`.
    fn apply(&self, rows: &Tensor) -> Result<Tensor> {
        let mut rows = rows.clone();
        for (i, layer) in self.0.iter().enumerate() {
            rows = layer.apply(&if i == 0 { rows } else { rows.silu()? })?;
        }
        Ok(rows)
    }
}

impl AffineMap {
    /// Returns parameters that are uniform within `±1 / √inputs`, as in the authors' library.
    fn random(heads: usize, inputs: usize, outputs: usize, rng: &mut impl RngCore) -> Result<Self> {
        let most = 1.0 / (inputs as f32).sqrt();
        let mut uniform = |shape: &[usize]| {
            let numbers = (0..shape.iter().product())
                .map(|_| most * (2.0 * (rng.next_u32() >> 8) as f32 / (1 << 24) as f32 - 1.0))
                .collect();
            Var::from_vec(numbers, shape, &Device::Cpu)
        };
        Ok(Self { weight: uniform(&[heads, inputs, outputs])?, bias: uniform(&[heads, outputs])? })
    }

    fn head(&self, head: usize) -> Result<Self> {
        let only = |var: &Var| Var::from_tensor(&var.as_tensor().narrow(0, head, 1)?.copy()?);
        Ok(Self { weight: only(&self.weight)?, bias: only(&self.bias)? })
    }

    fn apply(&self, rows: &Tensor) -> Result<Tensor> {
        rows.matmul(&self.weight)?.broadcast_add(&self.bias.unsqueeze(1)?)
    }
}
