use super::*;
use proptest::prelude::*;

/// Puts `before` rows of NaN before the rows, and `left` NaN before and after each row.
fn frame_with_nan(rows: &[f32], dim: usize, before: usize, left: usize) -> Vec<f32> {
    let stride = dim + 2 * left;
    let mut all = vec![f32::NAN; (before + rows.len() / dim) * stride];
    for (i, x) in rows.iter().enumerate() {
        all[(before + i / dim) * stride + left + i % dim] = *x;
    }
    all
}

/// Puts pages of `size` numbers into a pool, the last page first, with gaps up to `stride`, and
/// returns the pool and its block table.
fn build_pool<T: Copy>(numbers: &[T], size: usize, stride: usize, gap: T) -> (Vec<T>, Vec<u32>) {
    let (mut pool, mut table) = (Vec::new(), Vec::new());
    for page in numbers.chunks(size).rev() {
        table.push(table.len() as u32);
        pool.extend_from_slice(page);
        pool.resize(table.len() * stride, gap);
    }
    table.reverse();
    (pool, table)
}

/// Rows of integers for [`frame_with_nan`], each with its scale behind it, and the scales.
fn to_integers(framed: &[f32], stride: usize) -> (Vec<i8>, Vec<f32>) {
    let (mut all, mut scales) = (Vec::new(), Vec::new());
    for (i, row) in framed.chunks(stride).enumerate() {
        let scale = [0.5_f32, 0.25, 1.0][i % 3];
        all.extend(row.iter().map(|&x| if x.is_nan() { i8::MAX } else { (x / scale) as i8 }));
        all.extend(scale.to_ne_bytes().map(u8::cast_signed));
        scales.push(scale);
    }
    (all, scales)
}

