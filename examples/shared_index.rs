//! Sequences that share a prefix of pages share its index as well.
//!
//!     cargo run --release --example shared_index
//!
//! The engine of this example stores the keys and values of one KV head in pages of 16 tokens.
//! Four sequences begin with the same pages, such as those of a system prompt. Each sequence is
//! indexed once by `append` alone, and once after it has taken over the index of the first sequence
//! by `share_index`. The example prints times and memory, and checks that the outputs are equal.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use half::bf16;
use vattention::backends::{EngineHead, HeadRows};
use vattention::config::Loader;
use vattention::engine::{PageLayout, Tokens};
use vattention::ndarray::Array3;
use vattention::{Options, Output, PipelineConfig, Shape};

const SHAPE: Shape = Shape { query_heads: 4, kv_heads: 1, head_dim: 128, value_dim: 128 };
const PREFIX: usize = 32_768;
const LENGTH: usize = PREFIX + 512;
const SEQUENCES: usize = 4;

/// Number of tokens of a page.
const PAGE: usize = 16;
/// Number of elements of a row: a key, and a value.
const ROW: usize = SHAPE.head_dim + SHAPE.value_dim;

const PIPELINES: [(&str, &str); 4] = [
    ("priority", "extends = 'priority'"),
    ("quest", "[[selectors]]\ntype = 'quest'\nsize = 0.05"),
    ("hash-attention", "[[selectors]]\ntype = 'hash-attention'\nsize = 0.05"),
    ("sparq", "[[selectors]]\ntype = 'sparq'\nsize = 0.05"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let engine = PagedEngine::new();
    println!("{SEQUENCES} sequences with {PREFIX} tokens in common, of {LENGTH} tokens each:\n");
    println!("pipeline         append alone           with share_index");
    for (name, toml) in PIPELINES {
        let config = Loader::default().parse(name, toml)?;
        let (alone, alone_ms) = timed(|| engine.index(&config, false));
        let (sharing, sharing_ms) = timed(|| engine.index(&config, true));
        let (mut alone, mut sharing) = (alone?, sharing?);
        let mebibytes = |heads: &[EngineHead]| {
            heads.iter().map(EngineHead::index_bytes).sum::<usize>() as f64 / f64::from(1 << 20)
        };
        println!(
            "{name:<15}  {alone_ms:>6.0} ms, {:>5.2} MiB    {sharing_ms:>6.0} ms, {:>5.2} MiB",
            mebibytes(&alone),
            mebibytes(&sharing),
        );
        let (expected, found) = (engine.attend(&mut alone)?, engine.attend(&mut sharing)?);
        for (expected, found) in expected.iter().zip(&found) {
            assert_eq!(expected.out, found.out, "{name}");
        }
    }
    Ok(())
}

/// Returns the result of some work, and its time in milliseconds.
fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let begin = Instant::now();
    let result = work();
    (result, 1e3 * begin.elapsed().as_secs_f64())
}

/// An engine with one KV head.
struct PagedEngine {
    /// Pages, `[pages][PAGE][ROW]`.
    pool: Vec<bf16>,
    /// Block table of each sequence. All begin with the same pages.
    tables: Vec<Vec<u32>>,
}

impl PagedEngine {
    fn new() -> Self {
        let (shared, own) = ((PREFIX / PAGE) as u32, ((LENGTH - PREFIX) / PAGE) as u32);
        let table = |sequence: u32| {
            let first = shared + sequence * own;
            (0..shared).chain(first..first + own).collect()
        };
        let rows = PREFIX + SEQUENCES * (LENGTH - PREFIX);
        let pool = (0..rows * ROW).map(|i| bf16::from_f32(number(i as u64))).collect();
        Self { pool, tables: (0..SEQUENCES as u32).map(table).collect() }
    }

    /// Rows of all tokens of a sequence.
    fn rows(&self, sequence: usize) -> vattention::Result<HeadRows<'_>> {
        let page = PageLayout { rows: PAGE, stride: PAGE * ROW, row_stride: ROW };
        let rows = Tokens::paged(&self.pool, &self.tables[sequence], page, LENGTH, ROW)?;
        let (keys, values) = (rows.columns(0..SHAPE.head_dim), rows.columns(SHAPE.head_dim..ROW));
        Ok(HeadRows { keys, values })
    }

    /// Indexes all sequences. With `share`, each one shares the index of the first.
    fn index(
        &self,
        config: &Arc<PipelineConfig>,
        share: bool,
    ) -> vattention::Result<Vec<EngineHead>> {
        let mut heads: Vec<EngineHead> = Vec::new();
        for sequence in 0..SEQUENCES {
            let rows = self.rows(sequence)?;
            let options = Options { sequence: sequence as u32, ..Options::default() };
            let mut head = EngineHead::new(config, 0, 0, SHAPE, &options)?;
            if let Some(first) = heads.first_mut().filter(|_| share) {
                let tokens = head.share_index(first, &rows)?;
                assert_eq!(tokens, PREFIX, "the common tokens are recognized by their rows");
            }
            head.append(&rows, None)?;
            heads.push(head);
        }
        Ok(heads)
    }

    /// Runs a decode step of each sequence.
    fn attend(&self, heads: &mut [EngineHead]) -> vattention::Result<Vec<Output>> {
        let shape = (SHAPE.group(), 1, SHAPE.head_dim);
        let query = Array3::from_shape_fn(shape, |(head, _, i)| number((head * 1000 + i) as u64));
        let mut outputs = Vec::new();
        for (sequence, head) in heads.iter_mut().enumerate() {
            outputs.push(head.attend(&self.rows(sequence)?, query.view(), None)?);
        }
        Ok(outputs)
    }
}

/// Pseudo-random number between -1 and 1.
fn number(seed: u64) -> f32 {
    let mixed = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
}
