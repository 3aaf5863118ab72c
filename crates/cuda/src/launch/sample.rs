//! A uniform sample of the tokens that are not taken.

use std::ops::Range;

use vattention_core::{Error, Order, Result, Stream};

use super::{Array, Lists, Taken, expect};
use crate::kernels::SAMPLE;
use crate::{Argument, Device, Grid, Kernel, Program};

/// As `sample.cu` says.
const THREADS: u32 = 256;
const SPAN: usize = 4096;

/// Draws samples.
#[derive(Clone, Debug)]
pub struct Sample<D: Device> {
    device: D,
    module: D::Module,
}

/// A part of a sample.
#[derive(Clone, Debug)]
pub struct Draw {
    /// What keys the order of the draw.
    pub stream: Stream,
    /// The places in the sample, of which there may be less.
    pub places: Range<usize>,
}

impl<D: Device> Sample<D> {
    /// What is compiled.
    pub fn program() -> Program {
        Program { source: SAMPLE, constants: Vec::new() }
    }

    /// Compiles it.
    ///
    /// # Errors
    /// If it cannot be compiled.
    pub fn new(device: &D) -> Result<Self> {
        Ok(Self { device: device.clone(), module: device.compile(&Self::program())? })
    }

    /// For each draw, tokens that `members` rows one after the other have not taken: those at some
    /// places of the [`Order`] that a stream keys, as [`Draws`](vattention_core::Draws) has them, in
    /// that order.
    ///
    /// O(draws · visible · members), by twenty operations or so for each round of the order.
    ///
    /// # Errors
    /// If a number does not fit another, there is no memory, or the device fails.
    #[allow(unsafe_code, reason = "the only start of these kernels")]
    pub fn run(&self, draws: &[Draw], taken: &Taken<D>, members: usize) -> Result<Lists<D>> {
        expect("rows", draws.len() * members, taken.rows())?;
        let visible = taken.visible();
        let clamped = |draw: &Draw| clamp(&draw.places, visible);
        let places = draws.iter().map(clamped).collect::<Result<Vec<_>>>()?;
        let lengths: Vec<usize> = places.iter().map(ExactSizeIterator::len).collect();
        let lists = Lists::within(&self.device, &lengths, visible)?;
        let tokens = Array::zeros(&self.device, lists.total())?;
        let orders: Vec<_> =
            draws.iter().map(|draw| Order::new(visible, &draw.stream).parameters()).collect();
        let [a, b] = orders.first().map_or([0, 0], |&(_, sides)| sides);
        let blocks = [(a as usize * b as usize).div_ceil(SPAN) as u32, draws.len() as u32];
        if blocks.contains(&0) || visible == 0 {
            return Ok(Lists { tokens: Some(tokens), ..lists });
        }
        let numbers = |numbers: Vec<u32>| Array::new(&self.device, &numbers);
        let keys = numbers(orders.iter().flat_map(|&(keys, _)| keys).collect())?;
        let firsts = numbers(places.iter().map(|places| places.start).collect())?;
        let ends = numbers(places.iter().map(|places| places.end).collect())?;
        let counts = numbers(vec![0; blocks[0] as usize * draws.len()])?;
        let given = [keys.address(), taken.bits.address(), counts.address()].map(Argument::Address);
        let out = [&firsts, &ends, &lists.starts, &tokens, &lists.lengths]
            .map(|array| Argument::Address(array.address()));
        let sizes =
            [a, b, visible as u32, members as u32, taken.words_of_row() as u32].map(Argument::U32);
        let (count, draw) = ([&given[..], &sizes].concat(), [&given[..], &out, &sizes].concat());
        let grid = Grid { blocks, threads: THREADS };
        // SAFETY: the arguments are those of the kernels. There are bits for each member of each
        // draw, a count for each block of each, and room for the tokens at all places.
        unsafe {
            self.device.launch(&Kernel {
                module: self.module.clone(),
                name: "count_open",
                grid,
                arguments: count,
            })?;
            self.device.launch(&Kernel {
                module: self.module.clone(),
                name: "draw",
                grid,
                arguments: draw,
            })?;
        }
        Ok(Lists { tokens: Some(tokens), ..lists })
    }
}

/// The places that there can be at all.
fn clamp(places: &Range<usize>, visible: usize) -> Result<Range<u32>> {
    if places.start > places.end {
        return Err(Error::shape("places of a draw", "an ascending range", places));
    }
    Ok(places.start.min(visible) as u32..places.end.min(visible) as u32)
}
