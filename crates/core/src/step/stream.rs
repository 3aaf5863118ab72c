//! Counter-based random numbers, Philox 4×32-10.
//!
//! The numbers of a stream are a pure function of its position and purpose, so that a row gets the
//! same numbers on every thread and device and in every batch.
//!
//! Reference: Salmon, Moraes, Dror, Shaw (2011), "Parallel random numbers: as easy as 1, 2, 3".

use crate::step::Site;

/// Random numbers for one purpose and one row.
///
/// The key is the seed, and the counter is
/// `[purpose · 2¹⁶ + block, step, layer · 2²⁰ + kv_head · 2⁸ + member, sequence]`. Purpose 0 is the
/// sampler, and purpose `i + 1` is selector `i`. Indexes count their purposes down from
/// `u16::MAX − 1`, and `u16::MAX` is that of a row outside of selectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    key: [u32; 2],
    counter: [u32; 4],
}

/// Member number for the whole group, if its query heads share one token list.
pub(crate) const SHARED: usize = 255;

impl Stream {
    /// Creates the stream of a `purpose` for a `member` of the group at `site`, at a decode step.
    pub fn new(site: &Site, purpose: u16, step: u32, member: usize) -> Self {
        let place = (site.layer << 20) | (site.kv_head << 8) | member;
        Self {
            key: [site.seed as u32, (site.seed >> 32) as u32],
            counter: [u32::from(purpose) << 16, step, place as u32, site.sequence],
        }
    }

    /// Block of four random words at an index.
    pub fn block(&self, index: u16) -> [u32; 4] {
        let mut counter = self.counter;
        counter[0] |= u32::from(index);
        philox(counter, self.key)
    }

    /// All 2¹⁸ words of the stream, in order.
    pub fn words(self) -> impl Iterator<Item = u32> {
        (0..=u16::MAX).flat_map(move |index| self.block(index))
    }
}

/// Applies the ten rounds of Philox to a counter.
fn philox(mut c: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(c[0]) * 0xD251_1F53;
        let b = u64::from(c[2]) * 0xCD9E_8D57;
        c = [
            (b >> 32) as u32 ^ c[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ c[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Shape;

    /// The expected numbers are published by the generator's authors (Random123, `kat_vectors`).
    #[test]
    fn published_test_vectors() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    /// Rule 6: each coordinate changes the numbers, and has its own bits of the counter.
    #[test]
    fn each_coordinate_changes_the_numbers() {
        let shape = Shape { query_heads: 8, kv_heads: 4, head_dim: 1, value_dim: 1 };
        let site = Site { seed: 0x1_0000_0002, sequence: 7, layer: 3, kv_head: 2, shape };
        let stream = Stream::new(&site, 5, 11, 1);
        assert_eq!(stream.key, [2, 1]);
        assert_eq!(stream.counter, [5 << 16, 11, (3 << 20) + (2 << 8) + 1, 7]);
        let others = [
            Stream::new(&Site { seed: 3, ..site }, 5, 11, 1),
            Stream::new(&Site { sequence: 8, ..site }, 5, 11, 1),
            Stream::new(&Site { layer: 4, ..site }, 5, 11, 1),
            Stream::new(&Site { kv_head: 3, ..site }, 5, 11, 1),
            Stream::new(&site, 6, 11, 1),
            Stream::new(&site, 5, 12, 1),
            Stream::new(&site, 5, 11, SHARED),
        ];
        for other in others {
            assert_ne!(stream.block(0), other.block(0));
        }
        let words: Vec<u32> = stream.words().skip(4).take(4).collect();
        assert_eq!(words, stream.block(1));
    }
}
