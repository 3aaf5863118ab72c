//! Buffers of C that receive outputs.

use std::ptr;

use vattention::Output;

use crate::pointers::{check_bytes, check_pointer, read_struct, versioned_struct};
use crate::report::va_report;
use crate::status::{CallError, va_status};

/// Buffers that receive the output of a step. They must not overlap.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct va_output {
    /// sizeof(va_output).
    pub size: usize,
    /// Attention output, [query_heads, queries, value_dim].
    pub out: *mut f32,
    /// Number of elements of `out`.
    pub out_len: usize,
    /// NULL, or logarithm of the softmax denominator, [query_heads, queries]: the estimated
    /// log-sum-exp of the visible logits and of an attention sink.
    pub log_denominator: *mut f32,
    /// Number of elements of `log_denominator`.
    pub log_denominator_len: usize,
    /// NULL, or reports, [queries, query_heads].
    pub reports: *mut va_report,
    /// sizeof(va_report), if there are reports.
    pub report_size: usize,
    /// Number of reports.
    pub reports_len: usize,
}

versioned_struct!(va_output, reports_len: usize);

/// Size of reports in the first version of the header.
const FIRST_REPORT_SIZE: usize = size_of::<va_report>();

/// Checked buffers for an output.
#[derive(Debug)]
pub(crate) struct OutputBuffers(va_output);

impl OutputBuffers {
    /// Checks the buffers for an output `[query_heads, queries, value_dim]`.
    ///
    /// # Safety
    /// A valid `output` has pointers that are valid for writes of the stated lengths.
    pub(crate) unsafe fn read(
        output: *const va_output,
        shape: [usize; 3],
    ) -> Result<Self, CallError> {
        // SAFETY: the caller vouches for the struct.
        let output = unsafe { read_struct(output, "output") }?;
        let [heads, queries, value_dim] = shape;
        let numbers = heads.saturating_mul(queries).saturating_mul(value_dim);
        let rows = heads.saturating_mul(queries);
        check_len("output.out_len", numbers, output.out_len)?;
        check_bytes::<f32>(numbers, "output.out_len")?;
        if numbers > 0 {
            check_pointer(output.out, "output.out")?;
        }
        if !output.log_denominator.is_null() {
            check_pointer(output.log_denominator, "output.log_denominator")?;
            check_len("output.log_denominator_len", rows, output.log_denominator_len)?;
        }
        if !output.reports.is_null() {
            check_pointer(output.reports, "output.reports")?;
            check_len("output.reports_len", rows, output.reports_len)?;
            check_report_size(output.report_size)?;
        }
        Ok(Self(output))
    }

    /// Copies an output of the shape for which the buffers were checked.
    ///
    /// # Safety
    /// The buffers are still valid.
    pub(crate) unsafe fn write(&self, output: &Output) {
        let va_output { out, log_denominator, reports, report_size, .. } = self.0;
        for (i, &number) in output.out.iter().enumerate() {
            // SAFETY: `read` has checked the number of elements.
            unsafe { out.add(i).write(number) };
        }
        if !log_denominator.is_null() {
            for (i, &number) in output.log_denominator.iter().enumerate() {
                // SAFETY: `read` has checked the number of elements.
                unsafe { log_denominator.add(i).write(number) };
            }
        }
        if !reports.is_null() {
            for (i, row) in output.rows.iter().enumerate() {
                let report = va_report::from(row);
                let known = report_size.min(size_of::<va_report>());
                // SAFETY: `read` has checked the number and the size of the reports.
                unsafe {
                    let to = reports.cast::<u8>().add(i * report_size);
                    ptr::copy_nonoverlapping(ptr::from_ref(&report).cast(), to, known);
                    // Fields of a newer header are 0.
                    to.add(known).write_bytes(0, report_size - known);
                }
            }
        }
    }
}

fn check_len(argument: &str, expected: usize, found: usize) -> Result<(), CallError> {
    if found == expected {
        return Ok(());
    }
    Err(CallError::shape(format!("{argument}: expected {expected}, found {found}")))
}

fn check_report_size(found: usize) -> Result<(), CallError> {
    if (FIRST_REPORT_SIZE..=4 * FIRST_REPORT_SIZE).contains(&found) {
        return Ok(());
    }
    let expected = size_of::<va_report>();
    let message = format!(
        "output.report_size: expected sizeof(va_report), which is {expected}, found {found}"
    );
    Err(CallError::new(va_status::VA_ERROR_SIZE, message))
}
