//! A uniform sample of the tokens that are not taken.

use vattention_core::Result;

use super::{Array, Now, Progress, Taken, Work, along_y, expect};
use crate::kernels::SAMPLE;
use crate::{Device, Grid, Program};

/// As `sample.cu` says.
const THREADS: u32 = 256;
const SPAN: usize = 4096;

/// Keys of an order.
const KEYS: usize = 8;

/// Draws samples.
#[derive(Clone, Debug)]
pub struct Draw<D: Device> {
    module: D::Module,
}

/// What samples are drawn by: of each list, the keys of an order of the visible tokens.
#[derive(Debug)]
pub struct Drawing<D: Device> {
    /// `[lists, 8]`
    keys: Array<D, u32>,
    /// Tokens to draw that each block has, `[lists, blocks]`.
    counts: Array<D, u32>,
    lists: usize,
    blocks: usize,
    capacity: usize,
}

impl<D: Device> Drawing<D> {
    /// By the keys of [`Order::parameters`], `[lists, 8]`, from at most `capacity` tokens.
    ///
    /// # Errors
    /// If they are no such keys, or there is no memory.
    ///
    /// [`Order::parameters`]: vattention_core::sample::Order::parameters
    pub fn new(device: &D, keys: &Array<D, u32>, capacity: usize) -> Result<Self> {
        let lists = keys.len() / KEYS;
        expect("keys of orders", lists * KEYS, keys.len())?;
        let blocks = largest_domain(capacity).div_ceil(SPAN);
        let counts = Array::zeros(device, lists * blocks)?;
        Ok(Self { keys: keys.clone(), counts, lists, blocks, capacity })
    }
}

impl<D: Device> Draw<D> {
    /// What is compiled.
    pub fn program() -> Program {
        Program { source: SAMPLE, constants: Vec::new() }
    }

    /// Compiles it.
    ///
    /// # Errors
    /// If it cannot be compiled.
    pub fn new(device: &D) -> Result<Self> {
        Ok(Self { module: device.compile(&Self::program())? })
    }

    /// Adds a launch that counts, for [`add_draw`](Self::add_draw), the visible tokens that none of
    /// a list's `members` rows has taken.
    ///
    /// O(rows · visible), by twenty operations or so for each round of the order.
    ///
    /// # Errors
    /// If a size does not fit another.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub fn add_count(
        &self,
        work: &mut Work<D>,
        now: &Now<D>,
        taken: &Taken<D>,
        members: usize,
        drawing: &Drawing<D>,
    ) -> Result<()> {
        let grid = grid(now, taken, members, drawing)?;
        let given = [
            now.numbers.given(),
            drawing.keys.given(),
            taken.bits.given(),
            drawing.counts.given(),
            members.into(),
            now.capacity.into(),
            taken.words_of_row().into(),
        ];
        // SAFETY: the arguments are those of the kernel. There are bits for each member of each
        // list, and a count for each block of each.
        unsafe { work.add(&self.module, "count_open", grid, given) };
        Ok(())
    }

    /// Adds a launch that draws the part of each list's sample that is to be drawn: the tokens at
    /// its places of the list's [`Order`] of those not taken, as [`Draws`] has them. None has been
    /// taken since they were counted.
    ///
    /// O(rows · visible) as above where the part needs it.
    ///
    /// # Errors
    /// If a size does not fit another.
    ///
    /// [`Order`]: vattention_core::sample::Order
    /// [`Draws`]: vattention_core::sample::Draws
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub fn add_draw(
        &self,
        work: &mut Work<D>,
        now: &Now<D>,
        taken: &Taken<D>,
        members: usize,
        drawing: &Drawing<D>,
        progress: &Progress<D>,
    ) -> Result<()> {
        let grid = grid(now, taken, members, drawing)?;
        expect("samples", drawing.lists, progress.lists())?;
        now.expect_room("samples", progress.capacity())?;
        let given = [
            now.numbers.given(),
            drawing.keys.given(),
            taken.bits.given(),
            drawing.counts.given(),
            progress.first().given(),
            progress.end().given(),
            progress.tokens.given(),
            members.into(),
            now.capacity.into(),
            taken.words_of_row().into(),
        ];
        // SAFETY: as above, and there is room for the tokens at all places below the capacity.
        unsafe { work.add(&self.module, "draw", grid, given) };
        Ok(())
    }
}

/// Blocks for all candidates of all lists.
fn grid<D: Device>(
    now: &Now<D>,
    taken: &Taken<D>,
    members: usize,
    drawing: &Drawing<D>,
) -> Result<Grid> {
    expect("orders", taken.lists(members)?, drawing.lists)?;
    now.expect_room("bits", taken.capacity())?;
    now.expect_room("a drawing", drawing.capacity)?;
    let blocks = [drawing.blocks as u32, along_y("lists", drawing.lists)?];
    Ok(Grid { blocks, threads: THREADS })
}

/// The most candidates of an order of at most `capacity` tokens.
fn largest_domain(capacity: usize) -> usize {
    let root = capacity.isqrt();
    capacity + root + usize::from(root * root < capacity) + 2
}

#[cfg(test)]
mod tests {
    use super::largest_domain;
    use vattention_core::{Shape, Site, sample::Order, step::Stream};

    fn domain(visible: usize) -> usize {
        let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: 1, value_dim: 1 };
        let stream =
            Stream::new(&Site { seed: 0, sequence: 0, layer: 0, kv_head: 0, shape }, 0, 0, 0);
        let (_, [a, b]) = Order::new(visible, &stream).parameters();
        a as usize * b as usize
    }

    /// With a = ⌈√n⌉ and b = ⌈n / a⌉, a·b < n + a; the least sides, of 2, add at most 2 to that.
    #[test]
    fn no_order_of_fewer_tokens_has_more_candidates() {
        let mut largest = 0;
        for visible in 1..200_000 {
            largest = largest.max(domain(visible));
            assert!(largest <= largest_domain(visible), "{visible}");
        }
        for root in [1_000, 10_000, 46_340] {
            let square: usize = root * root;
            for visible in square - root - 2..square + root + 2 {
                assert!(domain(visible) <= largest_domain(visible), "{visible}");
            }
        }
    }
}
