//! Rows in f16 and bf16 are appended as the same rows in f32, on every backend, in every storage and however they lie.

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

/// How an array of `[heads, tokens, dim]` lies in memory.
#[derive(Clone, Copy, Debug)]
enum Lie {
    InOrder,
    TokensFirst,
    Backwards,
    Apart,
}

/// The array, to be looked at by [`Laid::view`].
struct Laid<T>(Array3<T>, Lie);

impl<T: Copy> Laid<T> {
    fn new(rows: &Array3<f32>, lie: Lie, number: fn(f32) -> T) -> Self {
        let rows = rows.mapv(number);
        let array = match lie {
            Lie::InOrder => rows,
            Lie::TokensFirst => rows.permuted_axes([1, 0, 2]),
            Lie::Backwards => rows.slice_move(s![.., ..;-1, ..;-1]),
            Lie::Apart => {
                let (heads, tokens, dim) = rows.dim();
                Array3::from_shape_fn((heads, 2 * tokens, 3 * dim), |(h, t, i)| {
                    rows[[h, t / 2, i / 3]]
                })
            }
        };
        Self(array.as_standard_layout().into_owned(), lie)
    }

    fn view(&self) -> ArrayView3<'_, T> {
        match self.1 {
            Lie::InOrder => self.0.view(),
            Lie::TokensFirst => self.0.view().permuted_axes([1, 0, 2]),
            Lie::Backwards => self.0.slice(s![.., ..;-1, ..;-1]),
            Lie::Apart => self.0.slice(s![.., ..;2, ..;3]),
        }
    }
}

/// Rows in a narrow type.
enum Narrow {
    F16(Laid<f16>),
    Bf16(Laid<bf16>),
}

impl Narrow {
    fn new(rows: &Array3<f32>, lie: Lie, in_f16: bool) -> Self {
        if in_f16 {
            Self::F16(Laid::new(rows, lie, f16::from_f32))
        } else {
            Self::Bf16(Laid::new(rows, lie, bf16::from_f32))
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

/// Keys and values.
struct Rows {
    keys: Narrow,
    values: Narrow,
}

impl Rows {
    /// The error and the length, or the bits of what is answered and what was read for it.
    fn answer(&self, mut attention: Box<dyn Attention>, narrow: bool) -> Answer {
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

type Answer = Result<(Vec<u32>, Option<Selection>), (String, usize)>;

/// Whether any backend refused the narrow rows, which it did as the wide ones.
fn refused(rows: &Rows) -> bool {
    let config = root("configs/vattention-oracle.toml");
    let pipeline: Arc<PipelineConfig> = load(config).unwrap();
    let mut refused = false;
    for backend in backends() {
        for storage in [Storage::F32, Storage::F16, Storage::Bf16] {
            let options = Options { storage, return_selection: true, ..Options::default() };
            let start = || backend.start(&pipeline, 0, SHAPE, &options).unwrap();
            let (narrow, wide) = (rows.answer(start(), true), rows.answer(start(), false));
            assert_eq!(narrow, wide, "{storage:?} on {}", Backend::name(&*backend));
            refused |= narrow.is_err();
        }
    }
    refused
}

/// Numbers of many magnitudes, some of which f16 has only as subnormals.
fn rows(tokens: usize, dim: usize, seed: u64) -> Array3<f32> {
    let magnitudes = [1.0, 0.0, 1e-4, 1.0, 3e-7, -1.0, 1e-30];
    let mut rows = normal((SHAPE.kv_heads, tokens, dim), seed);
    let row = |(i, x): (usize, &mut f32)| *x *= magnitudes[i % magnitudes.len()];
    rows.iter_mut().enumerate().for_each(row);
    rows
}

fn lie() -> impl Strategy<Value = Lie> {
    prop::sample::select(vec![Lie::InOrder, Lie::TokensFirst, Lie::Backwards, Lie::Apart])
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 8,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn narrow_rows_are_appended_as_wide_ones(
        tokens in 1usize..400,
        lies in (lie(), lie()),
        in_f16: (bool, bool),
        seed: u64,
    ) {
        let keys = rows(tokens, SHAPE.head_dim, seed);
        let values = rows(tokens, SHAPE.value_dim, !seed);
        let rows = Rows {
            keys: Narrow::new(&keys, lies.0, in_f16.0),
            values: Narrow::new(&values, lies.1, in_f16.1),
        };
        prop_assert!(!refused(&rows));
    }

    #[test]
    fn narrow_rows_are_refused_as_wide_ones(
        // 65520 and more are infinite in f16; bf16 has more than is stored, in f16 or at all.
        bad in prop::sample::select(vec![f32::NAN, f32::INFINITY, -f32::INFINITY, -7e4, 1e17]),
        at in (0..SHAPE.kv_heads, 0usize..5, 0..SHAPE.value_dim),
        in_values: bool,
        lie in lie(),
        in_f16: bool,
    ) {
        let mut keys = rows(5, SHAPE.head_dim, 1);
        let mut values = rows(5, SHAPE.value_dim, 2);
        if in_values { values[at] = bad } else { keys[at] = bad }
        let rows =
            Rows { keys: Narrow::new(&keys, lie, in_f16), values: Narrow::new(&values, lie, in_f16) };
        prop_assert!(refused(&rows));
    }
}
