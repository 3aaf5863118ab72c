//! Rows in f16 and bf16 are appended as the same rows in f32, on every backend, in every storage
//! and in any memory layout.

use std::sync::Arc;

use crate::common::{backends, normal, root};
use half::{bf16, f16};
use ndarray::{Array3, ArrayView3, s};
use proptest::prelude::*;
use vattention::config::load;
use vattention::{
    Attention, Backend, Options, Output, PipelineConfig, RowsView, Shape, Storage,
    engine::Selection,
};

const SHAPE: Shape = Shape { query_heads: 4, kv_heads: 2, head_dim: 20, value_dim: 12 };

/// Memory layout of an array `[heads, tokens, dim]`.
#[derive(Clone, Copy, Debug)]
enum Layout {
    Standard,
    TokensFirst,
    Reversed,
    Strided,
}

/// An array in some layout. [`StoredArray::view`] has the axes `[heads, tokens, dim]`.
struct StoredArray<T>(Array3<T>, Layout);

impl<T: Copy> StoredArray<T> {
    fn new(rows: &Array3<f32>, layout: Layout, number: fn(f32) -> T) -> Self {
        let rows = rows.mapv(number);
        let array = match layout {
            Layout::Standard => rows,
            Layout::TokensFirst => rows.permuted_axes([1, 0, 2]),
            Layout::Reversed => rows.slice_move(s![.., ..;-1, ..;-1]),
            Layout::Strided => {
                let (heads, tokens, dim) = rows.dim();
                Array3::from_shape_fn((heads, 2 * tokens, 3 * dim), |(h, t, i)| {
                    rows[[h, t / 2, i / 3]]
                })
            }
        };
        Self(array.as_standard_layout().into_owned(), layout)
    }

    fn view(&self) -> ArrayView3<'_, T> {
        match self.1 {
            Layout::Standard => self.0.view(),
            Layout::TokensFirst => self.0.view().permuted_axes([1, 0, 2]),
            Layout::Reversed => self.0.slice(s![.., ..;-1, ..;-1]),
            Layout::Strided => self.0.slice(s![.., ..;2, ..;3]),
        }
    }
}

/// Rows in a 16-bit type.
enum NarrowRows {
    F16(StoredArray<f16>),
    Bf16(StoredArray<bf16>),
}

impl NarrowRows {
    fn new(rows: &Array3<f32>, layout: Layout, in_f16: bool) -> Self {
        if in_f16 {
            Self::F16(StoredArray::new(rows, layout, f16::from_f32))
        } else {
            Self::Bf16(StoredArray::new(rows, layout, bf16::from_f32))
        }
    }

    fn view(&self) -> RowsView<'_> {
        match self {
            Self::F16(rows) => rows.view().into(),
            Self::Bf16(rows) => rows.view().into(),
        }
    }

    fn in_f32(&self) -> Array3<f32> {
        match self {
            Self::F16(rows) => rows.view().mapv(f16::to_f32),
            Self::Bf16(rows) => rows.view().mapv(bf16::to_f32),
        }
    }
}

struct KeysAndValues {
    keys: NarrowRows,
    values: NarrowRows,
}

impl KeysAndValues {
    /// Appends the rows as they are or in f32. Returns the bits of a step's output with the tokens
    /// read, or the error with the length of the sequence.
    fn run(&self, mut attention: Box<dyn Attention>, narrow: bool) -> StepResult {
        let appended = if narrow {
            attention.append(self.keys.view(), self.values.view())
        } else {
            attention.append(self.keys.in_f32().view(), self.values.in_f32().view())
        };
        if let Err(error) = appended {
            return Err((error.to_string(), attention.len()));
        }
        let queries = normal((SHAPE.query_heads, 2, SHAPE.head_dim), 7);
        let Output { out, log_denominator, selection, .. } =
            attention.attend(queries.view(), None).unwrap();
        Ok((out.iter().chain(&log_denominator).map(|x| x.to_bits()).collect(), selection))
    }
}

type StepResult = Result<(Vec<u32>, Option<Selection>), (String, usize)>;

/// Asserts that 16-bit rows and the same rows in f32 have the same result on every backend. Returns
/// true if the result is an error on any backend.
fn compare_with_f32(rows: &KeysAndValues) -> bool {
    let config = root("configs/vattention-oracle.toml");
    let pipeline: Arc<PipelineConfig> = load(config).unwrap();
    let mut is_error = false;
    for backend in backends() {
        for storage in Storage::ALL {
            let options = Options { storage, return_selection: true, ..Options::default() };
            let start = || backend.start(&pipeline, 0, SHAPE, &options).unwrap();
            let (narrow, wide) = (rows.run(start(), true), rows.run(start(), false));
            assert_eq!(narrow, wide, "{storage:?} on {}", Backend::name(&*backend));
            is_error |= narrow.is_err();
        }
    }
    is_error
}

/// Numbers of many magnitudes, some of which are subnormal in f16.
fn rows(tokens: usize, dim: usize, seed: u64) -> Array3<f32> {
    let magnitudes = [1.0, 0.0, 1e-4, 1.0, 3e-7, -1.0, 1e-30];
    let mut rows = normal((SHAPE.kv_heads, tokens, dim), seed);
    let row = |(i, x): (usize, &mut f32)| *x *= magnitudes[i % magnitudes.len()];
    rows.iter_mut().enumerate().for_each(row);
    rows
}

fn layout() -> impl Strategy<Value = Layout> {
    let layouts = [Layout::Standard, Layout::TokensFirst, Layout::Reversed, Layout::Strided];
    prop::sample::select(layouts.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 8,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn narrow_rows_give_the_same_results_as_f32(
        tokens in 1usize..400,
        layouts in (layout(), layout()),
        in_f16: (bool, bool),
        seed: u64,
    ) {
        let keys = rows(tokens, SHAPE.head_dim, seed);
        let values = rows(tokens, SHAPE.value_dim, !seed);
        let rows = KeysAndValues {
            keys: NarrowRows::new(&keys, layouts.0, in_f16.0),
            values: NarrowRows::new(&values, layouts.1, in_f16.1),
        };
        prop_assert!(!compare_with_f32(&rows));
    }

    #[test]
    fn narrow_rows_give_the_same_errors_as_f32(
        // Numbers from 65520 on are infinite in f16; bf16 has numbers that are too large for any
        // storage.
        bad in prop::sample::select(vec![f32::NAN, f32::INFINITY, -f32::INFINITY, -7e4, 1e17]),
        index in (0..SHAPE.kv_heads, 0usize..5, 0..SHAPE.value_dim),
        in_values: bool,
        layout in layout(),
        in_f16: bool,
    ) {
        let mut keys = rows(5, SHAPE.head_dim, 1);
        let mut values = rows(5, SHAPE.value_dim, 2);
        if in_values { values[index] = bad } else { keys[index] = bad }
        let rows = KeysAndValues {
            keys: NarrowRows::new(&keys, layout, in_f16),
            values: NarrowRows::new(&values, layout, in_f16),
        };
        prop_assert!(compare_with_f32(&rows));
    }
}
