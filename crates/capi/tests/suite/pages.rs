//! Number types and layouts of an engine's pages.

use std::ffi::c_void;
use std::ptr;

use half::{bf16, f16};
use ndarray::Array3;
use vattention::backends::{EngineHead, HeadRows};
use vattention::config::Loader;
use vattention::engine::{Tokens, round_row};
use vattention::{Options, Shape};
use vattention_capi::array::{VA_BF16, VA_F16, VA_F32, VA_Q8, va_array, va_dtype};
use vattention_capi::layer::va_layer;
use vattention_capi::output::va_output;
use vattention_capi::pages::{va_pages, va_rows};
use vattention_capi::pipeline::{
    va_attend_pages, va_pipeline, va_pipeline_append, va_pipeline_free, va_pipeline_new,
};
use vattention_capi::status::va_status;

const SHAPE: Shape = Shape { query_heads: 4, kv_heads: 2, head_dim: 32, value_dim: 32 };
const DIM: usize = 32;
const TOKENS: usize = 700;
const PAGE_TOKENS: usize = 16;
const PAGES: usize = TOKENS.div_ceil(PAGE_TOKENS);
const TOML: &str = "[[selectors]]\ntype = 'quest'\nsize = 200";

/// Places of the rows in a page.
#[derive(Clone, Copy, Debug)]
enum PageOrder {
    /// `[tokens, kv_heads, dim]`
    ByToken,
    /// `[kv_heads, tokens, dim]`
    ByHead,
}

/// Pool of the keys of all KV heads, which are also the values.
struct Pool<E> {
    elements: Vec<E>,
    /// Elements of a row, with its scale if it has one.
    row: usize,
    order: PageOrder,
}

impl<E: Copy> Pool<E> {
    /// Puts rows `[kv_heads][tokens][row]` into pages, the last one first, with gaps of `gap`.
    fn new(rows: &[Vec<Vec<E>>], order: PageOrder, gap: E) -> Self {
        let row = rows[0][0].len();
        let mut pool = Self { elements: Vec::new(), row, order };
        pool.elements = vec![gap; PAGES * pool.page_stride()];
        for (kv_head, rows) in rows.iter().enumerate() {
            for (token, numbers) in rows.iter().enumerate() {
                let page = table()[token / PAGE_TOKENS] as usize * pool.page_stride();
                let place = page + pool.offset(kv_head) + token % PAGE_TOKENS * pool.row_stride();
                pool.elements[place..place + row].copy_from_slice(numbers);
            }
        }
        pool
    }

    fn page_stride(&self) -> usize {
        PAGE_TOKENS * SHAPE.kv_heads * self.row + 8
    }

    fn row_stride(&self) -> usize {
        match self.order {
            PageOrder::ByToken => SHAPE.kv_heads * self.row,
            PageOrder::ByHead => self.row,
        }
    }

    fn offset(&self, kv_head: usize) -> usize {
        match self.order {
            PageOrder::ByToken => kv_head * self.row,
            PageOrder::ByHead => kv_head * PAGE_TOKENS * self.row,
        }
    }

    fn rows(&self, kv_head: usize, dtype: va_dtype) -> va_rows {
        va_rows {
            size: size_of::<va_rows>(),
            dtype,
            pool: self.elements.as_ptr().cast::<c_void>(),
            elements: self.elements.len(),
            offset: self.offset(kv_head),
            page_stride: self.page_stride(),
            row_stride: self.row_stride(),
            scale_offset: if dtype == VA_Q8 { self.offset(kv_head) + DIM } else { 0 },
        }
    }
}

/// Block table, in which the pages are in reverse order.
fn table() -> Vec<u32> {
    (0..PAGES as u32).rev().collect()
}

fn number(seed: usize) -> f32 {
    ((seed * 7919 + seed / 31) % 1009) as f32 / 500.0 - 1.0
}

fn row(kv_head: usize, token: usize) -> Vec<f32> {
    (0..DIM).map(|i| number((kv_head * TOKENS + token) * DIM + i)).collect()
}

fn all_rows<E>(convert: impl Fn(&[f32]) -> Vec<E>) -> Vec<Vec<Vec<E>>> {
    let head = |kv_head| (0..TOKENS).map(|token| convert(&row(kv_head, token))).collect();
    (0..SHAPE.kv_heads).map(head).collect()
}

fn group_queries() -> Array3<f32> {
    let numbers = |(head, query, i)| number(head * 1000 + query * 100 + i + 5);
    Array3::from_shape_fn((SHAPE.group(), 2, DIM), numbers)
}

