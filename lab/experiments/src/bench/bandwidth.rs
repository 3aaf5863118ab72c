//! How fast the machine reads memory in order: the limit of everything else.

use std::hint::black_box;
use std::time::Instant;

use memmap2::MmapMut;
use multiversion::multiversion;
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::{Error, Result};

/// Bytes that a thread sums before it asks for more: long enough for the machine's read-ahead,
/// short enough that a thread which is held up leaves the rest to the others.
const PIECE: usize = 16 << 20;

/// Sums that are kept apart, so that none waits for another: eight registers of AVX-512. With half
/// as many, LLVM shuffles two lines together, and the sum is slower than memory.
const LANES: usize = 64;

/// Memory to be read.
pub(super) struct ColdMemory(MmapMut);

impl ColdMemory {
    pub(super) fn new(bytes: usize) -> Result<Self> {
        let mut memory = MmapMut::map_anon(bytes).map_err(|error| refuse("cold_bytes", error))?;
        #[cfg(target_os = "linux")]
        // Without huge pages it is a little slower to read, and otherwise the same.
        let _ = memory.advise(memmap2::Advice::HugePage);
        // A page that was never written is not memory yet.
        memory.fill(1);
        Ok(Self(memory))
    }

    /// Reads all of it on the threads of the pool: GB/s.
    pub(super) fn read(&self, pool: &ThreadPool) -> f64 {
        let start = Instant::now();
        let total = pool.install(|| self.0.par_chunks(PIECE).map(sum).reduce(|| 0, wrapping_add));
        black_box(total);
        self.0.len() as f64 / start.elapsed().as_secs_f64().max(1e-9) / 1e9
    }
}

/// Threads to read with.
pub(super) fn pool(threads: usize) -> Result<ThreadPool> {
    let pool = ThreadPoolBuilder::new().num_threads(threads).build();
    pool.map_err(|error| refuse("threads", error))
}

fn refuse(field: &'static str, error: impl ToString) -> Error {
    Error::Setting { field, reason: error.to_string() }
}

fn wrapping_add(a: u64, b: u64) -> u64 {
    a.wrapping_add(b)
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2+fma"))]
fn sum(bytes: &[u8]) -> u64 {
    let mut sums = [0_u64; LANES];
    for words in bytes.as_chunks::<{ 8 * LANES }>().0 {
        for (sum, word) in sums.iter_mut().zip(words.as_chunks().0) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
        }
    }
    sums.into_iter().fold(0, wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_it_is_read() {
        let memory = ColdMemory::new(3 * PIECE + 512).unwrap();
        let ones = u64::from_ne_bytes([1; 8]);
        let words = memory.0.len() as u64 / 8;
        let total: u64 = memory.0.chunks(PIECE).map(sum).fold(0, wrapping_add);
        assert_eq!(total, ones.wrapping_mul(words));
        let speed = memory.read(&pool(2).unwrap());
        assert!(speed.is_finite() && speed > 0.0);
    }
}
