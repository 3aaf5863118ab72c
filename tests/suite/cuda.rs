//! The CUDA backend: failing devices on an emulated GPU, and shapes at its limits, on this
//! machine's GPU too.

use crate::common;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use ndarray::{Array3, s};
use vattention::backends::Reference;
use vattention::config::{Loader, load};
use vattention::cuda::{Device, Gpu};
use vattention::{
    Attention, Backend, Error, FallBack, Options, PipelineConfig, Placement, Result, Shape,
    Storage, engine::Selection,
};
use vattention_cuda_emulator::Emulator;

use crate::common::devices::{Calls, Watched};
use crate::common::{MODEL, MODEL_LAYER};

const SHAPE: Shape = Shape { query_heads: 4, kv_heads: 2, head_dim: 16, value_dim: 12 };

/// Numbers that differ from token to token.
fn numbers(heads: usize, count: usize, dim: usize) -> Array3<f32> {
    Array3::from_shape_fn((heads, count, dim), |(h, t, d)| {
        ((7 * h + 13 * t + 5 * d) as f32 * 0.37).sin() * 2.0
    })
}

/// A pipeline with a sample, whose selectors learn from every step.
fn learning_pipeline() -> Arc<PipelineConfig> {
    let text = "[[selectors]]\ntype = \"h2o\"\nheavy = 20\nrecent = 10\n\
                [estimator]\ntype = \"ratio\"\ndelta = 0.1\nsize = 40\n";
    Loader::default().parse("learning.toml", text).unwrap()
}

/// A pipeline that runs completely on the device: ranges, hash codes, a sample for a promise.
fn device_pipeline() -> Arc<PipelineConfig> {
    let text = "[[selectors]]\ntype = \"sink\"\nsize = 8\n\
                [[selectors]]\ntype = \"hash-attention\"\nsize = 20\n\
                [[selectors]]\ntype = \"window\"\nsize = 10\n\
                [sampler]\nbase = 30\n\
                [estimator]\ntype = \"ratio\"\nepsilon = 0.3\ndelta = 0.2\n";
    Loader::default().parse("whole.toml", text).unwrap()
}

fn append(attention: &mut dyn Attention, shape: Shape, tokens: Range<usize>) -> Result<()> {
    let part = |dim| numbers(shape.kv_heads, 700, dim).slice_move(s![.., tokens.clone(), ..]);
    common::append(attention, part(shape.head_dim).view(), part(shape.value_dim).view())
}

/// Number of tokens, and the results of three more queries to a fork: bits and tokens read.
fn state(attention: &dyn Attention, shape: Shape) -> (usize, Vec<u32>, Selection) {
    let queries = numbers(shape.query_heads, 3, shape.head_dim);
    let output = attention.fork(None).unwrap().attend(queries.view(), None).unwrap();
    let bits = output.out.iter().map(|x| x.to_bits()).collect();
    (attention.len(), bits, output.selection.unwrap())
}

/// Calls `run` repeatedly and lets one call to the device fail, a later one each time, until no
/// call fails. Calls `check` after each failure. Returns the number of calls to the device in the
/// last run, and its result.
fn fail_at_each_call<D: Device, T>(
    device: &Watched<D>,
    mut run: impl FnMut() -> Result<T>,
    mut check: impl FnMut(),
) -> (usize, T) {
    for call in 0.. {
        device.fail_at(call);
        let result = run();
        if !device.has_failed() {
            return (call, result.unwrap());
        }
        let error = result.err().unwrap();
        assert!(matches!(error, Error::Memory { bytes: 1 }), "{error}");
        check();
    }
    unreachable!("a run makes finitely many calls")
}

/// After the failure of any call to the device, the state is unchanged, and a second try succeeds.
#[test]
fn failures_of_the_device_change_nothing() {
    let Some(emulator) = common::emulator() else { return };
    check_failures(&emulator, &learning_pipeline());
    check_failures(&emulator, &device_pipeline());
}

