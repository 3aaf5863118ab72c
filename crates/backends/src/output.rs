//! Assembly of outputs from the rows of KV heads.

use ndarray::{Array2, Array3};
use vattention_core::Output;

use crate::executor::RowOutput;

/// Output without rows, for `[query_heads, queries, value_dim]`.
pub(crate) fn empty_output(shape: [usize; 3]) -> Output {
    let [heads, queries, _] = shape;
    Output {
        out: Array3::zeros(shape),
        log_denominator: Array2::zeros((heads, queries)),
        rows: Vec::with_capacity(heads * queries),
        selection: None,
        timings: None,
    }
}

/// Adds the row of a query head at a query: its output, its denominator and its report.
pub(crate) fn push_row(output: &mut Output, head: usize, query: usize, row: &RowOutput) {
    let softmax = &row.sums.sums;
    let numbers = softmax.output();
    for (i, x) in numbers.into_iter().enumerate() {
        output.out[[head, query, i]] = x as f32;
    }
    output.log_denominator[[head, query]] = softmax.log_denominator() as f32;
    output.rows.push(row.report);
}