/// Block tables come from a scheduler, so a wrong one is an error and not a panic.
#[test]
fn pages_outside_the_pool_are_refused() {
    let pool = [0.0_f32; 24];
    let strided = |table: &[u32], rows, stride, row_stride, len| {
        let page = PageLayout { rows, stride, row_stride };
        let tokens = Tokens::paged(&pool, table, page, len, 3);
        tokens.map_or_else(|error| error.to_string(), |tokens| tokens.len().to_string())
    };
    let paged = |table: &[u32], rows, stride, len| strided(table, rows, stride, 3, len);
    assert_eq!(paged(&[3, 0], 2, 6, 4), "4");
    assert_eq!(strided(&[2], 2, 9, 3, 2), "2", "the last row ends with the pool");
    assert_eq!(strided(&[1], 2, 13, 8, 2), "2", "nothing follows the last row");
    assert_eq!(paged(&[3, 99], 2, 6, 2), "2", "pages beyond the last row are not read");
    assert_eq!(paged(&[], 2, 6, 0), "0");
    for (message, part) in [
        (paged(&[0], 0, 6, 2), "rows of a page"),
        (paged(&[0], 2, 5, 2), "stride of pages: expected at least 6"),
        (strided(&[0], 2, 6, 2, 2), "stride of rows: expected at least 3"),
        (strided(&[0], 2, 10, 8, 2), "stride of pages: expected at least 11"),
        (strided(&[1], 2, 14, 8, 2), "block table[0]: expected a page within the pool's 24"),
        (paged(&[0], 2, 6, 4), "block table: expected at least 2 pages"),
        (paged(&[0, 4], 2, 6, 4), "block table[1]: expected a page within the pool's 24 elements"),
        (paged(&[0, u32::MAX], 2, usize::MAX, 4), "block table[1]"),
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    /// Every number type and layout gives the same rows and dot products, exactly for small
    /// integers.
    #[test]
    fn layouts_agree(
        len in 0usize..40,
        dim in 1usize..70,
        before in 0usize..9,
        left in 0usize..3,
        per_block in 1_usize..9,
        seed: u8,
    ) {
        let small = |i: usize| ((i * 7 + usize::from(seed)) % 5) as f32 - 2.0;
        let query: Vec<f32> = (0..dim).map(small).collect();
        let rows: Vec<f32> = (0..len * dim).map(|i| small(i + 3)).collect();
        let stride = dim + 2 * left;
        let wide = frame_with_nan(&rows, dim, before, left);
        let half: Vec<f16> = rows.iter().map(|&x| f16::from_f32(x)).collect();
        let brain: Vec<bf16> = wide.iter().map(|&x| bf16::from_f32(x)).collect();
        let half_blocks: Vec<&[f16]> = half.chunks(per_block * dim).collect();
        let brain_blocks: Vec<&[bf16]> = brain.chunks(per_block * stride).collect();
        let (all, columns) = (before + len, left..left + dim);
        let page =
            PageLayout { rows: per_block, stride: per_block * stride + 3, row_stride: stride };
        let (pool, table) = build_pool(&brain, per_block * stride, page.stride, bf16::NAN);
        let paged = Tokens::paged(&pool, &table, page, all, stride).unwrap();
        let inner = &pool[left.min(pool.len())..];
        let narrow = Tokens::paged(inner, &table, page, all, dim).unwrap();
        let ((integers, scales), place) = (to_integers(&wide, stride), stride);
        let stride = stride + SCALE_BYTES;
        let integer_blocks: Vec<&[i8]> = integers.chunks(per_block * stride).collect();
        let page =
            PageLayout { rows: per_block, stride: per_block * stride + 5, row_stride: stride };
        let (integer_pool, integer_table) =
            build_pool(&integers, per_block * stride, page.stride, i8::MIN);
        let paged_integers =
            Tokens::paged(&integer_pool, &integer_table, page, all, stride).unwrap();
        let views = [
            Tokens::new(&rows, len, dim),
            Tokens::strided(&wide[left.min(wide.len())..], all, dim, place).range(before..all),
            Tokens::new(&brain, all, place).range(before..all).columns(columns.clone()),
            Tokens::blocks(&half_blocks, per_block, len, dim),
            paged.columns(columns.clone()).range(before..all),
            narrow.range(before..all),
            Tokens::blocks(&brain_blocks, per_block, all, place)
                .columns(columns.clone())
                .range(before..all),
            Tokens::strided(&integers, all, place, stride)
                .with_scales(&scales)
                .unwrap()
                .range(before..all)
                .columns(columns.clone()),
            Tokens::new(&integers, all, stride)
                .columns(columns.clone())
                .range(before..all)
                .with_scales(&scales[before..])
                .unwrap(),
            Tokens::blocks(&integer_blocks, per_block, all, stride)
                .range(before..all)
                .columns(columns.clone())
                .with_scales_in_rows(place),
            paged_integers.with_scales_in_rows(place).columns(columns).range(before..all),
        ];
        for tokens in views {
            prop_assert_eq!((tokens.len(), tokens.dim()), (len, dim));
            let array = tokens.to_array(0..len);
            prop_assert!(array.iter().eq(&rows));
            let mut dots = vec![0.0; len];
            tokens.dots(0..len, &query, &mut dots);
            for (i, &got) in dots.iter().enumerate() {
                let want: f32 = array.row(i).iter().zip(&query).map(|(x, q)| x * q).sum();
                prop_assert_eq!(got, want);
            }
        }
    }
}

#[test]
fn ranges_and_columns_can_be_nested() {
    let numbers: Vec<f32> = (0..20).map(|i| i as f32).collect();
    let tokens =
        Tokens::new(&numbers, 4, 5).range(1..4).columns(1..5).range(1..3).range(1..2).columns(2..3);
    assert_eq!((tokens.len(), tokens.to_array(0..1).as_slice()), (1, Some(&[18.0][..])));
    assert!(tokens.range(1..1).is_empty());
}

#[test]
fn half_precision_is_widened_exactly() {
    for bits in 0..=u16::MAX {
        let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
        if half.is_finite() {
            assert_eq!(half.wide().to_bits(), half.to_f32().to_bits());
        }
        if brain.is_finite() {
            assert_eq!(brain.wide().to_bits(), brain.to_f32().to_bits());
        }
    }
}

/// Dot products computed one by one or together are the same to the last bit, in any number type.
#[test]
fn dots_equal_single_dot_products() {
    let real = |i: usize| ((i * 7919 % 1000) as f32 / 300.0 - 1.6).powi(3);
    for dim in [1, 7, 16, 40, 128] {
        let queries: Vec<f32> = (0..dim * 11).map(real).collect();
        let rows: Vec<f32> = (dim..dim * 51).map(real).collect();
        let half: Vec<f16> = rows.iter().map(|&x| f16::from_f32(x)).collect();
        let brain: Vec<bf16> = rows.iter().map(|&x| bf16::from_f32(x)).collect();
        let mut integers = vec![0; rows.len()];
        let pairs = rows.chunks(dim).zip(integers.chunks_mut(dim));
        let scales: Vec<f32> = pairs.map(|(row, integers)| round_row(row, integers)).collect();
        let all = [
            Tokens::new(&rows, 50, dim),
            Tokens::new(&half, 50, dim),
            Tokens::new(&brain, 50, dim),
            Tokens::new(&integers, 50, dim).with_scales(&scales).unwrap(),
        ];
        for tokens in all {
            let some = [3, 49, 3, 10];
            let mut gathered = [f32::NAN; 4];
            tokens.dots_of(&some, &queries[..dim], &mut gathered);
            assert_eq!(gathered, some.map(|token| tokens.dot(token, &queries[..dim])));
            for count in 0..=11 {
                let mut together = vec![f32::NAN; count * 39];
                tokens.dots(10..49, &queries[..count * dim], &mut together);
                for (query, products) in queries.chunks(dim).zip(together.chunks(39)) {
                    let same = |(i, &x): (usize, &f32)| x == tokens.dot(10 + i, query);
                    assert!(products.iter().enumerate().all(same), "{count} of {dim}");
                }
            }
        }
    }
}

/// Scales come from an engine, so wrong ones are errors that name them.
#[test]
fn missing_and_invalid_scales_are_refused() {
    let (integers, floats) = ([1_i8; 12], [1.0_f32; 12]);
    let rows = Tokens::new(&integers, 3, 4);
    let message = |scaled: Result<Tokens<'_>>| scaled.unwrap_err().to_string();
    for (message, part) in [
        (message(rows.with_scales(&[1.0; 2])), "scales: expected 3, one per row"),
        (message(rows.with_scales(&[1.0, f32::NAN, 1.0])), "scales[1]"),
        (message(rows.with_scales(&[1.0, 1.0, f32::INFINITY])), "scales[2]"),
        (message(rows.with_scales(&[-1.0, 1.0, 1.0])), "scales[0]"),
        (message(Tokens::new(&floats, 3, 4).with_scales(&[1.0; 3])), "none for rows of floats"),
        (rows.check_scales("keys").unwrap_err().to_string(), "scales of the keys"),
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    rows.with_scales(&[0.0, 1.0, 2.0]).unwrap().check_scales("keys").unwrap();
    Tokens::new(&floats, 3, 4).check_scales("keys").unwrap();
}

#[test]
#[should_panic(expected = "a scale at byte 1 of 4")]
fn scales_beyond_a_row_are_refused() {
    let _ = Tokens::new(&[0_i8; 8], 2, 4).with_scales_in_rows(1);
}

#[test]
#[should_panic(expected = "3 rows need")]
fn a_slice_too_short_is_refused() {
    Tokens::new(&[0.0_f32; 8], 3, 3);
}

#[test]
#[should_panic(expected = "block 1 holds less than 1 rows")]
fn a_block_too_short_is_refused() {
    Tokens::blocks(&[&[0.0_f32; 6], &[0.0; 2]], 2, 3, 3);
}

#[test]
#[should_panic(expected = "5 rows need more than 2 blocks")]
fn too_few_blocks_are_refused() {
    Tokens::blocks(&[&[0.0_f32; 6], &[0.0; 6]], 2, 5, 3);
}

#[test]
#[should_panic(expected = "a block has rows")]
fn blocks_without_rows_are_refused() {
    Tokens::blocks(&[&[0.0_f32; 9]], 0, 3, 3);
}

/// Around the borders of pages, ranges have the same rows and dot products as single tokens.
#[test]
fn pages_may_have_any_number_of_rows() {
    const DIM: usize = 5;
    for per_page in [1, 3, 16, 48, 100] {
        for len in [1, per_page - 1, per_page, per_page + 1, 2 * per_page, 3 * per_page + 2] {
            let numbers: Vec<f32> = (0..len * DIM).map(|i| (i % 1009) as f32).collect();
            let pages: Vec<&[f32]> = numbers.chunks(per_page * DIM).collect();
            let tokens = Tokens::blocks(&pages, per_page, len, DIM);
            let query = [1.0, -2.0, 3.0, -4.0, 5.0];
            let row = |token: usize| &numbers[token * DIM..][..DIM];
            for first in [0, per_page - 1, per_page, per_page + 1].map(|first| first.min(len)) {
                let mut dots = vec![0.0; len - first];
                tokens.dots(first..len, &query, &mut dots);
                let part = tokens.range(first..len);
                for (i, &got) in dots.iter().enumerate() {
                    let mut copied = [0.0; DIM];
                    part.copy_row(i, &mut copied);
                    assert_eq!(copied, row(first + i), "{first} + {i} of {len} by {per_page}");
                    assert_eq!(part.dot(i, &query), got);
                    assert_eq!(got, dot(row(first + i), &query));
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "3..6 of 5 elements")]
fn columns_beyond_a_row_are_refused() {
    let _ = Tokens::new(&[0.0_f32; 10], 2, 5).columns(3..6);
}

#[test]
#[should_panic(expected = "1..3 of 2 rows")]
fn rows_beyond_the_last_are_refused() {
    let _ = Tokens::new(&[0.0_f32; 10], 2, 5).range(1..3);
}
