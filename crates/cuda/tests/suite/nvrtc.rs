//! Every program is compiled for every architecture by NVIDIA's compiler, which needs no GPU.
//!
//! Without NVRTC 13.0, for which the limits below hold, the tests print a note and return, unless
//! `VATTENTION_REQUIRE_NVRTC` is set.

use vattention_core::Storage;
use vattention_cuda::launch::{
    AttendLists, BudgetCheck, CombineSums, ComputeMoments, Draw, Encode, ListTaken, NetworkShape,
    RowLayout, ScoreCodes, ScoreLogits, ScorePages, Select, Take,
};
use vattention_cuda::{Compiler, Driver, KernelSource, Program};
use vattention_selectors::Activation;
use vattention_testkit::or_skip;

const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90", "sm_120"];

/// The compiler, if it is installed or required.
fn compiler() -> Option<Compiler> {
    let found = Compiler::find().and_then(|compiler| match compiler.to_string() {
        name if name == "NVRTC 13.0" => Ok(compiler),
        name => Err(format!("{name}: expected NVRTC 13.0")),
    });
    or_skip(found, "VATTENTION_REQUIRE_NVRTC")
}

/// Resources of a kernel, as the assembler reports them.
#[derive(Debug)]
struct Usage {
    registers: usize,
    stack: usize,
    spilled: usize,
}

impl Usage {
    /// Reads the maxima over the kernels of a log.
    fn read(log: &str) -> Self {
        let before = |words: &str| -> usize {
            let numbers = log.match_indices(words).map(|(at, _)| {
                let number = log[..at].rsplit(|c: char| !c.is_ascii_digit()).next();
                number.unwrap().parse().unwrap()
            });
            numbers.max().unwrap_or_else(|| panic!("no `{words}` in {log}"))
        };
        Self {
            registers: before(" registers"),
            stack: before(" bytes stack frame"),
            spilled: before(" bytes spill stores") + before(" bytes spill loads"),
        }
    }
}

/// Limit on the registers of a thread that reads for `group` query heads. Above it, fewer than 8,
/// 8, 5, 4 and 2 blocks of 128 threads fit on a multiprocessor with 65536 registers.
fn budget(group: usize) -> usize {
    match group {
        1 | 2 => 64,
        4 => 96,
        8 => 128,
        _ => 255,
    }
}

/// Programs compile for heads and groups of the usual sizes, in all precisions, with few spills.
#[test]
fn every_program_compiles_for_every_architecture() {
    let Some(compiler) = compiler() else { return };
    let storages = Storage::FLOATS;
    let shapes = storages.map(|storage| [64, 96, 128, 256].map(|dim| (storage, dim, 4)));
    let groups = [1, 2, 8, 16].map(|group| (Storage::Bf16, 128, group));
    let largest = (Storage::F32, 256, 16);
    let shapes = shapes.as_flattened().iter().chain(&groups).chain([&largest]);
    let attend = shapes.clone().map(|&(storage, dim, group)| {
        let layout = RowLayout::new(storage, dim, dim, 8).unwrap();
        (AttendLists::<Driver>::program(layout, group).unwrap(), budget(group), 0)
    });
    // These kernels hold no values. For the widest, the assembler spills a few words, once for each
    // block, so that more blocks fit.
    let pages = shapes.clone().map(|&(storage, dim, group)| {
        let layout = RowLayout::new(storage, dim, dim, 8).unwrap();
        let spilled = if group == 16 { 32 } else { 0 };
        let program = ScorePages::<Driver>::program(layout, group, 16).unwrap();
        (program, budget(group), spilled)
    });
    let logits = shapes.map(|&(storage, dim, group)| {
        let layout = RowLayout::new(storage, dim, dim, 8).unwrap();
        let spilled = if group == 16 { 32 } else { 0 };
        let program = ScoreLogits::<Driver>::program(layout, group).unwrap();
        (program, budget((group / 2).max(1)), spilled)
    });
    let others = [
        CombineSums::<Driver>::program(),
        ScoreCodes::<Driver>::program(),
        Select::<Driver, u16>::program(1),
        Select::<Driver, f32>::program(1),
        Select::<Driver, f32>::program(16),
        ListTaken::<Driver>::program(),
        Take::<Driver>::program(),
        Draw::<Driver>::program(),
    ];
    let others = others.map(|program| (program, budget(1), 0));
    // There is one block for each list alone, fewer than a device holds with 128 registers. On
    // sm_120 the assembler spills two words.
    let check = [(BudgetCheck::<Driver>::program(), 128, 8)];
    let moments = storages.map(|storage| [64, 96, 128, 256].map(|dim| (storage, dim)));
    let moments = moments.as_flattened().iter().map(|&(storage, dim)| {
        let layout = RowLayout::new(storage, dim, dim, 8).unwrap();
        // A lane holds four differences beside a pair of values: with 80 or 128 registers, 6 or 4
        // blocks of 128 threads fit.
        (ComputeMoments::<Driver>::program(layout), if dim > 128 { 128 } else { 80 }, 0)
    });
    let activations = [Activation::Silu, Activation::Relu, Activation::Gelu, Activation::Tanh];
    let networks = [&[64, 32][..], &[96, 512, 40], &[128, 128, 128, 32], &[256, 4096, 128]];
    let encode = networks.into_iter().zip(activations).map(|(widths, activation)| {
        let layout = RowLayout::new(Storage::Bf16, widths[0], widths[0], 8).unwrap();
        let shape = NetworkShape { widths: widths.to_vec(), activation };
        // The assembler spills some words although registers are left.
        (Encode::<Driver>::program(layout, &shape).unwrap(), 96, 64)
    });
    let programs: Vec<(Program, usize, usize)> = attend
        .chain(pages)
        .chain(logits)
        .chain(others)
        .chain(check)
        .chain(moments)
        .chain(encode)
        .collect();
    for architecture in ARCHITECTURES {
        for (program, budget, spilled) in &programs {
            let compiled = compiler.compile(program, architecture).unwrap();
            assert!(compiled.cubin.starts_with(b"\x7fELF"));
            let usage = Usage::read(&compiled.log);
            let Program { source, constants } = program;
            let context = format!("{} for {architecture}, {constants:?}: {usage:?}", source.name);
            assert!(usage.registers <= *budget, "{context}");
            assert!(usage.stack.max(usage.spilled) <= *spilled, "{context}");
        }
    }
}

/// Errors of the compiler name the line.
#[test]
fn an_invalid_program_is_refused_with_the_compilers_output() {
    let Some(compiler) = compiler() else { return };
    let source =
        KernelSource { name: "violated", text: "KERNEL(violated, 32, u32* x) { x[0] = y; }" };
    let program = Program { source, constants: Vec::new() };
    let error = compiler.compile(&program, "sm_90").unwrap_err();
    assert!(error.contains("violated.cu(1): error: identifier \"y\" is undefined"), "{error}");
    let error = compiler.compile(&CombineSums::<Driver>::program(), "sm_1").unwrap_err();
    assert!(error.contains("NVRTC refuses combine for sm_1"), "{error}");
}
