//! Behaviour that the emulation shares with a device, and faults that it must find.

#![allow(clippy::unwrap_used, unsafe_code)]

use vattention_core::Result;
use vattention_cuda::{Argument, Device, Grid, Kernel, KernelSource, Program};
use vattention_cuda_emulator::{
    Emulator, REQUIRE_EMULATOR, ThreadOrder, ThreadSchedule, run_sanitized,
};
use vattention_testkit::or_skip;

/// Kernels of two warps.
const KERNELS: KernelSource = KernelSource {
    name: "emulation",
    text: r"
/// Each thread takes what the thread opposite has put.
KERNEL(reverse, 64, u32* numbers) {
    __shared__ u32 held[64];
    held[threadIdx.x] = numbers[blockIdx.x * 64 + threadIdx.x];
    __syncthreads();
    numbers[blockIdx.x * 64 + threadIdx.x] = held[63 - threadIdx.x];
}
KERNEL(reverse_without_barrier, 64, u32* numbers) {
    __shared__ u32 held[64];
    held[threadIdx.x] = numbers[threadIdx.x];
    numbers[threadIdx.x] = held[63 - threadIdx.x];
}
KERNEL(unwritten, 64, u32* numbers) {
    __shared__ u32 held[64];
    if (threadIdx.x > 0) held[threadIdx.x] = 1;
    __syncthreads();
    numbers[threadIdx.x] = held[threadIdx.x];
    if (threadIdx.x == 0) held[0] = 1;
}
KERNEL(collectives, 64, u32* numbers, u32 add, u64 wide, f32 real) {
    const u32 lane = threadIdx.x % WARP, x = numbers[threadIdx.x];
    u32 sum = __shfl_sync(EVERY_LANE, x, 5);
    sum += 1000 * __shfl_xor_sync(EVERY_LANE, x, 1);
    sum += 1000000 * __shfl_up_sync(EVERY_LANE, lane, 2);
    const u32 odd = __ballot_sync(EVERY_LANE, x % 2 == 1);
    __syncwarp();
    if (lane == 0) atomicAdd(numbers + 64, u32(__popc(odd)) + add + u32(wide >> 32) + u32(real));
    atomicMax(numbers + 65, x);
    numbers[threadIdx.x] = sum;
}
KERNEL(one_warp_waits, 64, u32* numbers) {
    if (threadIdx.x < WARP) __syncthreads();
    numbers[threadIdx.x] = 1;
}
KERNEL(half_a_warp_shuffles, 64, u32* numbers) {
    if (threadIdx.x % WARP < 16) numbers[threadIdx.x] = __shfl_sync(EVERY_LANE, 1u, 0);
}
KERNEL(one_beyond, 64, u32* numbers, u32 count) {
    __shared__ u32 held[64];
    held[threadIdx.x] = numbers[threadIdx.x];
    numbers[threadIdx.x] = held[min(threadIdx.x, 63u)];
    if (threadIdx.x == 63) numbers[0] += numbers[count];
}
KERNEL(one_beyond_in_shared, 64, u32* numbers) {
    __shared__ u32 held[64];
    held[threadIdx.x + 1] = numbers[threadIdx.x];
}
",
};

fn emulator() -> Option<Emulator> {
    or_skip(Emulator::new(), REQUIRE_EMULATOR)
}

/// Runs a kernel with `blocks` blocks over numbers, and returns the numbers afterwards.
fn run(
    device: &Emulator,
    kernel: &'static str,
    blocks: u32,
    numbers: &[u32],
    more: &[Argument],
) -> Result<Vec<u32>> {
    let module = device.compile(&Program { source: KERNELS, constants: Vec::new() })?;
    let mut bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    let memory = device.allocate(bytes.len())?;
    device.write(&bytes, &memory, 0)?;
    let mut arguments = vec![Argument::Address(device.address(&memory))];
    arguments.extend(more);
    let grid = Grid { blocks: [blocks, 1], threads: 64 };
    // SAFETY: the kernels stay within the numbers, or run under the sanitizer.
    unsafe { device.launch(&Kernel { module, name: kernel, grid, arguments }) }?;
    device.read(&memory, 0, &mut bytes)?;
    Ok(bytes.as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect())
}

fn orders() -> impl Iterator<Item = (ThreadOrder, ThreadOrder)> {
    let orders = [
        ThreadOrder::Ascending,
        ThreadOrder::Descending,
        ThreadOrder::Random(1),
        ThreadOrder::Random(7),
    ];
    orders.into_iter().flat_map(move |threads| orders.map(|blocks| (threads, blocks)))
}

#[test]
fn barriers_hold_in_every_order() {
    let Some(device) = emulator() else { return };
    let numbers: Vec<u32> = (0..192).collect();
    let expected: Vec<u32> = numbers.chunks(64).flat_map(|x| x.iter().rev()).copied().collect();
    for (threads, blocks) in orders() {
        let device = device.clone().with_order(ThreadSchedule { threads, blocks });
        assert_eq!(run(&device, "reverse", 3, &numbers, &[]).unwrap(), expected);
    }
}