fn check_failures<D: Device>(emulator: &D, pipeline: &Arc<PipelineConfig>) {
    let options = Options { return_selection: true, storage: Storage::Bf16, ..Options::default() };
    let start = |gpu: &dyn Backend| gpu.start(pipeline, 0, SHAPE, &options);
    let queries = numbers(SHAPE.query_heads, 3, SHAPE.head_dim);

    let mut untouched = start(&Gpu::new(emulator.clone())).unwrap();
    let device = Watched::new(emulator.clone());
    let gpu = Gpu::new(device.clone());
    let (calls, mut attention) = fail_at_each_call(&device, || start(&gpu), || ());
    assert!(calls >= 2, "expected the compilation of two kernels, found {calls} calls");
    append(&mut *attention, SHAPE, 0..300).unwrap();
    append(&mut *untouched, SHAPE, 0..300).unwrap();

    let attention = RefCell::new(attention);
    let before = state(&**attention.borrow(), SHAPE);
    let same = || assert_eq!(state(&**attention.borrow(), SHAPE), before);
    let run = || append(&mut **attention.borrow_mut(), SHAPE, 300..700);
    let (calls, ()) = fail_at_each_call(&device, run, same);
    assert!(calls >= 8, "expected new pages of two heads, found {calls} calls");
    append(&mut *untouched, SHAPE, 300..700).unwrap();

    let before = state(&**attention.borrow(), SHAPE);
    let same = || assert_eq!(state(&**attention.borrow(), SHAPE), before);
    let run = || attention.borrow_mut().attend(queries.view(), None);
    let (calls, _) = fail_at_each_call(&device, run, same);
    assert!(calls >= 3 * 4, "expected three steps, found {calls} calls");
    untouched.attend(queries.view(), None).unwrap();

    let before = state(&**attention.borrow(), SHAPE);
    let same = || assert_eq!(state(&**attention.borrow(), SHAPE), before);
    let (_, fork) = fail_at_each_call(&device, || attention.borrow().fork(None), same);
    assert_eq!(state(&*fork, SHAPE), before);
    assert_eq!(state(&*untouched, SHAPE), before, "a sequence without failures");
}

/// A fork and its original have separate copies of the last page, which is not full.
#[test]
fn forks_share_no_new_rows() {
    let Some(emulator) = common::emulator() else { return };
    for pipeline in [learning_pipeline(), device_pipeline()] {
        check_forks(&emulator, &pipeline);
    }
}

fn check_forks(emulator: &Emulator, pipeline: &Arc<PipelineConfig>) {
    let options = Options { return_selection: true, ..Options::default() };
    let start = || Gpu::new(emulator.clone()).start(pipeline, 0, SHAPE, &options).unwrap();
    let mut original = start();
    append(&mut *original, SHAPE, 0..300).unwrap();
    let mut fork = original.fork(None).unwrap();
    append(&mut *original, SHAPE, 300..340).unwrap();
    append(&mut *fork, SHAPE, 500..540).unwrap();

    for (attention, last) in [(original, 300..340), (fork, 500..540)] {
        let mut alone = start();
        append(&mut *alone, SHAPE, 0..300).unwrap();
        append(&mut *alone, SHAPE, last).unwrap();
        assert_eq!(state(&*attention, SHAPE), state(&*alone, SHAPE));
    }
}

/// The smallest and the largest heads and groups give the results of the reference; larger ones are
/// an error that names the limit.
#[test]
fn shapes_at_the_limits_are_supported_and_larger_ones_are_errors() {
    let backends = common::backends();
    for gpu in backends.iter().filter(|backend| backend.name() == "cuda") {
        check_limits(&**gpu);
    }
}

