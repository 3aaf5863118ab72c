//! One row times a matrix, as a decoded token does with every weight: this crate's product of bf16
//! beside candle's of the types of GGUF. What is at least as fast stays quantised in memory
//! (`candle_is_fast` in `src/matrix.rs`).
//!
//! Prints medians over rounds in which each takes its turn. A matrix is larger than caches.

#![allow(missing_docs, dead_code)]

use std::hint::black_box;
use std::time::Instant;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use half::bf16;

use blocks::QuantBlock;

#[path = "../src/blocks.rs"]
mod blocks;
#[path = "../src/row.rs"]
mod row;

const SHAPE: (usize, usize) = (16384, 4096);
const ROUNDS: usize = 31;

const TYPES: [GgmlDType; 8] = [
    GgmlDType::Q4_0,
    GgmlDType::Q4_1,
    GgmlDType::Q5_0,
    GgmlDType::Q5_1,
    GgmlDType::Q8_0,
    GgmlDType::Q4K,
    GgmlDType::Q5K,
    GgmlDType::Q6K,
];

fn main() -> candle_core::Result<()> {
    let (outputs, inputs) = SHAPE;
    let wide: Vec<f32> = (0..outputs * inputs).map(|i| (i as f32 * 1.7).sin()).collect();
    let narrow: Vec<bf16> = wide.iter().map(|&x| bf16::from_f32(x)).collect();
    let x: Vec<f32> = (0..inputs).map(|i| (i as f32 * 0.7).cos()).collect();
    let input = Tensor::new(x.as_slice(), &Device::Cpu)?.unsqueeze(0)?;
    let all = Tensor::from_slice(&wide, SHAPE, &Device::Cpu)?;
    let quantised = TYPES
        .iter()
        .map(|&dtype| QTensor::quantize(&all, dtype))
        .collect::<candle_core::Result<Vec<_>>>()?;
    drop(all);
    let mut y = vec![0.0; outputs];
    let four_bits = blocks::Q4_1::read(&quantised[1].data()?);
    let eight_bits = blocks::Q8_0::read(&quantised[4].data()?);
    let mut times = vec![Vec::new(); TYPES.len() + 4];
    for _ in 0..ROUNDS {
        times[0].push(seconds(|| row::product(black_box(&x), &narrow, &mut y)));
        times[1].push(seconds(|| row::product(black_box(&x), &wide, &mut y)));
        times[2].push(seconds(|| blocks::product(black_box(&x), &four_bits, &mut y)));
        times[3].push(seconds(|| blocks::product(black_box(&x), &eight_bits, &mut y)));
        for (times, weights) in times[4..].iter_mut().zip(&quantised) {
            times.push(seconds(|| {
                black_box(input.apply_op1_no_bwd(weights)).ok();
            }));
        }
    }
    let bf16 = median(&mut times[0]);
    let names = ["bf16", "f32", "Q4_1 here", "Q8_0 here"].map(String::from).into_iter();
    let names = names.chain(TYPES.iter().map(|dtype| format!("{dtype:?}")));
    println!("{outputs} x {inputs}, {} threads", rayon::current_num_threads());
    println!("type      ms       of bf16");
    for (name, times) in names.zip(&mut times) {
        let time = median(times);
        println!("{name:<9} {:<8.3} {:.2}", 1e3 * time, time / bf16);
    }
    Ok(())
}

fn seconds(work: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    work();
    begin.elapsed().as_secs_f64()
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
