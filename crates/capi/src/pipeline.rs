//! KV heads whose keys and values an engine stores.

use std::ffi::c_char;

use vattention::Shape;
use vattention::backends::EngineHead;

use crate::arguments::{borrow_classes, borrow_visible, read_sequence};
use crate::array::{borrow_array, va_array};
use crate::border::run_call;
use crate::handles::HandleTable;
use crate::layer::{read_layer, va_layer};
use crate::needs::{va_needs, write_needs};
use crate::options::{read_options, va_options};
use crate::output::{OutputBuffers, va_output};
use crate::pages::{borrow_pages, va_pages};
use crate::pointers::{check_pointer, write_value};
use crate::status::va_status;
use crate::toml_text::read_pipeline;

/// The pipeline of one KV head of one layer of one sequence, whose keys and values the engine
/// stores. It has the indexes, which follow positions of the sequence and not places in memory: the
/// engine may move or share pages between calls.
#[derive(Debug)]
pub struct va_pipeline {
    _opaque: [u8; 0],
}

static PIPELINES: HandleTable<EngineHead> = HandleTable::new("pipeline");

/// Creates the pipeline of KV head `kv_head`, without tokens.
///
/// `toml` is the text of a pipeline file, such as "extends = 'priority'" with the name of a
/// built-in pipeline. Handles with the same text share what the pipeline has loaded. `options` may
/// be NULL. `*pipeline` receives the handle, which va_pipeline_free frees.
///
/// Errors: VA_ERROR_PIPELINE with all faults of the text and their places; VA_ERROR_SHAPE,
/// VA_ERROR_ARGUMENT and VA_ERROR_SIZE with the name of the field.
///
/// Thread safety: any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_pipeline_new(
    toml: *const c_char,
    layer: *const va_layer,
    kv_head: usize,
    options: *const va_options,
    pipeline: *mut *mut va_pipeline,
) -> va_status {
    run_call(|| {
        check_pointer(pipeline, "pipeline")?;
        // SAFETY: the caller vouches for the structs and the text.
        let (config, layer) = unsafe { (read_pipeline(toml)?, read_layer(layer)?) };
        // SAFETY: the caller vouches for the structs.
        let (options, _) = unsafe { read_options(options, &layer) }?;
        let head = EngineHead::new(&config, layer.index, kv_head, layer.shape, &options)?;
        // SAFETY: the pointer is checked.
        unsafe { pipeline.write(PIPELINES.insert(head)?) };
        Ok(())
    })
}

/// Indexes the tokens of `pages` behind those that are indexed already, from the rows as stored.
///
/// `classes` are those of the new tokens, 0 (other), 1 (punctuation) or 2 (special), or NULL; see
/// va_needs.
///
/// Errors: VA_ERROR_SHAPE for pages outside the pool, strides and lengths; VA_ERROR_NUMBER with the
/// index of a number that is not finite or above 1e16; VA_ERROR_INPUT for missing classes. Then
/// nothing has changed.
///
/// Thread safety: any thread; another call with the handle meanwhile returns VA_ERROR_BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_pipeline_append(
    pipeline: *mut va_pipeline,
    pages: *const va_pages,
    classes: *const u8,
) -> va_status {
    run_call(|| {
        PIPELINES.with(pipeline, |head| {
            // SAFETY: the caller vouches for the pages.
            let rows = unsafe { borrow_pages(pages, head.shape()) }?;
            let new = rows.keys.len().saturating_sub(head.len());
            // SAFETY: the caller passes a class for each new token.
            let classes = unsafe { borrow_classes(classes, new) }?;
            Ok(head.append(&rows, classes.as_deref())?)
        })
    })
}

/// Shows the selectors the last queries of a prompt that has been appended, [group, prompt,
/// head_dim], where group = query_heads / kv_heads. The last query belongs to the newest token.
/// Pipelines with needs_observe need it.
///
/// Errors: VA_ERROR_SHAPE and VA_ERROR_NUMBER. Then nothing has changed.
///
/// Thread safety: any thread; another call with the handle meanwhile returns VA_ERROR_BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_pipeline_observe(
    pipeline: *mut va_pipeline,
    pages: *const va_pages,
    queries: *const va_array,
) -> va_status {
    run_call(|| {
        // SAFETY: the caller vouches for the array.
        let queries = unsafe { borrow_array(queries, "queries") }?.to_f32();
        PIPELINES.with(pipeline, |head| {
            // SAFETY: the caller vouches for the pages.
            let rows = unsafe { borrow_pages(pages, head.shape()) }?;
            Ok(head.observe(&rows, queries.view())?)
        })
    })
}

/// Computes attention of one KV head over the engine's pages, which are read in place, on the
/// calling thread. Queries [group, queries, head_dim] are not scaled: one decode step each, in
/// order. Query t may read the first `visible[t]` tokens, at least 1; NULL means all tokens.
/// `output` has group query heads. An engine calls it for all KV heads in parallel.
///
/// head_dim and value_dim must be multiples of 32. All tokens of `pages` must have been appended.
/// Attention weights are passed on to selectors with needs_feedback.
///
/// Errors: VA_ERROR_SHAPE for pages, queries, limits and buffers; VA_ERROR_NUMBER; VA_ERROR_INPUT
/// if a selector needs a prompt and observed none. Then nothing has changed, and nothing is
/// written.
///
/// Thread safety: any thread; another call with the handle meanwhile returns VA_ERROR_BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_attend_pages(
    pipeline: *mut va_pipeline,
    pages: *const va_pages,
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
        PIPELINES.with(pipeline, |head| {
            let shape = head.shape();
            // SAFETY: the caller vouches for the pages.
            let rows = unsafe { borrow_pages(pages, shape) }?;
            let Shape { value_dim, .. } = shape;
            // SAFETY: the caller vouches for the buffers.
            let buffers =
                unsafe { OutputBuffers::read(output, [shape.group(), count, value_dim]) }?;
            let attended = head.attend(&rows, queries.view(), visible)?;
            // SAFETY: the caller vouches for the buffers.
            unsafe { buffers.write(&attended) };
            Ok(())
        })
    })
}

