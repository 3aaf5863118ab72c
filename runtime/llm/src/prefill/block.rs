//! One layer on one block of a prompt's tokens.

use ndarray::{Array3, Axis, s};
use rayon::prelude::*;

use super::LayerPrompt;
use super::reads::{QueryBlock, Reads, TILE, causal_pairs};
use super::strategy::Strategy;
use crate::attention_form::AttentionForm;
use crate::config::LayerWindow;
use crate::dense::Causal;
use crate::inputs::LinearInputs;
use crate::layer::DecoderLayer;
use crate::linear::LinearScratch;
use crate::rope::Tables;

/// Runner of layers on blocks of tokens, which owns the scratch memory.
pub(super) struct BlockRunner {
    strategy: Strategy,
    /// `[block, hidden_size]`
    normed: Vec<f32>,
    /// Queries, keys and values of a block, `[block, heads, dim]`.
    rows: [Vec<f32>; 3],
    /// `[block, query_heads, value_dim]`
    attended: Vec<f32>,
    scratch: LinearScratch,
}

impl BlockRunner {
    pub(super) fn new(strategy: Strategy) -> Self {
        Self {
            strategy,
            normed: Vec::new(),
            rows: Default::default(),
            attended: Vec::new(),
            scratch: LinearScratch::default(),
        }
    }

    /// Runs a layer on the tokens of `x`, `[tokens, hidden_size]`, which becomes the input of the
    /// next layer. Writes the tokens' keys and values, and the observed queries among them, to
    /// their positions in `prompt`, whose earlier tokens are complete. The block begins `offset`
    /// tokens after token `start`, which is the first of `tables`.
    pub(super) fn run(
        &mut self,
        layer: &DecoderLayer,
        x: &mut [f32],
        tables: &Tables,
        (start, offset): (usize, usize),
        prompt: &mut LayerPrompt,
    ) {
        let Self { strategy, normed, rows, attended, scratch } = self;
        let LayerPrompt { keys, values, queries: observed, read_pairs, window } = prompt;
        let form = layer.form();
        assert_eq!(form.window, *window);
        let (first, count) = (start + offset, x.len() / layer.hidden_size());
        let query_heads = observed.dim().0;
        normed.resize(x.len(), 0.0);
        layer.normalise_input(x, normed);
        let [queries, new_keys, new_values] = rows;
        queries.resize(count * query_heads * keys.dim().2, 0.0);
        new_keys.resize(count * keys.dim().0 * keys.dim().2, 0.0);
        new_values.resize(count * values.dim().0 * values.dim().2, 0.0);
        let inputs = LinearInputs::new(normed, count);
        let projected = [&mut *queries, &mut *new_keys, &mut *new_values].map(Vec::as_mut_slice);
        let positions = layer.positions(tables).narrow(offset, count);
        layer.project(&inputs, positions, projected, scratch);
        spread(new_keys, keys, first);
        spread(new_values, values, first);
        // Strategies apply to full layers; a sliding layer is dense within its window.
        let reads = if form.window.is_some() {
            vec![None; keys.dim().0]
        } else {
            choose(*strategy, queries, query_heads, keys, first, form)
        };
        read_pairs.push(count_pairs(&reads, first, count, form.window));
        attended.resize(count * query_heads * values.dim().2, 0.0);
        let causal = Causal { query_heads, keys, values, first, reads: &reads, form };
        causal.attend(queries, attended);
        layer.finish(x, attended, normed, scratch);
        let unobserved = keys.dim().1 - observed.dim().1;
        let skipped = unobserved.saturating_sub(first).min(count);
        let last_queries = &queries[skipped * query_heads * keys.dim().2..];
        spread(last_queries, observed, (first + skipped).saturating_sub(unobserved));
    }
}

/// Chooses the keys that each tile of a block's queries `[count, query_heads, head_dim]` reads, for
/// each KV head.
fn choose(
    strategy: Strategy,
    queries: &[f32],
    query_heads: usize,
    keys: &Array3<f32>,
    first: usize,
    form: AttentionForm<'_>,
) -> Vec<Option<Vec<Reads>>> {
    let (kv_heads, _, head_dim) = keys.dim();
    let group = query_heads / kv_heads;
    let choose_head = |head: usize| {
        let keys = keys.index_axis(Axis(0), head).to_slice().expect("arrays in standard order");
        let first_head = head * group;
        strategy.choose(&QueryBlock {
            queries,
            query_heads,
            first_head,
            group,
            keys,
            head_dim,
            first,
            form,
        })
    };
    (0..kv_heads).into_par_iter().map(choose_head).collect()
}

/// Returns the number of token-key pairs that a block of `count` tokens read, summed over KV heads.
fn count_pairs(
    reads: &[Option<Vec<Reads>>],
    first: usize,
    count: usize,
    window: Option<LayerWindow>,
) -> u64 {
    let count_tile =
        |(i, reads): (usize, &Reads)| reads.pairs(first + i * TILE, TILE.min(count - i * TILE));
    let count_head = |tiles: &Option<Vec<Reads>>| match tiles {
        None => causal_pairs(first, count, window),
        Some(tiles) => tiles.iter().enumerate().map(count_tile).sum(),
    };
    reads.iter().map(count_head).sum()
}

/// Copies rows `[tokens, heads, dim]` into `[heads, all, dim]`, to the positions from `first` on.
fn spread(rows: &[f32], into: &mut Array3<f32>, first: usize) {
    let (heads, _, dim) = into.dim();
    for (i, token) in rows.chunks_exact(heads * dim).enumerate() {
        for (head, row) in token.chunks_exact(dim).enumerate() {
            let place = into.slice_mut(s![head, first + i, ..]).into_slice();
            place.expect("arrays in standard order").copy_from_slice(row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_counted_over_heads_and_tiles() {
        let all = Reads::new(&[].into(), 0);
        let some = Reads::new(&[2, 3].into(), 10);
        let (first, count) = (10, TILE + 6);
        let causal = causal_pairs(first, count, None);
        let heads = [None, Some(vec![all.clone(), all])];
        assert_eq!(count_pairs(&heads, first, count, None), 2 * causal);
        let heads = [None, Some(vec![some.clone(), some])];
        assert_eq!(count_pairs(&heads, first, count, None), 2 * causal - 8 * count as u64);
    }
}