fn check_limits(gpu: &dyn Backend) {
    let options =
        Options { return_selection: true, fall_back: FallBack::Never, ..Options::default() };
    let shape = |query_heads, kv_heads, head_dim, value_dim| Shape {
        query_heads,
        kv_heads,
        head_dim,
        value_dim,
    };
    for shape in [shape(1, 1, 1, 1), shape(32, 2, 256, 256), shape(3, 1, 96, 200)] {
        let dense = load(common::root("configs/dense.toml")).unwrap();
        for pipeline in [&learning_pipeline(), &device_pipeline(), &dense] {
            let [ours, expected] = [gpu, &Reference].map(|backend| {
                let mut attention = backend.start(pipeline, 0, shape, &options).unwrap();
                append(&mut *attention, shape, 0..300).unwrap();
                let queries = numbers(shape.query_heads, 2, shape.head_dim);
                attention.attend(queries.view(), Some(&[257, 300])).unwrap()
            });
            assert_eq!(ours.selection, expected.selection, "{shape:?}");
            for (ours, expected) in ours.out.iter().zip(&expected.out) {
                assert!((ours - expected).abs() < 2e-5, "{shape:?}: {ours} for {expected}");
            }
        }
    }
    for (shape, expected) in [
        (shape(17, 1, 16, 16), "query heads for each KV head: expected 1 to 16 on CUDA, got 17"),
        (shape(1, 1, 257, 16), "head_dim: expected 1 to 256 on CUDA, got 257"),
        (shape(1, 1, 16, 300), "value_dim: expected 1 to 256 on CUDA, got 300"),
    ] {
        let error = gpu.start(&learning_pipeline(), 0, shape, &options).err().unwrap();
        assert_eq!(error.to_string(), expected);
    }
}

/// Pipelines of `configs/` that run completely on the device.
const DEVICE_PIPELINES: [&str; 18] = [
    "hash-attention",
    "hash-hybrid",
    "hash-hyperplanes",
    "hata",
    "hybrid",
    "oracle-top-k",
    "quest",
    "random",
    "streaming-llm",
    "vattention-hash",
    "vattention-oracle",
    "vattention-paper-denominator-clt",
    "vattention-paper-denominator-hoeffding",
    "vattention-paper-denominator-sub-gaussian",
    "vattention-paper-numerator-clt",
    "vattention-paper-numerator-hoeffding",
    "vattention-paper-sdpa-clt",
    "vattention-paper-sdpa-hoeffding",
];

/// A step of a pipeline that runs completely on the device is one copy to the device, one replay of
/// a graph and one copy to the host. Steps of other pipelines launch kernels for the host's picks.
#[test]
fn a_step_on_the_device_is_one_write_one_replay_and_one_read() {
    let Some(emulator) = common::emulator() else { return };
    for path in common::configs() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let device = Watched::new(emulator.clone());
        let pipeline = load(&path).unwrap();
        let mut attention = Gpu::new(device.clone())
            .start(&pipeline, MODEL_LAYER, MODEL, &Options::default())
            .unwrap();
        append(&mut *attention, MODEL, 0..700).unwrap();
        let queries = numbers(MODEL.query_heads, 1, MODEL.head_dim);
        attention.attend(queries.view(), None).unwrap();
        device.take();
        attention.attend(queries.view(), None).unwrap();
        let calls = device.take();
        let expected = Calls { writes: 1, reads: 1, replays: 1, ..Calls::default() };
        assert_eq!(calls == expected, DEVICE_PIPELINES.contains(&&*name), "{name}: {calls:?}");
        assert_eq!(calls.replays == 0, calls.launches > 0, "{name}: {calls:?}");
    }
}

