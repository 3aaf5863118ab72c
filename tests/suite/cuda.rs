//! The backend for GPUs: devices that fail, over an emulation, and shapes at its limits, also over the
//! GPU of this machine.

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

/// A pipeline whose selectors learn from every step, and that samples.
fn learning() -> Arc<PipelineConfig> {
    let text = "[[selectors]]\ntype = \"h2o\"\nheavy = 20\nrecent = 10\n\
                [estimator]\ntype = \"ratio\"\ndelta = 0.1\nsize = 40\n";
    Loader::default().parse("learning.toml", text).unwrap()
}

/// A pipeline that the device runs by itself: ranges, hash codes, a sample for a promise.
fn whole() -> Arc<PipelineConfig> {
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

/// Tokens, and what a fork makes of three more queries: the bits, and the tokens read.
fn state(attention: &dyn Attention, shape: Shape) -> (usize, Vec<u32>, Selection) {
    let queries = numbers(shape.query_heads, 3, shape.head_dim);
    let output = attention.fork(None).unwrap().attend(queries.view(), None).unwrap();
    let bits = output.out.iter().map(|x| x.to_bits()).collect();
    (attention.len(), bits, output.selection.unwrap())
}

/// Lets one call to the device after the other fail, until all succeed; says how many there are.
fn each_failure<D: Device, T>(
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

/// Whichever call to the device fails, all is as before, and works the next time.
#[test]
fn what_fails_on_the_device_changes_nothing() {
    let Some(emulator) = common::emulator() else { return };
    check_failures(&emulator, &learning());
    check_failures(&emulator, &whole());
}

fn check_failures<D: Device>(emulator: &D, pipeline: &Arc<PipelineConfig>) {
    let options = Options { return_selection: true, storage: Storage::Bf16, ..Options::default() };
    let start = |gpu: &dyn Backend| gpu.start(pipeline, 0, SHAPE, &options);
    let queries = numbers(SHAPE.query_heads, 3, SHAPE.head_dim);

    let mut untouched = start(&Gpu::new(emulator.clone())).unwrap();
    let device = Watched::new(emulator.clone());
    let gpu = Gpu::new(device.clone());
    let (calls, mut attention) = each_failure(&device, || start(&gpu), || ());
    assert!(calls >= 2, "compiles two kernels, but has made {calls} calls");
    append(&mut *attention, SHAPE, 0..300).unwrap();
    append(&mut *untouched, SHAPE, 0..300).unwrap();

    let attention = RefCell::new(attention);
    let before = state(&**attention.borrow(), SHAPE);
    let same = || assert_eq!(state(&**attention.borrow(), SHAPE), before);
    let run = || append(&mut **attention.borrow_mut(), SHAPE, 300..700);
    let (calls, ()) = each_failure(&device, run, same);
    assert!(calls >= 8, "new pages of two heads, but has made {calls} calls");
    append(&mut *untouched, SHAPE, 300..700).unwrap();

    let before = state(&**attention.borrow(), SHAPE);
    let same = || assert_eq!(state(&**attention.borrow(), SHAPE), before);
    let run = || attention.borrow_mut().attend(queries.view(), None);
    let (calls, _) = each_failure(&device, run, same);
    assert!(calls >= 3 * 4, "three steps, but has made {calls} calls");
    untouched.attend(queries.view(), None).unwrap();

    let before = state(&**attention.borrow(), SHAPE);
    let same = || assert_eq!(state(&**attention.borrow(), SHAPE), before);
    let (_, fork) = each_failure(&device, || attention.borrow().fork(None), same);
    assert_eq!(state(&*fork, SHAPE), before);
    assert_eq!(state(&*untouched, SHAPE), before, "as if nothing had ever failed");
}

/// A fork and its original write to the last page, which was not full, each to its own.
#[test]
fn forks_share_no_row_that_is_yet_to_come() {
    let Some(emulator) = common::emulator() else { return };
    for pipeline in [learning(), whole()] {
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

/// The smallest and the largest heads and groups answer as the reference does; larger ones are
/// refused by name.
#[test]
fn shapes_at_the_limits_are_answered_and_beyond_them_refused() {
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
        for pipeline in [&learning(), &whole(), &load(common::root("configs/dense.toml")).unwrap()]
        {
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
        let error = gpu.start(&learning(), 0, shape, &options).err().unwrap();
        assert_eq!(error.to_string(), expected);
    }
}

/// The pipelines of `configs/` for which there are kernels of every part.
const WHOLE: [&str; 18] = [
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

/// A step of these makes one copy to the device, starts one record, and makes one copy back; those of
/// the others launch what the host chose.
#[test]
fn a_step_is_one_copy_there_one_start_and_one_copy_back() {
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
        let one = Calls { writes: 1, reads: 1, replays: 1, ..Calls::default() };
        assert_eq!(calls == one, WHOLE.contains(&&*name), "{name}: {calls:?}");
        assert_eq!(calls.replays == 0, calls.launches > 0, "{name}: {calls:?}");
    }
}

/// Selectors index no token as long as the device takes the steps by itself: it has the codes.
#[test]
fn the_host_keeps_no_index_that_nobody_asks_for() {
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
    assert_eq!(bytes(&whole()), [0, 300 * code, 301 * code]);
    // The bounds of a page of 16 tokens are two rows of f32, of 32 elements with what is between rows.
    let quest = "[[selectors]]\ntype = \"quest\"\nsize = 32\n";
    let quest = Loader::default().parse("quest.toml", quest).unwrap();
    assert_eq!(bytes(&quest), [0, 18 * 2 * 128 * 2, 18 * 2 * 128 * 2]);
    let h2o = bytes(&learning());
    assert!(h2o[0] > 0 && h2o[1] > 0, "{h2o:?}");
}

/// Forks share networks, one for each query head here, which are copied to the device when a sequence
/// starts.
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
    let [(with, of_fork), (without, alike)] = [&whole(), &learning()].map(allocations);
    assert_eq!(with - without, SHAPE.query_heads);
    assert_eq!(of_fork, alike);
}

/// Sequences that take steps in turns share a routine, and none sees anything of another.
#[test]
fn sequences_do_not_disturb_one_another() {
    let Some(emulator) = common::emulator() else { return };
    let options = Options { return_selection: true, ..Options::default() };
    let gpu = Gpu::new(emulator.clone());
    let lengths = [700, 90, 400];
    let start = |gpu: &Gpu<Emulator>, length| {
        let mut attention = gpu.start(&whole(), 0, SHAPE, &options).unwrap();
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

/// Rows that stay with the host give the same bits, and none of them is in memory of the device.
#[test]
fn rows_of_the_host_are_read_as_those_of_the_device() {
    let Some(emulator) = common::emulator() else { return };
    for pipeline in [learning(), whole()] {
        let [near, far] = [Placement::Device, Placement::Host].map(|placement| {
            let device = Watched::new(emulator.clone());
            let options = Options { return_selection: true, placement, ..Options::default() };
            let mut attention =
                Gpu::new(device.clone()).start(&pipeline, 0, SHAPE, &options).unwrap();
            device.take();
            append(&mut *attention, SHAPE, 0..300).unwrap();
            let calls = device.take();
            // Two pages of each KV head; the other memory is for their tables.
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
