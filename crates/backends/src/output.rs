//! Assembly of outputs from the rows of KV heads.

use vattention_core::Output;

use crate::executor::RowOutput;

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
