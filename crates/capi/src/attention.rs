//! Sequences whose keys and values the library's cache stores.

use std::ffi::c_char;
use std::sync::Arc;

use vattention::engine::{Pipeline, Site};
use vattention::{Attention, PipelineConfig, Shape};

use crate::arguments::{borrow_classes, borrow_visible, read_sequence};
use crate::array::{borrow_array, va_array};
use crate::border::run_call;
use crate::handles::HandleTable;
use crate::layer::{read_layer, va_layer};
use crate::needs::{va_needs, write_needs};
use crate::options::{read_options, va_options};
use crate::output::{OutputBuffers, va_output};
use crate::pointers::{check_pointer, write_value};
use crate::status::va_status;
use crate::toml_text::read_pipeline;
use crate::workers::CPU;

/// One layer of one sequence, which owns its keys and values.
#[derive(Debug)]
pub struct va_attention {
    _opaque: [u8; 0],
}

/// Object of a `va_attention`.
pub(crate) struct CachedSequence {
    pub(crate) attention: Box<dyn Attention>,
    pub(crate) shape: Shape,
    config: Arc<PipelineConfig>,
    layer: usize,
}

pub(crate) static ATTENTIONS: HandleTable<CachedSequence> = HandleTable::new("attention");

/// Creates one layer of one sequence, without tokens.
///
/// `toml` is the text of a pipeline file, such as "extends = 'priority'" with the name of a
/// built-in pipeline. Handles with the same text share what the pipeline has loaded. `options` may
/// be NULL. `*attention` receives the handle, which va_attention_free frees.
///
/// Errors: VA_ERROR_PIPELINE with all faults of the text and their places; VA_ERROR_SHAPE,
/// VA_ERROR_ARGUMENT and VA_ERROR_SIZE with the name of the field; VA_ERROR_THREADS.
///
/// Thread safety: any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_attention_new(
    toml: *const c_char,
    layer: *const va_layer,
    options: *const va_options,
    attention: *mut *mut va_attention,
) -> va_status {
    run_call(|| {
        check_pointer(attention, "attention")?;
        // SAFETY: the caller vouches for the structs and the text.
        let (config, layer) = unsafe { (read_pipeline(toml)?, read_layer(layer)?) };
        // SAFETY: the caller vouches for the structs.
        let (options, workers) = unsafe { read_options(options, &layer) }?;
        let (shape, index) = (layer.shape, layer.index);
        let started = CPU.start_on(workers, &config, index, shape, &options)?;
        let object = CachedSequence { attention: started, shape, config, layer: index };
        // SAFETY: the pointer is checked.
        unsafe { attention.write(ATTENTIONS.insert(object)?) };
        Ok(())
    })
}

/// Appends keys [kv_heads, tokens, head_dim], after their rotary embedding, and values [kv_heads,
/// tokens, value_dim]. Numbers of the storage type are copied, others are rounded to it.
///
/// `classes` `[tokens]` are the classes of the tokens in the text, 0 (other), 1 (punctuation) or 2
/// (special), or NULL; see va_needs.
///
/// Errors: VA_ERROR_SHAPE, VA_ERROR_NUMBER with the index of a number that is not finite or cannot
/// be stored, VA_ERROR_INPUT for missing classes, VA_ERROR_MEMORY. Then nothing has changed.
///
/// Thread safety: any thread; another call with the handle meanwhile returns VA_ERROR_BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_attention_append(
    attention: *mut va_attention,
    keys: *const va_array,
    values: *const va_array,
    classes: *const u8,
) -> va_status {
    run_call(|| {
        // SAFETY: the caller vouches for the arrays.
        let (keys, values) =
            unsafe { (borrow_array(keys, "keys")?, borrow_array(values, "values")?) };
        // SAFETY: the caller passes a class for each token.
        let classes = unsafe { borrow_classes(classes, keys.shape()[1]) }?;
        ATTENTIONS.with(attention, |object| {
            Ok(object.attention.append_rows(keys, values, classes.as_deref())?)
        })
    })
}

/// Shows the selectors the last queries of a prompt that has been appended, [query_heads, prompt,
/// head_dim]. The last query belongs to the newest token. Pipelines with needs_observe need it.
///
/// Errors: VA_ERROR_SHAPE and VA_ERROR_NUMBER. Then nothing has changed.
///
/// Thread safety: any thread; another call with the handle meanwhile returns VA_ERROR_BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_attention_observe(
    attention: *mut va_attention,
    queries: *const va_array,
) -> va_status {
    run_call(|| {
        // SAFETY: the caller vouches for the array.
        let queries = unsafe { borrow_array(queries, "queries") }?.to_f32();
        ATTENTIONS.with(attention, |object| Ok(object.attention.observe(queries.view())?))
    })
}

