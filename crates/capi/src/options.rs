//! Options of a sequence.

use vattention::backends::Workers;
use vattention::{FallBack, Options, Storage};

use crate::array::{VA_BF16, VA_F16, VA_F32, VA_Q8, va_dtype};
use crate::layer::LayerOfModel;
use crate::pointers::{read_struct, versioned_struct};
use crate::status::CallError;
use crate::workers::{va_workers, workers_from};

/// Condition under which all tokens are read instead of the pipeline's choice: VA_BY_COUNT,
/// VA_NEVER or VA_BY_CLOCK.
pub type va_fall_back = u32;

/// All tokens are read where the list of a row and its checks cost more. Results can be repeated.
pub const VA_BY_COUNT: va_fall_back = 0;
/// The pipeline's choice is always followed.
pub const VA_NEVER: va_fall_back = 1;
/// All tokens are read if that was faster before. Results depend on the clock.
pub const VA_BY_CLOCK: va_fall_back = 2;

/// Flag: samples of a given size are not checked, so steps are faster and rows have no error bar.
pub const VA_OMIT_ERROR_BARS: u32 = 1;
/// Flag: rows of tokens that all selectors have evicted are freed. Tokens can then not be removed.
pub const VA_FREE_EVICTED: u32 = 2;

/// Options of one sequence. If all fields but `size` are 0, they have their defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct va_options {
    /// sizeof(va_options).
    pub size: usize,
    /// Number of the sequence. It keys the random samples.
    pub sequence: u32,
    /// Number of queries of the sequence that were processed elsewhere. It keys the random samples.
    pub first_step: u32,
    /// Condition under which all tokens are read.
    pub fall_back: va_fall_back,
    /// Sum of VA_OMIT_ERROR_BARS and VA_FREE_EVICTED, or 0.
    pub flags: u32,
    /// Number type in which the library's cache stores keys and values. Only va_attention_new uses
    /// it.
    pub storage: va_dtype,
    /// Threads that process KV heads, or NULL for all cores. Only va_attention_new uses them: a
    /// call of va_attend_pages processes one KV head on its own thread.
    pub workers: *const va_workers,
}

versioned_struct!(va_options, workers: *const va_workers);

/// Options of a sequence in the library's types, for a layer. A null pointer means the defaults.
///
/// # Safety
/// Valid `options` have valid workers, or none.
pub(crate) unsafe fn read_options(
    options: *const va_options,
    layer: &LayerOfModel,
) -> Result<(Options, Workers), CallError> {
    let options = if options.is_null() {
        let size = size_of::<va_options>();
        let (sequence, first_step, flags, workers) = (0, 0, 0, std::ptr::null());
        let (fall_back, storage) = (VA_BY_COUNT, VA_F32);
        va_options { size, sequence, first_step, fall_back, flags, storage, workers }
    } else {
        // SAFETY: the caller vouches for the struct.
        unsafe { read_struct(options, "options") }?
    };
    if options.flags & !(VA_OMIT_ERROR_BARS | VA_FREE_EVICTED) != 0 {
        let expected = "a sum of VA_OMIT_ERROR_BARS and VA_FREE_EVICTED";
        let found = options.flags;
        return Err(CallError::argument(format!("flags: expected {expected}, found {found}")));
    }
    // SAFETY: the caller vouches for the workers.
    let workers = unsafe { workers_from(options.workers, "options.workers") }?;
    let read = Options {
        sequence: options.sequence,
        first_step: options.first_step,
        scale: layer.scale,
        soft_cap: layer.soft_cap,
        sink_logits: layer.sink_logits.clone(),
        storage: storage_from(options.storage)?,
        fall_back: fall_back_from(options.fall_back)?,
        omit_error_bars: options.flags & VA_OMIT_ERROR_BARS != 0,
        free_evicted: options.flags & VA_FREE_EVICTED != 0,
        ..Options::default()
    };
    Ok((read, workers))
}

fn storage_from(number: va_dtype) -> Result<Storage, CallError> {
    match number {
        VA_F32 => Ok(Storage::F32),
        VA_F16 => Ok(Storage::F16),
        VA_BF16 => Ok(Storage::Bf16),
        VA_Q8 => Ok(Storage::Q8),
        _ => {
            let expected = "VA_F32, VA_F16, VA_BF16 or VA_Q8";
            Err(CallError::argument(format!("storage: expected {expected}, found {number}")))
        }
    }
}

fn fall_back_from(number: va_fall_back) -> Result<FallBack, CallError> {
    match number {
        VA_BY_COUNT => Ok(FallBack::ByCount),
        VA_NEVER => Ok(FallBack::Never),
        VA_BY_CLOCK => Ok(FallBack::ByClock),
        _ => {
            let expected = "VA_BY_COUNT, VA_NEVER or VA_BY_CLOCK";
            Err(CallError::argument(format!("fall_back: expected {expected}, found {number}")))
        }
    }
}
