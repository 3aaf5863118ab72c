//! Dense causal attention, for prompts.

use candle_core::{D, Device, Result, Tensor};

/// How many logits are in memory at once, at most, unless one row has more: 64 MiB of them.
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
    let (query_heads, count, _) = queries.dims3()?;
    let kv_heads = keys.dim(0)?;
    let group = query_heads / kv_heads;
    let most = (LOGITS / (group * (first + count))).max(1);
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
