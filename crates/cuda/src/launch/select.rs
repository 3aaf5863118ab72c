//! The best of many scores.

use std::marker::PhantomData;

use vattention_core::Result;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::taken::stride;
use super::{Array, Scores, Taken, expect};
use crate::kernels::SELECT;
use crate::{Argument, Device, Grid, Kernel, Program};

/// As `select.cu` says.
const THREADS: u32 = 256;
const SPAN: usize = 4096;

/// Values of a digit.
const DIGITS: usize = 256;

/// A number type that tokens can be ranked by on the device: `f32` or `u16`.
pub trait Ranked: Copy + FromBytes + IntoBytes + Immutable {
    /// Its name in the kernels.
    const NAME: &str;
    /// The score of an ordered key.
    fn of_key(key: u32) -> Self;
}

impl Ranked for u16 {
    const NAME: &str = "u16";
    fn of_key(key: u32) -> Self {
        key as Self
    }
}

impl Ranked for f32 {
    const NAME: &str = "f32";
    fn of_key(key: u32) -> Self {
        Self::from_bits(if key >> 31 == 1 { key & 0x7fff_ffff } else { !key })
    }
}

/// Takes the best of the tokens not taken yet.
#[derive(Clone, Debug)]
pub struct Select<D: Device, S> {
    device: D,
    module: D::Module,
    of: PhantomData<S>,
}

/// The best score of each row that was left over, on the device.
#[derive(Debug)]
pub struct Left<D: Device, S> {
    /// 1 + its key, or 0 where nothing is left.
    keys: Array<D, u32>,
    of: PhantomData<S>,
}

impl<D: Device, S: Ranked> Left<D, S> {
    /// The scores, `None` where nothing is left.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&self) -> Result<Vec<Option<S>>> {
        let score = |key: u32| key.checked_sub(1).map(S::of_key);
        Ok(self.keys.read()?.into_iter().map(score).collect())
    }
}

impl<D: Device, S: Ranked> Select<D, S> {
    /// What is compiled.
    pub fn program() -> Program {
        Program { source: SELECT, constants: vec![("SCORE", S::NAME.to_owned())] }
    }

    /// Compiles it.
    ///
    /// # Errors
    /// If it cannot be compiled.
    pub fn new(device: &D) -> Result<Self> {
        let module = device.compile(&Self::program())?;
        Ok(Self { device: device.clone(), module, of: PhantomData })
    }

    /// Takes, of each row, the `counts[row]` best tokens not taken yet, lower index first among
    /// equals, as [`Picks::take_top`] does; says the best score that was left over.
    ///
    /// Goes over the scores once for each byte of one, and twice more.
    ///
    /// # Errors
    /// If a size does not fit another, there is no memory, or the device fails.
    ///
    /// [`Picks::take_top`]: vattention_core::Picks::take_top
    pub fn run(
        &self,
        scores: &Scores<D, S>,
        counts: &[usize],
        taken: &mut Taken<D>,
    ) -> Result<Left<D, S>> {
        let (rows, visible) = (taken.rows(), taken.visible());
        expect("rows of scores", rows, scores.rows)?;
        expect("scores of a row", visible, scores.visible)?;
        expect("numbers of tokens to take", rows, counts.len())?;
        let left = Left { keys: Array::zeros(&self.device, rows)?, of: PhantomData };
        if rows == 0 || visible == 0 {
            return Ok(left);
        }
        let cuts: Vec<u32> = counts.iter().flat_map(|&k| [0, k.min(visible) as u32]).collect();
        let cuts = Array::new(&self.device, &cuts)?;
        self.cut(scores, taken, &cuts)?;
        self.mark(scores, taken, &cuts, &left)?;
        Ok(left)
    }

    /// Finds where the best end, digit by digit.
    fn cut(&self, scores: &Scores<D, S>, taken: &Taken<D>, cuts: &Array<D, u32>) -> Result<()> {
        let counts = Array::<D, u32>::zeros(&self.device, taken.rows() * DIGITS)?;
        for digit in (0..size_of::<S>()).rev() {
            let more = [
                Argument::Address(cuts.address()),
                Argument::Address(counts.address()),
                Argument::U32(digit as u32),
            ];
            self.over_scores("count_digits", scores, taken, &more)?;
            let addresses = [cuts.address(), counts.address()].map(Argument::Address);
            self.launch("narrow", [taken.rows() as u32, 1], &addresses)?;
        }
        Ok(())
    }

    /// Takes what is above the cut, and the first of its equals.
    fn mark(
        &self,
        scores: &Scores<D, S>,
        taken: &Taken<D>,
        cuts: &Array<D, u32>,
        left: &Left<D, S>,
    ) -> Result<()> {
        let spans = taken.visible().div_ceil(SPAN);
        let equals = Array::<D, u32>::zeros(&self.device, taken.rows() * spans)?;
        let more = [cuts.address(), equals.address(), left.keys.address()].map(Argument::Address);
        self.over_scores("count_equals", scores, taken, &more[..2])?;
        self.over_scores("mark", scores, taken, &more)
    }

    /// Starts a kernel over all scores.
    fn over_scores(
        &self,
        kernel: &'static str,
        scores: &Scores<D, S>,
        taken: &Taken<D>,
        more: &[Argument],
    ) -> Result<()> {
        let visible = taken.visible();
        let first = [scores.numbers.address(), taken.bits.address()].map(Argument::Address);
        let last = [visible, stride(visible)].map(|tokens| Argument::U32(tokens as u32));
        let arguments = [&first, more, &last].concat();
        let blocks = [visible.div_ceil(SPAN) as u32, taken.rows() as u32];
        self.launch(kernel, blocks, &arguments)
    }

    #[allow(unsafe_code, reason = "the only start of these kernels")]
    fn launch(&self, kernel: &'static str, blocks: [u32; 2], arguments: &[Argument]) -> Result<()> {
        let grid = Grid { blocks, threads: THREADS };
        // SAFETY: the arguments are those of the kernels. Scores and bits are of as many rows and
        // visible tokens, as `run` has checked, and what else they write has room for each row,
        // each digit of it, or each span of it.
        unsafe {
            self.device.launch(&Kernel {
                module: self.module.clone(),
                name: kernel,
                grid,
                arguments: arguments.to_vec(),
            })
        }
    }
}
