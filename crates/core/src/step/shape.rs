//! Dimensions of an attention layer, and the position of a KV head in model and batch.

use crate::{Error, Result};

/// Dimensions of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of query heads.
    pub query_heads: usize,
    /// Number of KV heads; divides `query_heads`.
    pub kv_heads: usize,
    /// Number of elements of a query or a key.
    pub head_dim: usize,
    /// Number of elements of a value.
    pub value_dim: usize,
}

impl Shape {
    /// Number of query heads that share one KV head.
    pub fn group(&self) -> usize {
        self.query_heads / self.kv_heads
    }

    /// Default of the softmax scale, by which queries are multiplied: `1 / √head_dim`.
    pub fn default_scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    /// Checks that no dimension is 0, that `kv_heads` divides `query_heads`, and that the numbers
    /// of heads fit the counter of a [`Stream`](crate::step::Stream).
    ///
    /// # Errors
    /// Returns [`Error::Shape`], which names the dimension.
    pub fn check(&self) -> Result<()> {
        let dims = [
            ("query_heads", self.query_heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("value_dim", self.value_dim),
        ];
        if let Some((what, _)) = dims.into_iter().find(|&(_, dim)| dim == 0) {
            return Err(Error::shape(what, "at least 1", 0));
        }
        if !self.query_heads.is_multiple_of(self.kv_heads) {
            let expected = format!("a multiple of kv_heads = {}", self.kv_heads);
            return Err(Error::shape("query_heads", expected, self.query_heads));
        }
        if self.group() > 255 {
            return Err(Error::shape("query heads per KV head", "at most 255", self.group()));
        }
        if self.kv_heads > 1 << 12 {
            return Err(Error::shape("kv_heads", "at most 4096", self.kv_heads));
        }
        Ok(())
    }
}

/// Position of a selector or sampler: one KV head of one layer of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Seed of the pipeline.
    pub seed: u64,
    /// Number of the sequence. Forks with different numbers draw different samples.
    pub sequence: u32,
    /// Index of the layer, at most 4095.
    pub layer: usize,
    /// Index of the KV head, in `0..shape.kv_heads`.
    pub kv_head: usize,
    /// Dimensions of the layer.
    pub shape: Shape,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_dimensions_are_refused() {
        let good = Shape { query_heads: 8, kv_heads: 2, head_dim: 64, value_dim: 32 };
        assert!(good.check().is_ok());
        assert_eq!(good.group(), 4);
        for (bad, what) in [
            (Shape { kv_heads: 0, ..good }, "kv_heads"),
            (Shape { kv_heads: 3, ..good }, "query_heads"),
            (Shape { value_dim: 0, ..good }, "value_dim"),
            (Shape { query_heads: 512, ..good }, "query heads per KV head"),
            (Shape { query_heads: 8192, kv_heads: 8192, ..good }, "kv_heads"),
        ] {
            assert!(bad.check().unwrap_err().to_string().starts_with(what), "{bad:?}");
        }
    }
}
