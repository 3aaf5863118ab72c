//! Needs of the pipelines of both kinds of handles.

use std::ffi::CString;
use std::ptr;

use vattention_capi::attention::{va_attention_free, va_attention_needs, va_attention_new};
use vattention_capi::layer::va_layer;
use vattention_capi::needs::va_needs;
use vattention_capi::pipeline::{va_pipeline_free, va_pipeline_needs, va_pipeline_new};
use vattention_capi::status::va_status;

/// Needs of a pipeline: classes, observed prompts, feedback, and indexes that can lose tokens.
type Needs = [u32; 4];

fn layer() -> va_layer {
    let size = size_of::<va_layer>();
    let (query_heads, kv_heads, head_dim, value_dim) = (4, 2, 32, 32);
    let (index, scale, soft_cap, sink_logits) = (0, 0.0, 0.0, ptr::null());
    va_layer {
        size,
        query_heads,
        kv_heads,
        head_dim,
        value_dim,
        index,
        scale,
        soft_cap,
        sink_logits,
    }
}

fn empty() -> va_needs {
    let size = size_of::<va_needs>();
    va_needs { size, needs_classes: 9, needs_observe: 9, needs_feedback: 9, can_truncate: 9 }
}

fn fields(needs: &va_needs) -> Needs {
    assert_eq!(needs.size, size_of::<va_needs>());
    [needs.needs_classes, needs.needs_observe, needs.needs_feedback, needs.can_truncate]
}

fn of_attention(toml: &str) -> Needs {
    let (toml, mut handle, mut needs) = (CString::new(toml).unwrap(), ptr::null_mut(), empty());
    // SAFETY: all pointers are those of local variables.
    unsafe {
        let created = va_attention_new(toml.as_ptr(), &layer(), ptr::null(), &raw mut handle);
        assert_eq!(created, va_status::VA_OK);
        assert_eq!(va_attention_needs(handle, &raw mut needs), va_status::VA_OK);
        assert_eq!(va_attention_free(handle), va_status::VA_OK);
    }
    fields(&needs)
}

fn of_pipeline(toml: &str) -> Needs {
    let (toml, mut handle, mut needs) = (CString::new(toml).unwrap(), ptr::null_mut(), empty());
    // SAFETY: all pointers are those of local variables.
    unsafe {
        let created = va_pipeline_new(toml.as_ptr(), &layer(), 1, ptr::null(), &raw mut handle);
        assert_eq!(created, va_status::VA_OK);
        assert_eq!(va_pipeline_needs(handle, &raw mut needs), va_status::VA_OK);
        assert_eq!(va_pipeline_free(handle), va_status::VA_OK);
    }
    fields(&needs)
}

#[test]
fn both_kinds_of_handles_have_the_needs_of_the_pipeline() {
    for (name, needs) in [
        ("dense", [0, 0, 0, 1]),
        ("priority", [0, 0, 0, 1]),
        ("snapkv", [0, 1, 0, 1]),
        ("h2o", [0, 0, 1, 0]),
        ("fastgen", [1, 1, 1, 0]),
    ] {
        let toml = format!("extends = '{name}'");
        assert_eq!((of_attention(&toml), of_pipeline(&toml)), (needs, needs), "{name}");
    }
}

/// Only the library's cache knows the rows before their rounding.
#[test]
fn a_cache_that_counts_rounding_has_needs() {
    let toml = "extends = 'priority'\n[estimator]\nreference = 'unrounded'";
    assert_eq!(of_attention(toml), [0, 0, 0, 1]);
}
