//! The `cpu` backend behind a C interface, for programs that compare it with other libraries.
//!
//! Numbers are f32 and lie in row-major order. Every call returns a null pointer or a status other
//! than 0 when it fails; [`vattention_error`] then has the reason. Panics are caught and reported
//! the same way.

mod decoder;
mod fail;

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use ndarray::{ArrayView3, ArrayViewMut3};
use vattention::Shape;
use vattention::trace::Synth;

use decoder::Decoder;
use fail::{PeerResult, guarded};

/// The allocator of the command.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Starts `layers` layers of one sequence with the pipeline file at `path`, changed by `settings`:
/// lines of `KEY=VALUE`, or an empty text. `storage` is `f32`, `f16` or `bf16`.
///
/// # Safety
/// The texts end with a zero byte. The result is freed once, with [`vattention_free`], and only one
/// thread uses it at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vattention_create(
    path: *const c_char,
    settings: *const c_char,
    storage: *const c_char,
    layers: usize,
    query_heads: usize,
    kv_heads: usize,
    head_dim: usize,
    threads: usize,
) -> *mut Decoder {
    let shape = Shape { query_heads, kv_heads, head_dim, value_dim: head_dim };
    let decoder = guarded(|| {
        // SAFETY: the caller passes texts that end with a zero byte.
        let [path, settings, storage] = unsafe { [text(path)?, text(settings)?, text(storage)?] };
        Decoder::new(path, settings, storage, layers, shape, threads)
    });
    decoder.map_or(ptr::null_mut(), |decoder| Box::into_raw(Box::new(decoder)))
}

/// Appends keys and values `[kv_heads, tokens, head_dim]` to a layer.
///
/// # Safety
/// `decoder` is from [`vattention_create`] and not freed; `keys` and `values` point to
/// `kv_heads · tokens · head_dim` numbers each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vattention_append(
    decoder: *mut Decoder,
    layer: usize,
    keys: *const f32,
    values: *const f32,
    tokens: usize,
) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees a live decoder that only this thread uses.
        let decoder = unsafe { decoder.as_mut() }.ok_or("expected a decoder, found null")?;
        let Shape { kv_heads, head_dim, value_dim, .. } = decoder.shape();
        // SAFETY: the caller passes the number of elements that the shape has.
        let keys = unsafe { ArrayView3::from_shape_ptr((kv_heads, tokens, head_dim), keys) };
        // SAFETY: the caller passes the number of elements that the shape has.
        let values = unsafe { ArrayView3::from_shape_ptr((kv_heads, tokens, value_dim), values) };
        decoder.append(layer, keys, values)
    })
}

/// Attends from one query per head, `[query_heads, head_dim]`, to all tokens of a layer, and writes
/// the output, which has the same shape. `read`, if not null, receives the share of the tokens
/// whose rows were read, the mean over KV heads.
///
/// # Safety
/// `decoder` is from [`vattention_create`] and not freed; `queries` and `out` point to
/// `query_heads · head_dim` numbers each, which do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vattention_attend(
    decoder: *mut Decoder,
    layer: usize,
    queries: *const f32,
    out: *mut f32,
    read: *mut f64,
) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees a live decoder that only this thread uses.
        let decoder = unsafe { decoder.as_mut() }.ok_or("expected a decoder, found null")?;
        let Shape { query_heads, head_dim, value_dim, .. } = decoder.shape();
        // SAFETY: the caller passes the number of elements that the shape has.
        let queries = unsafe { ArrayView3::from_shape_ptr((query_heads, 1, head_dim), queries) };
        let output = decoder.attend(layer, queries)?;
        // SAFETY: the caller passes the number of elements that the shape has, without aliases.
        unsafe { ArrayViewMut3::from_shape_ptr((query_heads, 1, value_dim), out) }
            .assign(&output.out);
        // SAFETY: the pointer is null, or valid for one number.
        if let Some(read) = unsafe { read.as_mut() } {
            *read = decoder::density(&output);
        }
        Ok(())
    })
}

/// Frees the result of [`vattention_create`]; null is allowed.
///
/// # Safety
/// `decoder` is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vattention_free(decoder: *mut Decoder) {
    if !decoder.is_null() {
        // SAFETY: the pointer is from `Box::into_raw`, and freed once.
        drop(unsafe { Box::from_raw(decoder) });
    }
}

/// Makes one layer of synthetic heads of a kind (`typical`, `sharp`, ...): queries
/// `[query_heads, 1, head_dim]`, not scaled, of the last token, and keys and values
/// `[kv_heads, tokens, head_dim]`.
///
/// # Safety
/// `kind` ends with a zero byte; the other pointers have the number of elements of their shapes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vattention_synth(
    kind: *const c_char,
    tokens: usize,
    query_heads: usize,
    kv_heads: usize,
    head_dim: usize,
    seed: u64,
    queries: *mut f32,
    keys: *mut f32,
    values: *mut f32,
) -> c_int {
    status(|| {
        // SAFETY: the caller passes a text that ends with a zero byte.
        let kind = unsafe { text(kind) }?.parse()?;
        let shape = Shape { query_heads, kv_heads, head_dim, value_dim: head_dim };
        let (queries, prompt, sink_share, value_mean) = (1, 0, 0.0, 0.7);
        let synth = Synth { kind, tokens, shape, queries, prompt, sink_share, value_mean, seed };
        let layer = synth.layer()?;
        for (from, to) in [(layer.queries, queries), (layer.keys, keys), (layer.values, values)] {
            // SAFETY: the caller passes the number of elements that the shapes have, without
            // aliases.
            unsafe { ArrayViewMut3::from_shape_ptr(from.dim(), to) }.assign(&from);
        }
        Ok(())
    })
}

/// Copies the reason why this thread's last call failed into `text`, at most `space` bytes with the
/// zero byte at the end.
///
/// # Safety
/// `text` points to `space` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vattention_error(text: *mut c_char, space: usize) {
    let reason = fail::last();
    let Some(most) = space.checked_sub(1) else { return };
    let count = reason.len().min(most);
    // SAFETY: `count + 1` bytes fit in `space`, and a `String` does not overlap the caller's
    // memory.
    unsafe {
        ptr::copy_nonoverlapping(reason.as_ptr(), text.cast(), count);
        text.add(count).write(0);
    }
}

/// Returns 0, or 1 after storing the reason.
fn status(run: impl FnOnce() -> PeerResult<()>) -> c_int {
    c_int::from(guarded(run).is_none())
}

/// Converts a text of C.
///
/// # Safety
/// `text` is null, or ends with a zero byte and outlives `'a`.
unsafe fn text<'a>(text: *const c_char) -> PeerResult<&'a str> {
    if text.is_null() {
        return Err("expected a text, found null".into());
    }
    // SAFETY: the caller guarantees a text that ends with a zero byte.
    Ok(unsafe { CStr::from_ptr(text) }.to_str()?)
}
