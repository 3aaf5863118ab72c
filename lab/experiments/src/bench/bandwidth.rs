//! Speed of reading memory in order: the upper limit of every pipeline's speed.

use std::hint::black_box;
use std::time::Instant;

use memmap2::MmapMut;
use multiversion::multiversion;
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::{Error, Result};

/// Bytes that a thread sums per task: enough for the hardware prefetcher, and few enough that other
/// threads take over the remaining tasks of a delayed thread.
const PIECE: usize = 16 << 20;

/// Number of independent sums, which fill eight registers of AVX-512. With half this number, LLVM
/// interleaves two cache lines by shuffles, and the sum is slower than memory.
const LANES: usize = 64;

/// Memory for the sequential read.
pub(super) struct ColdMemory(MmapMut);

impl ColdMemory {
    pub(super) fn new(bytes: usize) -> Result<Self> {
        let mut memory = MmapMut::map_anon(bytes).map_err(|error| refuse("cold_bytes", error))?;
        #[cfg(target_os = "linux")]
        // The read works without huge pages, a little slower.
        let _ = memory.advise(memmap2::Advice::HugePage);
        // The system allocates a page when it is first written.
        memory.fill(1);
        Ok(Self(memory))
    }

    /// Reads the memory on the threads of the pool; returns the speed in GB/s.
    pub(super) fn read(&self, pool: &ThreadPool) -> f64 {
        let start = Instant::now();
        let total = pool.install(|| self.0.par_chunks(PIECE).map(sum).reduce(|| 0, wrapping_add));
        black_box(total);
        self.0.len() as f64 / start.elapsed().as_secs_f64().max(1e-9) / 1e9
    }
}

/// Starts a pool of threads for the sequential read.
pub(super) fn start_pool(threads: usize) -> Result<ThreadPool> {
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
    fn the_whole_memory_is_read() {
        let memory = ColdMemory::new(3 * PIECE + 512).unwrap();
        let ones = u64::from_ne_bytes([1; 8]);
        let words = memory.0.len() as u64 / 8;
        let total: u64 = memory.0.chunks(PIECE).map(sum).fold(0, wrapping_add);
        assert_eq!(total, ones.wrapping_mul(words));
        let speed = memory.read(&start_pool(2).unwrap());
        assert!(speed.is_finite() && speed > 0.0);
    }
}