/// Selectors on the host index no tokens while steps run completely on the device.
#[test]
fn the_host_has_no_index_for_steps_on_the_device() {
    let Some(emulator) = common::emulator() else { return };
    let queries = numbers(SHAPE.query_heads, 1, SHAPE.head_dim);
    let code = size_of::<u32>() * SHAPE.query_heads;
    let bytes = |pipeline: &Arc<PipelineConfig>| -> Vec<usize> {
        let gpu = Gpu::new(emulator.clone());
        let mut attention = gpu.start(pipeline, 0, SHAPE, &Options::default()).unwrap();
        append(&mut *attention, SHAPE, 0..300).unwrap();
        let mut bytes = vec![attention.index_bytes()];
        for end in [300, 301] {
            append(&mut *attention, SHAPE, 300..end).unwrap();
            attention.attend(queries.view(), None).unwrap();
            bytes.push(attention.index_bytes());
        }
        bytes
    };
    assert_eq!(bytes(&device_pipeline()), [0, 300 * code, 301 * code]);
    // The bounds of a page of 16 tokens are two rows of f32, padded to 32 elements.
    let quest = "[[selectors]]\ntype = \"quest\"\nsize = 32\n";
    let quest = Loader::default().parse("quest.toml", quest).unwrap();
    assert_eq!(bytes(&quest), [0, 18 * 2 * 128 * 2, 18 * 2 * 128 * 2]);
    let h2o = bytes(&learning_pipeline());
    assert!(h2o[0] > 0 && h2o[1] > 0, "{h2o:?}");
}

/// Forks share the networks of hash codes, one for each query head here, which are copied to the
/// device when a sequence starts.
#[test]
fn forks_share_networks() {
    let Some(emulator) = common::emulator() else { return };
    let device = Watched::new(emulator.clone());
    let gpu = Gpu::new(device.clone());
    let allocations = |pipeline: &Arc<PipelineConfig>| {
        device.take();
        let sequence = gpu.start(pipeline, 0, SHAPE, &Options::default()).unwrap();
        let at_start = device.take().allocations;
        let _fork = sequence.fork(Some(1)).unwrap();
        (at_start, device.take().allocations)
    };
    let [(with, fork_with), (without, fork_without)] =
        [&device_pipeline(), &learning_pipeline()].map(allocations);
    assert_eq!(with - without, SHAPE.query_heads);
    assert_eq!(fork_with, fork_without);
}

/// Sequences share a routine, which they use in turn.
#[test]
fn sequences_that_share_a_routine_do_not_affect_each_other() {
    let Some(emulator) = common::emulator() else { return };
    let options = Options { return_selection: true, ..Options::default() };
    let gpu = Gpu::new(emulator.clone());
    let lengths = [700, 90, 400];
    let start = |gpu: &Gpu<Emulator>, length| {
        let mut attention = gpu.start(&device_pipeline(), 0, SHAPE, &options).unwrap();
        append(&mut *attention, SHAPE, 0..length).unwrap();
        attention
    };
    let mut together: Vec<_> = lengths.iter().map(|&length| start(&gpu, length)).collect();
    let queries = numbers(SHAPE.query_heads, 1, SHAPE.head_dim);
    for _ in 0..2 {
        for attention in &mut together {
            attention.attend(queries.view(), None).unwrap();
        }
    }
    for (attention, length) in together.iter().zip(lengths) {
        let mut alone = start(&Gpu::new(emulator.clone()), length);
        for _ in 0..2 {
            alone.attend(queries.view(), None).unwrap();
        }
        assert_eq!(state(&**attention, SHAPE), state(&*alone, SHAPE));
    }
}

/// Rows in host memory give the same bits as rows in device memory.
#[test]
fn rows_in_host_memory_give_the_same_results() {
    let Some(emulator) = common::emulator() else { return };
    for pipeline in [learning_pipeline(), device_pipeline()] {
        let [near, far] = [Placement::Device, Placement::Host].map(|placement| {
            let device = Watched::new(emulator.clone());
            let options = Options { return_selection: true, placement, ..Options::default() };
            let mut attention =
                Gpu::new(device.clone()).start(&pipeline, 0, SHAPE, &options).unwrap();
            device.take();
            append(&mut *attention, SHAPE, 0..300).unwrap();
            let calls = device.take();
            // Each KV head has two pages; the other allocations are for their tables.
            assert_eq!(
                calls.on_host,
                if placement == Placement::Host { 2 * SHAPE.kv_heads } else { 0 }
            );
            append(&mut *attention, SHAPE, 300..700).unwrap();
            state(&*attention, SHAPE)
        });
        assert_eq!(near, far);
    }
}
