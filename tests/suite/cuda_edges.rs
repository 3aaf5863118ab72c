//! Steps on the device at the edges: threads that share a routine, sequences that outgrow it, and as many looks as there may be.

use crate::common;
use std::sync::Arc;

use ndarray::{Array3, s};
use vattention::backends::Reference;
use vattention::config::Loader;
use vattention::cuda::Gpu;
use vattention::{Attention, Backend, Options, Output, PipelineConfig, Shape};

use crate::common::agreement::{compare_picks, compare_reports};
use crate::common::devices::Watched;

const SHAPE: Shape = Shape { query_heads: 4, kv_heads: 2, head_dim: 16, value_dim: 12 };

fn parsed(text: &str) -> Arc<PipelineConfig> {
    Loader::default().parse("edge.toml", text).unwrap()
}

/// Whole numbers, so that products are exact.
fn numbers(heads: usize, count: usize, dim: usize) -> Array3<f32> {
    Array3::from_shape_fn((heads, count, dim), |(h, t, d)| {
        ((h * 3 + (t * t) % 23 + t * 31 + d * 17 + t / 5) % 5) as f32 - 2.0
    })
}

fn started(
    backend: &dyn Backend,
    pipeline: &Arc<PipelineConfig>,
    tokens: usize,
) -> Box<dyn Attention> {
    let options = Options { return_selection: true, scale: Some(0.25), ..Options::default() };
    let mut attention = backend.start(pipeline, 0, SHAPE, &options).unwrap();
    append(&mut *attention, 0..tokens);
    attention
}

fn append(attention: &mut dyn Attention, tokens: std::ops::Range<usize>) {
    let part =
        |dim| numbers(SHAPE.kv_heads, tokens.end, dim).slice_move(s![.., tokens.clone(), ..]);
    attention.append(part(SHAPE.head_dim).view(), part(SHAPE.value_dim).view()).unwrap();
}

/// One query for each number of visible tokens.
fn attend(attention: &mut dyn Attention, visible: &[usize]) -> Output {
    let queries = numbers(SHAPE.query_heads, visible.len(), SHAPE.head_dim);
    attention.attend(queries.view(), Some(visible)).unwrap()
}

/// A pipeline that the device runs by itself, of which samples grow.
fn whole(rounds: u8) -> Arc<PipelineConfig> {
    parsed(&format!(
        "[[selectors]]\ntype = \"sink\"\nsize = 8\n\
         [[selectors]]\ntype = \"hash-attention\"\nsize = 20\n\
         [sampler]\nbase = 30\n\
         [estimator]\ntype = \"ratio\"\nepsilon = 0.3\ndelta = 0.3\nrounds = {rounds}\n"
    ))
}

/// Layers and sequences on threads of their own take turns with a routine.
#[test]
fn threads_that_share_a_routine_do_not_disturb_one_another() {
    let Some(emulator) = common::emulator() else { return };
    let gpu = Gpu::new(emulator);
    let lengths = [700, 90, 400];
    let run = |mut attention: Box<dyn Attention>| -> Vec<Output> {
        let last = attention.len();
        (0..3).map(|_| attend(&mut *attention, &[last - 30, last])).collect()
    };
    let together: Vec<Vec<Output>> = std::thread::scope(|scope| {
        let start = |length| started(&gpu, &whole(6), length);
        let threads = lengths.map(|length| scope.spawn(move || run(start(length))));
        threads.map(|thread| thread.join().unwrap()).into()
    });
    for (ours, length) in together.iter().zip(lengths) {
        let alone = run(started(&gpu, &whole(6), length));
        for (ours, alone) in ours.iter().zip(&alone) {
            assert_eq!((&ours.out, &ours.selection), (&alone.out, &alone.selection));
            assert_eq!(ours.rows, alone.rows);
        }
    }
}

/// One look, and as many as can be asked for.
#[test]
fn the_fewest_and_the_most_looks_are_taken() {
    let Some(emulator) = common::emulator() else { return };
    for rounds in [1, 255] {
        let [ours, expected] = [&Gpu::new(emulator.clone()) as &dyn Backend, &Reference]
            .map(|backend| attend(&mut *started(backend, &whole(rounds), 700), &[700]));
        compare_reports("looks", SHAPE.group(), &ours, &expected);
        compare_picks("looks", &ours, &expected);
    }
}

/// Quest proves a bound too, but not one that the device knows: such a step is the host's, and so is
/// one with more bounds than the best logit left over.
#[test]
fn bounds_that_the_device_cannot_find_are_left_to_the_host() {
    let Some(emulator) = common::emulator() else { return };
    let top = "[[selectors]]\ntype = \"oracle-top-k\"\nsize = 40\n";
    let quest = "[[selectors]]\ntype = \"quest\"\nsize = 48\n";
    let hoeffding =
        "[estimator]\ntype = \"hoeffding\"\ntarget = \"denominator\"\nepsilon = 0.2\ndelta = 0.2\n";
    for (selectors, replays) in [(top, 1), (quest, 0), (&format!("{top}{quest}"), 0)] {
        let device = Watched::new(emulator.clone());
        let pipeline = parsed(&format!("share = \"head\"\n{selectors}{hoeffding}"));
        let mut ours = started(&Gpu::new(device.clone()), &pipeline, 700);
        device.take();
        let ours = attend(&mut *ours, &[700]);
        assert_eq!(device.take().replays, replays, "{selectors}");
        let expected = attend(&mut *started(&Reference, &pipeline, 700), &[700]);
        assert!(expected.rows.iter().any(|row| row.sampled > 0), "nothing is left to chance");
        compare_reports(selectors, SHAPE.group(), &ours, &expected);
        compare_picks(selectors, &ours, &expected);
    }
}

/// What is beyond the room that was made is answered as by the reference, before and after.
#[test]
fn room_is_made_as_sequences_grow() {
    let Some(emulator) = common::emulator() else { return };
    let mut ours = started(&Gpu::new(emulator), &whole(6), 650);
    let mut expected = started(&Reference, &whole(6), 650);
    for new in [650..1020, 1020..1030, 1030..2100] {
        append(&mut *ours, new.clone());
        append(&mut *expected, new.clone());
        let visible = [new.end - 7, new.end];
        let (ours, expected) = (attend(&mut *ours, &visible), attend(&mut *expected, &visible));
        compare_reports("room", SHAPE.group(), &ours, &expected);
        compare_picks("room", &ours, &expected);
    }
}