/// Computes attention for queries [query_heads, queries, head_dim], which are not scaled: one
/// decode step each, in order. Query t may read the first `visible[t]` tokens, at least 1; NULL
/// means all tokens.
///
/// Errors: VA_ERROR_SHAPE for queries, limits and the buffers of `output`; VA_ERROR_NUMBER;
/// VA_ERROR_INPUT if a prompt was removed and none was observed since. Then nothing has changed,
/// and nothing is written.
///
/// Thread safety: any thread; another call with the handle meanwhile returns VA_ERROR_BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_attention_attend(
    attention: *mut va_attention,
    queries: *const va_array,
    visible: *const usize,
    output: *const va_output,
) -> va_status {
    run_call(|| {
        // SAFETY: the caller vouches for the array.
        let queries = unsafe { borrow_array(queries, "queries") }?.to_f32();
        let count = queries.dim().1;
        // SAFETY: the caller passes a limit for each query.
        let visible = unsafe { borrow_visible(visible, count) }?;
        ATTENTIONS.with(attention, |object| {
            let Shape { query_heads, value_dim, .. } = object.shape;
            // SAFETY: the caller vouches for the buffers.
            let buffers = unsafe { OutputBuffers::read(output, [query_heads, count, value_dim]) }?;
            let attended = object.attention.attend(queries.view(), visible)?;
            // SAFETY: the caller vouches for the buffers.
            unsafe { buffers.write(&attended) };
            Ok(())
        })
    })
}

/// Creates a sequence that continues from the same tokens and step, independently. Forks share the
/// memory of keys and values. If `sequence` is not NULL, it is the number of the new sequence, and
/// makes its samples independent. `*fork` receives the handle.
///
/// Errors: VA_ERROR_MEMORY.
///
/// Thread safety: any thread; another call with the handle meanwhile returns VA_ERROR_BUSY. The
/// fork can be used on other threads than the original at the same time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_attention_fork(
    attention: *mut va_attention,
    sequence: *const u32,
    fork: *mut *mut va_attention,
) -> va_status {
    run_call(|| {
        check_pointer(fork, "fork")?;
        // SAFETY: the caller vouches for the number.
        let sequence = unsafe { read_sequence(sequence) }?;
        let forked = ATTENTIONS.with(attention, |object| {
            let attention = object.attention.fork(sequence)?;
            let (config, shape, layer) = (object.config.clone(), object.shape, object.layer);
            Ok(CachedSequence { attention, shape, config, layer })
        })?;
        // SAFETY: the pointer is checked.
        unsafe { fork.write(ATTENTIONS.insert(forked)?) };
        Ok(())
    })
}

/// Removes all but the first `tokens` tokens. Indexes are rebuilt, which costs as much as appending
/// the tokens that remain. The step number continues.
///
/// Errors: VA_ERROR_SHAPE if there are fewer tokens, VA_ERROR_UNSUPPORTED if a selector learns from
/// steps or evicted rows have been freed. Then nothing has changed.
///
/// Thread safety: any thread; another call with the handle meanwhile returns VA_ERROR_BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_attention_truncate(
    attention: *mut va_attention,
    tokens: usize,
) -> va_status {
    run_call(|| ATTENTIONS.with(attention, |object| Ok(object.attention.truncate(tokens)?)))
}

/// Writes the number of tokens.
///
/// Thread safety: any thread; another call with the handle meanwhile returns VA_ERROR_BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_attention_len(
    attention: *mut va_attention,
    tokens: *mut usize,
) -> va_status {
    run_call(|| {
        let len = ATTENTIONS.with(attention, |object| Ok(object.attention.len()))?;
        // SAFETY: the caller vouches for the pointer.
        unsafe { write_value(tokens, len, "tokens") }
    })
}

/// Writes the size in bytes of keys and values, of which forks count shared ones too, and of the
/// indexes.
///
/// Thread safety: any thread; another call with the handle meanwhile returns VA_ERROR_BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_attention_bytes(
    attention: *mut va_attention,
    rows: *mut usize,
    indexes: *mut usize,
) -> va_status {
    run_call(|| {
        let (held, indexed) = ATTENTIONS.with(attention, |object| {
            Ok((object.attention.held_bytes(), object.attention.index_bytes()))
        })?;
        // SAFETY: the caller vouches for the pointers.
        unsafe {
            write_value(rows, held, "rows")?;
            write_value(indexes, indexed, "indexes")
        }
    })
}

/// Writes the input that the pipeline needs. Set `needs->size` before. It costs as much as creating
/// a pipeline of one KV head.
///
/// Thread safety: any thread; another call with the handle meanwhile returns VA_ERROR_BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_attention_needs(
    attention: *mut va_attention,
    needs: *mut va_needs,
) -> va_status {
    run_call(|| {
        let pipeline =
            ATTENTIONS.with(attention, |CachedSequence { config, layer, shape, .. }| {
                let (seed, layer, shape) = (config.seed, *layer, *shape);
                let site = Site { seed, sequence: 0, layer, kv_head: 0, shape };
                Ok(Pipeline::new(config, site)?)
            })?;
        // SAFETY: the caller vouches for the struct.
        unsafe { write_needs(needs, va_needs::from(&pipeline)) }
    })
}

/// Frees a sequence. NULL is ignored.
///
/// Errors: VA_ERROR_HANDLE if it was freed before, VA_ERROR_BUSY if another call uses it; it then
/// stays.
///
/// Thread safety: any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_attention_free(attention: *mut va_attention) -> va_status {
    run_call(|| ATTENTIONS.remove(attention))
}
