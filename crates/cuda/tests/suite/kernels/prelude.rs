//! The functions of the prelude.

use half::{bf16, f16};
use vattention_cuda::launch::Array;
use vattention_cuda::{Argument, Device, Grid, Kernel, KernelSource, Program};

use super::world::emulator;

/// Converts each half of each word to f32, and packs them into a word again.
const WIDEN: KernelSource = KernelSource {
    name: "widen",
    text: r"
KERNEL(widen_words, 32, const u32* words, f32* numbers, u32* again) {
    const u32 i = blockIdx.x * 32 + threadIdx.x;
    f32 low, high;
    widen(ELEMENT(), words[i], low, high);
    numbers[2 * i] = low;
    numbers[2 * i + 1] = high;
    again[i] = narrow(ELEMENT(), low, high);
}
",
};

/// Every two-byte number is widened like in `half`, and narrowed to the same bits.
pub(crate) fn check_widening<D: Device>(device: &D) {
    check_element(device, "f16", |bits| f16::from_bits(bits).to_f32());
    check_element(device, "bf16", |bits| bf16::from_bits(bits).to_f32());
}

#[allow(unsafe_code)]
fn check_element<D: Device>(device: &D, name: &str, widen: impl Fn(u16) -> f32) {
    let bits: Vec<u16> = (0..=u16::MAX).collect();
    let words = Array::new(device, &bits).unwrap();
    let numbers = Array::<D, f32>::zeros(device, bits.len()).unwrap();
    let again = Array::<D, u16>::zeros(device, bits.len()).unwrap();
    let constants = vec![("ELEMENT", name.to_owned())];
    let module = device.compile(&Program { source: WIDEN, constants }).unwrap();
    let arguments = [words.address(), numbers.address(), again.address()].map(Argument::Address);
    let grid = Grid { blocks: [bits.len() as u32 / 64, 1], threads: 32 };
    let kernel = Kernel { module, name: "widen_words", grid, arguments: arguments.to_vec() };
    // SAFETY: each thread reads a word of two numbers, and writes both, and a word.
    unsafe { device.launch(&kernel) }.unwrap();
    let found = numbers.read().unwrap().into_iter().zip(again.read().unwrap());
    for (&bits, (found, again)) in bits.iter().zip(found) {
        let expected = widen(bits);
        // A cache contains finite numbers only.
        if expected.is_finite() {
            assert_eq!(found.to_bits(), expected.to_bits(), "{name} {bits:#06x}");
            assert_eq!(again, bits, "{name} {bits:#06x}");
        }
    }
}

#[test]
fn widening_and_narrowing_are_exact() {
    let Some(device) = emulator() else { return };
    check_widening(&device);
}