/// Output of a KV head by the C interface.
fn attend_in_c<E: Copy>(pool: &Pool<E>, kv_head: usize, dtype: va_dtype) -> Vec<f32> {
    let layer = va_layer {
        size: size_of::<va_layer>(),
        query_heads: SHAPE.query_heads,
        kv_heads: SHAPE.kv_heads,
        head_dim: DIM,
        value_dim: 0,
        index: 0,
        scale: 0.0,
        soft_cap: 0.0,
        sink_logits: ptr::null(),
    };
    let toml = std::ffi::CString::new(TOML).unwrap();
    let (rows, table, queries) = (pool.rows(kv_head, dtype), table(), group_queries());
    let pages = va_pages {
        size: size_of::<va_pages>(),
        keys: &raw const rows,
        values: &raw const rows,
        table: table.as_ptr(),
        table_len: table.len(),
        page_tokens: PAGE_TOKENS,
        tokens: TOKENS,
    };
    let array = va_array {
        size: size_of::<va_array>(),
        dtype: VA_F32,
        data: queries.as_ptr().cast(),
        shape: [SHAPE.group(), 2, DIM],
        strides: [0; 3],
    };
    let mut out = vec![0.0; queries.len()];
    let output = va_output {
        size: size_of::<va_output>(),
        out: out.as_mut_ptr(),
        out_len: out.len(),
        log_denominator: ptr::null_mut(),
        log_denominator_len: 0,
        reports: ptr::null_mut(),
        report_size: 0,
        reports_len: 0,
    };
    let mut pipeline: *mut va_pipeline = ptr::null_mut();
    // SAFETY: all pointers are those of live structs and arrays with the stated lengths.
    let statuses = unsafe {
        let layer = &raw const layer;
        [
            va_pipeline_new(toml.as_ptr(), layer, kv_head, ptr::null(), &raw mut pipeline),
            va_pipeline_append(pipeline, &raw const pages, ptr::null()),
            va_attend_pages(
                pipeline,
                &raw const pages,
                &raw const array,
                ptr::null(),
                &raw const output,
            ),
            va_pipeline_free(pipeline),
        ]
    };
    assert_eq!(statuses, [va_status::VA_OK; 4]);
    out
}

/// The same output, from contiguous rows.
fn attend_in_rust(rows: &Tokens<'_>, kv_head: usize) -> Vec<f32> {
    let config = Loader::default().parse("pipeline", TOML).unwrap();
    let mut head = EngineHead::new(&config, 0, kv_head, SHAPE, &Options::default()).unwrap();
    let rows = HeadRows { keys: *rows, values: *rows };
    head.append(&rows, None).unwrap();
    let output = head.attend(&rows, group_queries().view(), None).unwrap();
    output.out.into_raw_vec_and_offset().0
}

fn check<E: vattention::engine::Element>(
    dtype: va_dtype,
    gap: E,
    convert: impl Fn(&[f32]) -> Vec<E>,
    view: impl Fn(&[E]) -> Tokens<'_>,
) {
    let rows = all_rows(&convert);
    for order in [PageOrder::ByToken, PageOrder::ByHead] {
        let pool = Pool::new(&rows, order, gap);
        for (kv_head, rows) in rows.iter().enumerate() {
            let found = attend_in_c(&pool, kv_head, dtype);
            let want = attend_in_rust(&view(&rows.concat()), kv_head);
            assert_eq!(found, want, "dtype {dtype}, {order:?}, KV head {kv_head}");
            assert!(found.iter().all(|x| x.is_finite()) && found.iter().any(|&x| x != 0.0));
        }
    }
}

/// Rows are read in place, without the gaps between pages.
#[test]
fn pages_of_each_type_and_order_give_the_same_outputs() {
    check(VA_F32, f32::NAN, <[f32]>::to_vec, |all| Tokens::new(all, all.len() / DIM, DIM));
    let to_f16 = |row: &[f32]| row.iter().map(|&x| f16::from_f32(x)).collect();
    check(VA_F16, f16::NAN, to_f16, |all| Tokens::new(all, all.len() / DIM, DIM));
    let to_bf16 = |row: &[f32]| row.iter().map(|&x| bf16::from_f32(x)).collect();
    check(VA_BF16, bf16::NAN, to_bf16, |all| Tokens::new(all, all.len() / DIM, DIM));
    let to_integers = |row: &[f32]| {
        let mut integers = vec![0_i8; DIM];
        let scale = round_row(row, &mut integers);
        integers.extend(scale.to_ne_bytes().map(u8::cast_signed));
        integers
    };
    check(VA_Q8, i8::MIN, to_integers, |all| {
        let stored = Tokens::new(all, all.len() / (DIM + 4), DIM + 4);
        stored.with_scales_in_rows(DIM).columns(0..DIM)
    });
}
