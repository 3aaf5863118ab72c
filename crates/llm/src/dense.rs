//! Dense causal attention, for prompts.

use candle_core::{D, Device, Result, Tensor};

/// How many logits of a KV head are in memory at once: 64 MiB of them.
const LOGITS: usize = 1 << 24;

/// Attention from queries `[query_heads, count, head_dim]`, of which the first is the query of
/// token `first`, over those of keys `[kv_heads, tokens, head_dim]` and values that are not later.
/// Returns `[query_heads, count, head_dim]`.
pub(crate) fn attend(
    queries: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    first: usize,
) -> Result<Tensor> {
    attend_within(LOGITS, queries, keys, values, first)
}

/// With at most so many logits at once, unless one token's queries have more.
fn attend_within(
    logits: usize,
    queries: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    first: usize,
) -> Result<Tensor> {
    let (query_heads, count, _) = queries.dims3()?;
    let kv_heads = keys.dim(0)?;
    let group = query_heads / kv_heads;
    let most = (logits / (group * (first + count))).max(1);
    let mut parts = Vec::new();
    for start in (0..count).step_by(most) {
        let rows = most.min(count - start);
        let visible = first + start + rows;
        let mask = mask(first + start, rows)?;
        let heads = (0..kv_heads).map(|head| {
            let queries =
                queries.narrow(0, head * group, group)?.narrow(1, start, rows)?.contiguous()?;
            let keys = keys.get(head)?.narrow(0, 0, visible)?;
            let values = values.get(head)?.narrow(0, 0, visible)?;
            attend_group(&queries, &keys, &values, &mask)
        });
        parts.push(Tensor::cat(&heads.collect::<Result<Vec<_>>>()?, 0)?);
    }
    Tensor::cat(&parts, 1)
}

/// One KV head's: queries `[group, rows, head_dim]`, keys and values `[visible, head_dim]`, mask
/// `[rows, visible]`.
fn attend_group(queries: &Tensor, keys: &Tensor, values: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let (group, rows, head_dim) = queries.dims3()?;
    let visible = keys.dim(0)?;
    let scale = 1.0 / (head_dim as f64).sqrt();
    let logits = (queries.reshape((group * rows, head_dim))?.matmul(&keys.t()?)? * scale)?;
    let logits = logits.reshape((group, rows, visible))?.broadcast_add(mask)?;
    let weights = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?)?.exp()?;
    let sums = weights.sum_keepdim(D::Minus1)?;
    let outputs = weights.reshape((group * rows, visible))?.matmul(values)?;
    outputs.reshape((group, rows, head_dim))?.broadcast_div(&sums)
}

/// What hides later tokens from the queries of tokens `first..first + rows`:
/// `[rows, first + rows]`, 0 or minus infinity.
fn mask(first: usize, rows: usize) -> Result<Tensor> {
    let visible = first + rows;
    let hidden =
        |row: usize, token: usize| if token > first + row { f32::NEG_INFINITY } else { 0.0 };
    let numbers = (0..rows).flat_map(|row| (0..visible).map(move |token| hidden(row, token)));
    Tensor::from_vec(numbers.collect(), (rows, visible), &Device::Cpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that do not repeat.
    fn numbers(heads: usize, tokens: usize, seed: f32) -> Tensor {
        let number = |i| ((i as f32 + seed) * 1.7).sin() * 2.0;
        let numbers = (0..heads * tokens * 4).map(number).collect();
        Tensor::from_vec(numbers, (heads, tokens, 4), &Device::Cpu).unwrap()
    }

    /// One row by definition, in f64.
    fn row(query: &[f32], keys: &[Vec<f32>], values: &[Vec<f32>]) -> Vec<f64> {
        let dot = |key: &[f32]| -> f64 {
            query.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum()
        };
        let weights: Vec<f64> = keys.iter().map(|key| (dot(key) / 2.0).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let output = |i: usize| -> f64 {
            weights.iter().zip(values).map(|(w, value)| w * f64::from(value[i])).sum()
        };
        (0..4).map(|i| output(i) / sum).collect()
    }

    #[test]
    fn attention_is_as_defined_however_much_is_in_memory() {
        let (queries, keys, values) = (numbers(6, 5, 0.0), numbers(2, 9, 0.3), numbers(2, 9, 0.6));
        let rows = |tensor: &Tensor| tensor.to_vec3::<f32>().unwrap();
        for logits in [1, 3 * 6, 3 * 9 * 2, LOGITS] {
            let found = rows(&attend_within(logits, &queries, &keys, &values, 4).unwrap());
            for (head, queries) in rows(&queries).iter().enumerate() {
                let (keys, values) = (&rows(&keys)[head / 3], &rows(&values)[head / 3]);
                for (i, query) in queries.iter().enumerate() {
                    let expected = row(query, &keys[..5 + i], &values[..5 + i]);
                    let close = |(&a, &b): (&f32, &f64)| (f64::from(a) - b).abs() < 1e-5;
                    assert!(found[head][i].iter().zip(&expected).all(close), "{logits}");
                }
            }
        }
    }
}
