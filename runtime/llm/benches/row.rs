//! Product of one row and a matrix, which a decode step computes with every weight: this crate's
//! products and candle's, for the types of GGUF.
//!
//! Prints medians over rounds that measure each product in turn. The matrix is larger than the
//! caches.

#![allow(missing_docs, dead_code, unused_imports)]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use half::bf16;

use packed::{Activations, PackedMatrix, QuantFormat};

#[path = "../src/packed/mod.rs"]
mod packed;
#[path = "../src/row.rs"]
mod row;

const SHAPE: (usize, usize) = (16384, 4096);
const ROUNDS: usize = 31;

/// Formats that candle has too.
const TYPES: [(GgmlDType, QuantFormat); 8] = [
    (GgmlDType::Q4_0, QuantFormat::Q4_0),
    (GgmlDType::Q4_1, QuantFormat::Q4_1),
    (GgmlDType::Q5_0, QuantFormat::Q5_0),
    (GgmlDType::Q5_1, QuantFormat::Q5_1),
    (GgmlDType::Q8_0, QuantFormat::Q8_0),
    (GgmlDType::Q4K, QuantFormat::Q4K),
    (GgmlDType::Q5K, QuantFormat::Q5K),
    (GgmlDType::Q6K, QuantFormat::Q6K),
];

/// Formats of codebooks, whose blocks have any bytes.
const OTHERS: [QuantFormat; 3] = [QuantFormat::Iq4Nl, QuantFormat::Iq4Xs, QuantFormat::Mxfp4];

fn pack(format: QuantFormat, bytes: &[u8]) -> PackedMatrix {
    PackedMatrix::new(format, bytes, [SHAPE.0, SHAPE.1]).expect("scales are finite")
}

/// Returns blocks whose bytes are all 52: scales of 0.26 in f16, and 2^-76 in E8M0.
fn make_blocks(format: QuantFormat) -> Vec<u8> {
    vec![52; SHAPE.0 * SHAPE.1 / format.unit_weights() * format.file_bytes()]
}

fn main() -> candle_core::Result<()> {
    let (outputs, inputs) = SHAPE;
    let wide: Vec<f32> = (0..outputs * inputs).map(|i| (i as f32 * 1.7).sin()).collect();
    let narrow: Vec<bf16> = wide.iter().map(|&x| bf16::from_f32(x)).collect();
    let x: Vec<f32> = (0..inputs).map(|i| (i as f32 * 0.7).cos()).collect();
    let input = Tensor::new(x.as_slice(), &Device::Cpu)?.unsqueeze(0)?;
    let all = Tensor::from_slice(&wide, SHAPE, &Device::Cpu)?;
    let quantised = TYPES
        .iter()
        .map(|&(dtype, _)| QTensor::quantize(&all, dtype))
        .collect::<candle_core::Result<Vec<_>>>()?;
    drop(all);
    let mut packed = Vec::new();
    for (tensor, (_, format)) in quantised.iter().zip(TYPES) {
        packed.push((format, pack(format, &tensor.data()?)));
    }
    packed.extend(OTHERS.map(|format| (format, pack(format, &make_blocks(format)))));
    let digits = |rows: usize| Activations::new(&x.repeat(rows), rows);
    let (one, four) = (digits(1), digits(4));
    let mut y = vec![0.0; 4 * outputs];
    let row_of = 0..outputs;
    let mut times = BTreeMap::<String, Vec<f64>>::new();
    let mut time = |name: &str, work: &mut dyn FnMut()| {
        let begin = Instant::now();
        work();
        times.entry(name.into()).or_default().push(begin.elapsed().as_secs_f64());
    };
    for _ in 0..ROUNDS {
        time("bf16", &mut || {
            row::multiply(black_box(&x), &narrow, x.len(), &mut y[row_of.clone()]);
        });
        time("f32", &mut || row::multiply(black_box(&x), &wide, x.len(), &mut y[row_of.clone()]));
        for ((dtype, _), weights) in TYPES.iter().zip(&quantised) {
            time(&format!("{dtype:?}, candle"), &mut || {
                black_box(input.apply_op1_no_bwd(weights)).ok();
            });
        }
        for (format, weights) in &packed {
            time(&format!("{format:?}"), &mut || {
                weights.multiply(black_box(&one), &mut y[row_of.clone()]);
            });
            time(&format!("{format:?}, 4 rows"), &mut || {
                weights.multiply(black_box(&four), &mut y);
            });
        }
        time("digits of a row", &mut || {
            black_box(Activations::new(black_box(&x), 1));
        });
    }
    let bf16 = median(times.get_mut("bf16").expect("timed"));
    println!("{outputs} x {inputs}, {} threads", rayon::current_num_threads());
    println!("type            ms       of bf16");
    for (name, times) in &mut times {
        let time = median(times);
        println!("{name:<15} {:<8.3} {:.2}", 1e3 * time, time / bf16);
    }
    Ok(())
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
