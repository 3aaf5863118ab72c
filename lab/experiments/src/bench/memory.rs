//! Plan of the caches that fit into memory together.

use vattention_core::{Shape, Storage};

use crate::{Error, Result};

/// Share of the available memory that caches and the buffer for the sequential read may take.
const SHARE: f64 = 0.6;

/// Largest number of layers: layers are numbered up to 4095.
const MOST_LAYERS: u64 = 4096;

/// Bytes of memory that are available without swapping, if the system reports them.
pub fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    Some((1024.0 * kibibytes(&text, "MemAvailable:")?) as u64)
}

/// Share of this process's memory in huge pages, without mapped files, if the system reports it.
pub(super) fn huge_share() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let reserved = kibibytes(&text, "Private_Hugetlb:").unwrap_or(0.0);
    let (huge, all) = (kibibytes(&text, "AnonHugePages:")?, kibibytes(&text, "Anonymous:")?);
    Some((huge + reserved) / (all + reserved).max(1.0))
}

/// Parses the number of a line `name 123 kB`.
fn kibibytes(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Bytes that the benchmark may allocate, if the system reports the available memory.
pub(super) fn allowance() -> Option<u64> {
    available_memory().map(|bytes| (SHARE * bytes as f64) as u64)
}

/// Bytes of the key and the value of one token in one KV head.
pub fn row_bytes(shape: &Shape, storage: Storage) -> u64 {
    let key = storage.row_bytes(shape.head_dim);
    key.saturating_add(storage.row_bytes(shape.value_dim)) as u64
}

/// Numbers of layers and of pipelines whose caches fit into memory together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CachePlan {
    /// Number of layers of each pipeline.
    pub(super) layers: usize,
    /// Number of pipelines that are measured together, without dense attention.
    pub(super) together: usize,
}

impl CachePlan {
    /// Plans enough layers for `cold_bytes`, in whole batches, and the largest number of pipelines
    /// that fit together.
    pub(super) fn new(
        shape: &Shape,
        storage: Storage,
        tokens: usize,
        sequences: usize,
        pipelines: usize,
        cold_bytes: usize,
        allowance: Option<u64>,
    ) -> Result<Self> {
        let layer = row_bytes(shape, storage)
            .saturating_mul(shape.kv_heads as u64)
            .saturating_mul(tokens as u64);
        let (buffer, batch) = (cold_bytes as u64, sequences as u64);
        let layers = buffer.div_ceil(layer).clamp(2, MOST_LAYERS);
        let layers = layers.next_multiple_of(batch).min(MOST_LAYERS / batch * batch);
        let caches = layer.saturating_mul(layers);
        let Some(allowance) = allowance else {
            return Ok(Self { layers: layers as usize, together: pipelines });
        };
        let fitting = allowance.saturating_sub(buffer) / caches;
        let least = 1 + pipelines.min(1) as u64;
        if fitting < least {
            let needed = caches.saturating_mul(least).saturating_add(buffer);
            let reason = format!(
                "{tokens} tokens in {layers} layers need {needed} bytes (dense attention, one \
                 pipeline, and a buffer to read in order); expected at most {allowance}, \
                 {:.0} % of the available memory",
                100.0 * SHARE
            );
            return Err(Error::Setting { field: "tokens", reason });
        }
        // The groups get about equal sizes.
        let most = (fitting - 1).max(1) as usize;
        let together = pipelines.div_ceil(pipelines.div_ceil(most).max(1));
        Ok(Self { layers: layers as usize, together })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plans caches of 64 KiB: 1024 tokens of 64 bytes in one KV head.
    fn plan(cold_bytes: usize, pipelines: usize, allowance: Option<u64>) -> Result<CachePlan> {
        let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: 16, value_dim: 16 };
        CachePlan::new(&shape, Storage::Bf16, 1024, 1, pipelines, cold_bytes, allowance)
    }

    #[test]
    fn plans_have_enough_layers_and_fit_into_memory() {
        let (kib, unlimited) = (1 << 10, None);
        assert_eq!(plan(1, 7, unlimited).unwrap(), CachePlan { layers: 2, together: 7 });
        assert_eq!(plan(200 * kib, 7, unlimited).unwrap(), CachePlan { layers: 4, together: 7 });
        assert_eq!(plan(1 << 30, 1, unlimited).unwrap().layers, 4096);
        // A pipeline and the buffer take 256 KiB each.
        let allow = |pipelines: usize| Some((256 * (1 + pipelines) * kib) as u64);
        assert_eq!(plan(256 * kib, 7, allow(8)).unwrap().together, 7);
        assert_eq!(plan(256 * kib, 7, allow(7)).unwrap().together, 4, "two groups, of 4 and 3");
        assert_eq!(plan(256 * kib, 7, allow(2)).unwrap().together, 1);
        assert_eq!(plan(256 * kib, 0, allow(1)).unwrap().together, 0, "dense alone");
        let message = plan(256 * kib, 7, allow(1)).unwrap_err().to_string();
        assert!(message.contains("1024 tokens in 4 layers need 786432 bytes"), "{message}");
    }
}