#[test]
fn a_missing_barrier_shows_in_every_order() {
    let Some(device) = emulator() else { return };
    let numbers: Vec<u32> = (0..64).collect();
    let expected: Vec<u32> = numbers.iter().rev().copied().collect();
    for (threads, blocks) in orders() {
        let device = device.clone().with_order(ThreadSchedule { threads, blocks });
        assert_ne!(run(&device, "reverse_without_barrier", 1, &numbers, &[]).unwrap(), expected);
    }
}

/// The second block must not see the values of the first one.
#[test]
fn shared_memory_is_poisoned_in_every_block() {
    let Some(device) = emulator() else { return };
    let found = run(&device, "unwritten", 2, &[0; 64], &[]).unwrap();
    assert_eq!(found[0], u32::MAX);
    assert!(found[1..].iter().all(|&x| x == 1));
}

#[test]
fn collectives_and_arguments() {
    let Some(device) = emulator() else { return };
    let mut numbers: Vec<u32> = (0..64).collect();
    numbers.extend([0, 0]);
    let more = [Argument::U32(100), Argument::U64(7 << 32), Argument::F32(3.5)];
    for (threads, blocks) in orders() {
        let device = device.clone().with_order(ThreadSchedule { threads, blocks });
        let found = run(&device, "collectives", 1, &numbers, &more).unwrap();
        for (i, &x) in found[..64].iter().enumerate() {
            let (lane, first) = (i % 32, i / 32 * 32);
            let up = if lane < 2 { lane } else { lane - 2 };
            assert_eq!(x as usize, first + 5 + 1000 * (i ^ 1) + 1_000_000 * up);
        }
        assert_eq!(found[64..], [2 * (16 + 100 + 7 + 3), 63]);
    }
}

#[test]
fn faults_name_the_kernel() {
    let Some(device) = emulator() else { return };
    let fault = |kernel, more: &[Argument]| {
        run(&device, kernel, 1, &[0; 64], more).unwrap_err().to_string()
    };
    let message = fault("one_warp_waits", &[]);
    assert!(message.contains("kernel one_warp_waits: divergent barrier"), "{message}");
    assert!(message.contains("32 wait for their block"), "{message}");
    let message = fault("half_a_warp_shuffles", &[]);
    assert!(message.contains("kernel half_a_warp_shuffles: divergent barrier"), "{message}");
    let message = fault("reverse", &[Argument::U32(1)]);
    assert!(message.contains("kernel reverse: expected the arguments a, got au"), "{message}");
    let message = fault("collectives", &[]);
    assert!(message.contains("expected the arguments auUf, got a"), "{message}");
    assert!(fault("nothing", &[]).contains("there is no kernel nothing"));
}

#[test]
fn compile_errors_name_the_line() {
    let Some(device) = emulator() else { return };
    let source = KernelSource { name: "wrong", text: "\nKERNEL(wrong, 32) { undefined(); }" };
    let error = device.compile(&Program { source, constants: Vec::new() }).unwrap_err();
    assert!(error.to_string().contains("wrong.cu:2"), "{error}");
}

#[test]
fn constants_reach_the_source() {
    let Some(device) = emulator() else { return };
    let source = KernelSource { name: "constant", text: "static_assert(SEVEN == 7, \"\");" };
    let program = |seven: &str| Program { source, constants: vec![("SEVEN", seven.to_owned())] };
    assert!(device.compile(&program("7")).is_ok());
    assert!(device.compile(&program("8")).is_err());
}

#[test]
fn accesses_out_of_bounds_end_the_process() {
    let faults =
        [("reads_beyond", "heap-buffer-overflow"), ("writes_beyond", "index 64 out of bounds")];
    for (test, fault) in faults {
        let Some(output) = or_skip(run_sanitized(test), REQUIRE_EMULATOR) else { return };
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{stderr}");
        assert!(stderr.contains(fault) && stderr.contains("emulation.cu:"), "{stderr}");
    }
    let output = run_sanitized("stays_within").unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "run under the address sanitizer, by accesses_out_of_bounds_end_the_process"]
fn reads_beyond() {
    run(&Emulator::sanitized().unwrap(), "one_beyond", 1, &[0; 64], &[Argument::U32(64)]).unwrap();
}

#[test]
#[ignore = "run under the address sanitizer, by accesses_out_of_bounds_end_the_process"]
fn writes_beyond() {
    run(&Emulator::sanitized().unwrap(), "one_beyond_in_shared", 1, &[0; 64], &[]).unwrap();
}

#[test]
#[ignore = "run under the address sanitizer, by accesses_out_of_bounds_end_the_process"]
fn stays_within() {
    run(&Emulator::sanitized().unwrap(), "one_beyond", 1, &[0; 64], &[Argument::U32(63)]).unwrap();
}
