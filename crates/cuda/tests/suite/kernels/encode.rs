//! Hash codes: `encode.cu`, against the networks of the host.

use std::sync::Arc;

use proptest::prelude::*;
use vattention_cuda::Device;
use vattention_cuda::launch::{
    Array, DeviceCodes, DeviceNetwork as OnDevice, Encode, NetworkShape, Work,
};
use vattention_cuda_emulator::ThreadSchedule;
use vattention_selectors::{Activation, Affine, Network};

use super::steps::Clock;
use super::world::{Head, KINDS, Kind, Numbers, emulator};

/// Outputs of layers: one layer, several, wide ones, codes of several words and of odd sizes.
pub(crate) const WIDTHS: [&[usize]; 5] =
    [&[32], &[128, 128, 32], &[7, 1], &[300, 40], &[20, 65, 128]];

const ACTIVATIONS: [Activation; 4] =
    [Activation::Silu, Activation::Relu, Activation::Gelu, Activation::Tanh];

/// A network with weights of a typical size.
fn network(dim: usize, widths: &[usize], activation: Activation, numbers: &mut Numbers) -> Network {
    let inputs = std::iter::once(&dim).chain(widths);
    let layer = |(&inputs, &outputs): (&usize, &usize)| {
        let scale = 3.0 / (inputs as f32).sqrt();
        let weight = (0..inputs * outputs).map(|_| numbers.next() * scale).collect();
        Affine { weight, bias: (0..outputs).map(|_| numbers.next()).collect() }
    };
    Network::new(inputs.zip(widths).map(layer).collect(), activation).unwrap()
}

/// Checks that bits of codes are signs, except of numbers so small that rounding decides the sign.
fn assert_signs(numbers: &[f32], code: impl Fn(usize) -> u32) {
    for (bit, &x) in numbers.iter().enumerate() {
        let set = code(bit / 32) >> (bit % 32) & 1 == 1;
        assert!(set == (x > 0.0) || x.abs() < 1e-5, "bit {bit} of {x}");
    }
    let words = numbers.len().div_ceil(32);
    let beyond = u64::from(code(words - 1)) >> (numbers.len() - 32 * (words - 1));
    assert_eq!(beyond, 0, "bits beyond {}", numbers.len());
}

/// Checks the codes of two heads' keys, each by its own network, as tokens become visible one by
/// one and many in a step, and the codes of queries.
pub(crate) fn check_codes<D: Device>(
    device: &D,
    kind: Kind,
    widths: &[usize],
    (activation, capacity): (usize, usize),
    seed: u64,
) {
    let mut numbers = Numbers::new(seed);
    let heads: Vec<Head> =
        (0..2).map(|_| Head::usual(kind, capacity.max(1), &mut numbers)).collect();
    let head_network = |_| network(kind.head_dim, widths, ACTIVATIONS[activation], &mut numbers);
    let networks: Vec<Arc<Network>> = (0..2).map(head_network).map(Arc::new).collect();
    let shape = NetworkShape::from_network(&networks[0]);
    let copies: Vec<_> =
        networks.iter().map(|network| OnDevice::new(device, network).unwrap()).collect();
    let copies: Vec<_> = copies.iter().collect();
    let encode = Encode::new(device, kind.layout(), &shape).unwrap();

    let bits = widths[widths.len() - 1];
    let words = bits.div_ceil(32);
    let codes: Vec<_> = (0..2).map(|_| DeviceCodes::new(device, bits, capacity).unwrap()).collect();
    let borrowed: Vec<_> = codes.iter().collect();
    let pages: Vec<_> = heads.iter().map(|head| head.pages(device, kind)).collect();
    let pages: Vec<_> = pages.iter().collect();
    let clock = Clock::new(device, capacity);
    let mut indexed = 0;
    for visible in [capacity / 3, (capacity / 3 + 1).min(capacity), capacity] {
        clock.set(visible);
        let mut work = Work::new(device);
        let indexed_tokens = [indexed as u32; 2];
        encode
            .add_heads(&mut work, &clock.step, &pages, &copies, &indexed_tokens, &borrowed)
            .unwrap();
        work.run().unwrap();
        for ((codes, head), network) in codes.iter().zip(&heads).zip(&networks) {
            let found = codes.read().unwrap();
            for token in indexed..visible {
                let code = |word| found[word * codes.capacity() + token];
                assert_signs(&network.forward(&head.keys[token]), code);
            }
            for codes in found.chunks_exact(codes.capacity()) {
                assert!(codes[..indexed].iter().all(|&code| code == 0), "old codes are kept");
                assert!(codes[visible..].iter().all(|&code| code == 0), "beyond {visible}");
            }
            (0..words).for_each(|word| codes.write(word, 0, &vec![0; visible]).unwrap());
        }
        indexed = visible;
    }

    let queries: Vec<f32> = heads.iter().flat_map(|head| head.queries[0].clone()).collect();
    let found = Array::zeros(device, 2 * words).unwrap();
    let mut work = Work::new(device);
    let queries = Array::new(device, &queries).unwrap();
    encode.add_queries_by(&mut work, &queries, &copies, &found).unwrap();
    work.run().unwrap();
    let found = found.read().unwrap();
    for (i, (head, network)) in heads.iter().zip(&networks).enumerate() {
        assert_signs(&network.forward(&head.queries[0]), |word| found[i * words + word]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 30, failure_persistence: None, ..ProptestConfig::default()
    })]
    #[test]
    fn codes_are_signs_of_networks(
        kind in prop::sample::select(&KINDS[..]),
        widths in prop::sample::select(&WIDTHS[..]),
        activation in 0..ACTIVATIONS.len(),
        capacity in prop::sample::select(&[1_usize, 2, 15, 16, 17, 64, 130][..]),
        schedule in prop::sample::select(ThreadSchedule::several().to_vec()),
        seed in 0_u64..1 << 32,
    ) {
        let Some(device) = emulator() else { return Ok(()) };
        check_codes(&device.with_order(schedule), kind, widths, (activation, capacity), seed);
    }
}

/// A head has more keys than its blocks map in parallel.
#[test]
fn blocks_loop_over_the_keys_of_a_long_prompt() {
    let Some(device) = emulator() else { return };
    check_codes(&device, KINDS[0], &[2000, 8], (1, 420), 5);
}