/// Creates a pipeline that continues from the same tokens and step. The indexes are copied, apart
/// from those that va_pipeline_share can share. If `sequence` is not NULL, it is the number of the
/// new sequence, which makes its samples independent. `*fork` receives the handle.
///
/// Thread safety: any thread; another call with the handle meanwhile returns VA_ERROR_BUSY. The
/// fork can be used on other threads than the original at the same time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_pipeline_fork(
    pipeline: *mut va_pipeline,
    sequence: *const u32,
    fork: *mut *mut va_pipeline,
) -> va_status {
    run_call(|| {
        check_pointer(fork, "fork")?;
        // SAFETY: the caller vouches for the number.
        let sequence = unsafe { read_sequence(sequence) }?;
        let forked = PIPELINES.with(pipeline, |head| Ok(head.fork(sequence)))?;
        // SAFETY: the pointer is checked.
        unsafe { fork.write(PIPELINES.insert(forked)?) };
        Ok(())
    })
}

/// Gives a pipeline without tokens the index of the tokens that its sequence has in common with
/// that of `donor`, such as cached pages of a prompt. `*tokens` receives their number;
/// va_pipeline_append continues behind them.
///
/// The common tokens are the longest prefix of `pages`, in whole blocks of 64 tokens, whose keys
/// and values equal those that the donor has indexed. They are compared by checksums, so the
/// donor's pages may have been used again. All results are those of a pipeline that has indexed
/// every token itself. The donor may then continue, be truncated or freed. Memory is shared, apart
/// from a few bytes per token and the index of fewer than 1024 tokens.
///
/// Errors: VA_ERROR_UNSUPPORTED with the name of a selector or sampler whose index serves one
/// sequence only, because it clusters keys or learns from prompts or steps; VA_ERROR_SHAPE for
/// pages, if the pipeline has tokens, or if the donor is not one of the same TOML text, layer and
/// KV head. Then nothing has changed.
///
/// Thread safety: any thread; another call with one of the handles meanwhile returns VA_ERROR_BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_pipeline_share(
    pipeline: *mut va_pipeline,
    donor: *mut va_pipeline,
    pages: *const va_pages,
    tokens: *mut usize,
) -> va_status {
    run_call(|| {
        check_pointer(tokens, "tokens")?;
        let shared = PIPELINES.with(pipeline, |head| {
            // SAFETY: the caller vouches for the pages.
            let rows = unsafe { borrow_pages(pages, head.shape()) }?;
            PIPELINES.with(donor, |donor| Ok(head.share_index(donor, &rows)?))
        })?;
        // SAFETY: the caller vouches for the number.
        unsafe { write_value(tokens, shared, "tokens") }
    })
}

/// Removes all but the first `tokens` tokens from the indexes, in place. `pages` has at least these
/// tokens. The step number continues.
///
/// Errors: VA_ERROR_UNSUPPORTED with the name of a selector or sampler that cannot remove tokens,
/// because it clusters keys or learns from steps; VA_ERROR_SHAPE if there are fewer tokens, or if a
/// prompt that was observed ends later. Then nothing has changed.
///
/// Thread safety: any thread; another call with the handle meanwhile returns VA_ERROR_BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_pipeline_truncate(
    pipeline: *mut va_pipeline,
    pages: *const va_pages,
    tokens: usize,
) -> va_status {
    run_call(|| {
        PIPELINES.with(pipeline, |head| {
            // SAFETY: the caller vouches for the pages.
            let rows = unsafe { borrow_pages(pages, head.shape()) }?;
            Ok(head.truncate(&rows, tokens)?)
        })
    })
}

/// Writes the number of tokens that are indexed.
///
/// Thread safety: any thread; another call with the handle meanwhile returns VA_ERROR_BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_pipeline_len(
    pipeline: *mut va_pipeline,
    tokens: *mut usize,
) -> va_status {
    run_call(|| {
        let len = PIPELINES.with(pipeline, |head| Ok(head.len()))?;
        // SAFETY: the caller vouches for the pointer.
        unsafe { write_value(tokens, len, "tokens") }
    })
}

/// Writes the size of the indexes in bytes.
///
/// Thread safety: any thread; another call with the handle meanwhile returns VA_ERROR_BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_pipeline_bytes(
    pipeline: *mut va_pipeline,
    indexes: *mut usize,
) -> va_status {
    run_call(|| {
        let bytes = PIPELINES.with(pipeline, |head| Ok(head.index_bytes()))?;
        // SAFETY: the caller vouches for the pointer.
        unsafe { write_value(indexes, bytes, "indexes") }
    })
}

/// Writes the input that the pipeline needs. Set `needs->size` before.
///
/// Thread safety: any thread; another call with the handle meanwhile returns VA_ERROR_BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_pipeline_needs(
    pipeline: *mut va_pipeline,
    needs: *mut va_needs,
) -> va_status {
    run_call(|| {
        PIPELINES.with(pipeline, |head| {
            // SAFETY: the caller vouches for the struct.
            unsafe { write_needs(needs, va_needs::from(&*head)) }
        })
    })
}

/// Frees a pipeline. NULL is ignored.
///
/// Errors: VA_ERROR_HANDLE if it was freed before, VA_ERROR_BUSY if another call uses it; it then
/// stays.
///
/// Thread safety: any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_pipeline_free(pipeline: *mut va_pipeline) -> va_status {
    run_call(|| PIPELINES.remove(pipeline))
}
