//! Uniform samples of the untaken tokens.

use vattention_core::Result;

use super::{Array, Progress, StepNumbers, Taken, Work, along_y, expect};
use crate::kernels::SAMPLE;
use crate::{Device, Grid, Program};

/// Threads in a block and candidates of a block, as in `sample.cu`.
const THREADS: u32 = 256;
const SPAN: usize = 4096;

/// Number of keys of a random order.
const KEYS: usize = 8;

/// Draws samples.
#[derive(Clone, Debug)]
pub struct Draw<D: Device> {
    module: D::Module,
}

/// Inputs of draws, and memory for their counts. The random order of each list is given by
/// keys.
#[derive(Debug)]
pub struct DrawInputs<D: Device> {
    /// `[lists, 8]`
    keys: Array<D, u32>,
    /// Untaken tokens in each block of candidates, `[lists, blocks]`.
    counts: Array<D, u32>,
    lists: usize,
    blocks: usize,
    capacity: usize,
}

impl<D: Device> DrawInputs<D> {
    /// Uses the keys of [`Order::parameters`], `[lists, 8]`, for draws from at most `capacity`
    /// tokens.
    ///
    /// # Errors
    /// If the number of keys is no multiple of 8, or there is no memory.
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
    /// Returns the program to compile.
    pub fn program() -> Program {
        Program { source: SAMPLE, constants: Vec::new() }
    }

    /// Compiles the program.
    ///
    /// # Errors
    /// If the program cannot be compiled.
    pub fn new(device: &D) -> Result<Self> {
        Ok(Self { module: device.compile(&Self::program())? })
    }

    /// Adds a launch that counts, for [`add_draw`](Self::add_draw), the visible tokens that none of
    /// a list's `members` rows has taken.
    ///
    /// O(rows · visible), with about twenty operations for each round of the order.
    ///
    /// # Errors
    /// If the sizes of arguments do not agree.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub fn add_count(
        &self,
        work: &mut Work<D>,
        step: &StepNumbers<D>,
        taken: &Taken<D>,
        members: usize,
        inputs: &DrawInputs<D>,
    ) -> Result<()> {
        let grid = grid(step, taken, members, inputs)?;
        let arguments = [
            step.numbers.argument(),
            inputs.keys.argument(),
            taken.bits.argument(),
            inputs.counts.argument(),
            members.into(),
            step.capacity.into(),
            taken.words_of_row().into(),
        ];
        // SAFETY: the arguments match the kernel's parameters. There are bits for each member of
        // each list, and a count for each block of each list.
        unsafe { work.add(&self.module, "count_open", grid, arguments) };
        Ok(())
    }

    /// Adds a launch that draws the current part of each list's sample: the tokens at these places
    /// of the list's [`Order`] of untaken tokens, the same as those of [`Draws`]. No token may be
    /// taken between the count and the draw.
    ///
    /// O(rows · visible), as for the count, for each list whose part is not empty.
    ///
    /// # Errors
    /// If the sizes of arguments do not agree.
    ///
    /// [`Order`]: vattention_core::sample::Order
    /// [`Draws`]: vattention_core::sample::Draws
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub fn add_draw(
        &self,
        work: &mut Work<D>,
        step: &StepNumbers<D>,
        taken: &Taken<D>,
        members: usize,
        inputs: &DrawInputs<D>,
        progress: &Progress<D>,
    ) -> Result<()> {
        let grid = grid(step, taken, members, inputs)?;
        expect("samples", inputs.lists, progress.lists())?;
        step.expect_room("samples", progress.capacity())?;
        let arguments = [
            step.numbers.argument(),
            inputs.keys.argument(),
            taken.bits.argument(),
            inputs.counts.argument(),
            progress.first().argument(),
            progress.end().argument(),
            progress.tokens.argument(),
            members.into(),
            step.capacity.into(),
            taken.words_of_row().into(),
        ];
        // SAFETY: the conditions of the count hold, and there is room for the tokens at all places
        // below the capacity.
        unsafe { work.add(&self.module, "draw", grid, arguments) };
        Ok(())
    }
}

/// Grid with blocks for all candidates of all lists.
fn grid<D: Device>(
    step: &StepNumbers<D>,
    taken: &Taken<D>,
    members: usize,
    inputs: &DrawInputs<D>,
) -> Result<Grid> {
    expect("orders", taken.lists(members)?, inputs.lists)?;
    step.expect_room("bits", taken.capacity())?;
    step.expect_room("a drawing", inputs.capacity)?;
    let blocks = [inputs.blocks as u32, along_y("lists", inputs.lists)?];
    Ok(Grid { blocks, threads: THREADS })
}

/// Upper bound on the number of candidates of an order of at most `capacity` tokens.
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

    /// With a = ⌈√n⌉ and b = ⌈n / a⌉, a·b < n + a; the smallest sides, 2, add at most 2 to that.
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
