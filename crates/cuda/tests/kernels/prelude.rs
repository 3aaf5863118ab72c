//! What all kernels use.

use half::{bf16, f16};
use vattention_cuda::launch::Array;
use vattention_cuda::{Argument, Device, Grid, Kernel, Program, Source};

use super::world::emulator;

/// Widens each half of each word.
const WIDEN: Source = Source {
    name: "widen",
    text: r"
KERNEL(widen_words, 32, const u32* words, f32* numbers) {
    const u32 i = blockIdx.x * 32 + threadIdx.x;
    f32 low, high;
    widen(ELEMENT(), words[i], low, high);
    numbers[2 * i] = low;
    numbers[2 * i + 1] = high;
}
",
};

/// Every number of two bytes is widened as `half` does it.
pub(crate) fn check_widening<D: Device>(device: &D) {
    check_element(device, "f16", |bits| f16::from_bits(bits).to_f32());
    check_element(device, "bf16", |bits| bf16::from_bits(bits).to_f32());
}

#[allow(unsafe_code)]
fn check_element<D: Device>(device: &D, name: &str, widen: impl Fn(u16) -> f32) {
    let bits: Vec<u16> = (0..=u16::MAX).collect();
    let words = Array::new(device, &bits).unwrap();
    let numbers = Array::<D, f32>::zeros(device, bits.len()).unwrap();
    let constants = vec![("ELEMENT", name.to_owned())];
    let module = device.compile(&Program { source: WIDEN, constants }).unwrap();
    let arguments = [words.address(), numbers.address()].map(Argument::Address);
    let grid = Grid { blocks: [bits.len() as u32 / 64, 1], threads: 32 };
    let kernel = Kernel { module, name: "widen_words", grid, arguments: arguments.to_vec() };
    // SAFETY: each thread reads a word of two numbers, and writes both.
    unsafe { device.launch(&kernel) }.unwrap();
    for (&bits, found) in bits.iter().zip(numbers.read().unwrap()) {
        let expected = widen(bits);
        // No cache stores what is not finite.
        if expected.is_finite() {
            assert_eq!(found.to_bits(), expected.to_bits(), "{name} {bits:#06x}");
        }
    }
}

#[test]
fn widening_is_exact() {
    let Some(device) = emulator() else { return };
    check_widening(&device);
}
