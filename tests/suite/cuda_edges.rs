//! Edge cases of steps on the device: threads that share a routine, sequences that outgrow it, and
//! the fewest and most checks of a sample.

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

fn parse(text: &str) -> Arc<PipelineConfig> {
    Loader::default().parse("edge.toml", text).unwrap()
}

/// Whole numbers, so that products are exact.
fn numbers(heads: usize, count: usize, dim: usize) -> Array3<f32> {
    Array3::from_shape_fn((heads, count, dim), |(h, t, d)| {
        ((h * 3 + (t * t) % 23 + t * 31 + d * 17 + t / 5) % 5) as f32 - 2.0
    })
}

fn start(
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

/// Runs one query for each number of visible tokens.
fn attend(attention: &mut dyn Attention, visible: &[usize]) -> Output {
    let queries = numbers(SHAPE.query_heads, visible.len(), SHAPE.head_dim);
    attention.attend(queries.view(), Some(visible)).unwrap()
}

/// A pipeline with growing samples that runs completely on the device.
fn device_pipeline(rounds: u8) -> Arc<PipelineConfig> {
    parse(&format!(
        "[[selectors]]\ntype = \"sink\"\nsize = 8\n\
         [[selectors]]\ntype = \"hash-attention\"\nsize = 20\n\
         [sampler]\nbase = 30\n\
         [estimator]\ntype = \"ratio\"\nepsilon = 0.3\ndelta = 0.3\nrounds = {rounds}\n"
    ))
}

/// Sequences on several threads use a routine in turn.
#[test]
fn threads_that_share_a_routine_do_not_affect_each_other() {
    let Some(emulator) = common::emulator() else { return };
    let gpu = Gpu::new(emulator);
    let lengths = [700, 90, 400];
    let run = |mut attention: Box<dyn Attention>| -> Vec<Output> {
        let last = attention.len();
        (0..3).map(|_| attend(&mut *attention, &[last - 30, last])).collect()
    };
    let together: Vec<Vec<Output>> = std::thread::scope(|scope| {
        let start_on_gpu = |length| start(&gpu, &device_pipeline(6), length);
        let threads = lengths.map(|length| scope.spawn(move || run(start_on_gpu(length))));
        threads.map(|thread| thread.join().unwrap()).into()
    });
    for (ours, length) in together.iter().zip(lengths) {
        let alone = run(start(&gpu, &device_pipeline(6), length));
        for (ours, alone) in ours.iter().zip(&alone) {
            assert_eq!((&ours.out, &ours.selection), (&alone.out, &alone.selection));
            assert_eq!(ours.rows, alone.rows);
        }
    }
}

#[test]
fn the_fewest_and_the_most_rounds_are_supported() {
    let Some(emulator) = common::emulator() else { return };
    for rounds in [1, 255] {
        let [ours, expected] = [&Gpu::new(emulator.clone()) as &dyn Backend, &Reference]
            .map(|backend| attend(&mut *start(backend, &device_pipeline(rounds), 700), &[700]));
        compare_reports("rounds", SHAPE.group(), &ours, &expected);
        compare_picks("rounds", &ours, &expected);
    }
}

/// The device computes only the bound of an exact top-k, the best remaining logit. Steps with the
/// bound of Quest, or with several bounds, are executed by the host.
#[test]
fn steps_with_bounds_that_the_device_cannot_compute_run_on_the_host() {
    let Some(emulator) = common::emulator() else { return };
    let top = "[[selectors]]\ntype = \"oracle-top-k\"\nsize = 40\n";
    let quest = "[[selectors]]\ntype = \"quest\"\nsize = 48\n";
    let hoeffding =
        "[estimator]\ntype = \"hoeffding\"\ntarget = \"denominator\"\nepsilon = 0.2\ndelta = 0.2\n";
    for (selectors, replays) in [(top, 1), (quest, 0), (&format!("{top}{quest}"), 0)] {
        let device = Watched::new(emulator.clone());
        let pipeline = parse(&format!("share = \"head\"\n{selectors}{hoeffding}"));
        let mut ours = start(&Gpu::new(device.clone()), &pipeline, 700);
        device.take();
        let ours = attend(&mut *ours, &[700]);
        assert_eq!(device.take().replays, replays, "{selectors}");
        let expected = attend(&mut *start(&Reference, &pipeline, 700), &[700]);
        assert!(expected.rows.iter().any(|row| row.sampled > 0), "no sample was drawn");
        compare_reports(selectors, SHAPE.group(), &ours, &expected);
        compare_picks(selectors, &ours, &expected);
    }
}

/// Steps equal those of the reference while sequences outgrow the memory of their routine.
#[test]
fn memory_grows_with_sequences() {
    let Some(emulator) = common::emulator() else { return };
    let mut ours = start(&Gpu::new(emulator), &device_pipeline(6), 650);
    let mut expected = start(&Reference, &device_pipeline(6), 650);
    for new in [650..1020, 1020..1030, 1030..2100] {
        append(&mut *ours, new.clone());
        append(&mut *expected, new.clone());
        let visible = [new.end - 7, new.end];
        let (ours, expected) = (attend(&mut *ours, &visible), attend(&mut *expected, &visible));
        compare_reports("memory", SHAPE.group(), &ours, &expected);
        compare_picks("memory", &ours, &expected);
    }
}
