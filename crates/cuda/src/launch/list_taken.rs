//! From the bits of taken tokens to lists.

use vattention_core::{Error, Result};

use super::{Array, Lists, Taken};
use crate::kernels::LIST;
use crate::{Argument, Device, Grid, Kernel, Program};

/// As `list.cu` says.
const THREADS: u32 = 256;

/// Lists taken tokens.
#[derive(Clone, Debug)]
pub struct ListTaken<D: Device> {
    device: D,
    module: D::Module,
}

impl<D: Device> ListTaken<D> {
    /// What is compiled.
    pub fn program() -> Program {
        Program { source: LIST, constants: Vec::new() }
    }

    /// Compiles it.
    ///
    /// # Errors
    /// If it cannot be compiled.
    pub fn new(device: &D) -> Result<Self> {
        Ok(Self { device: device.clone(), module: device.compile(&Self::program())? })
    }

    /// A list of the tokens that `members` rows one after the other have taken, ascending, each
    /// once. The lists are made on the device: only there is it known how long they are.
    ///
    /// O(rows · visible / 32).
    ///
    /// # Errors
    /// If the members do not divide the rows, there is no memory, or the device fails.
    #[allow(unsafe_code, reason = "the only start of these kernels")]
    pub fn run(&self, taken: &Taken<D>, members: usize) -> Result<Lists<D>> {
        if members == 0 || !taken.rows().is_multiple_of(members) {
            let expected = format_args!("a multiple of {members}");
            return Err(Error::shape("rows", expected, taken.rows()));
        }
        let lengths = vec![taken.visible(); taken.rows() / members];
        let lists = Lists::within(&self.device, &lengths, taken.visible())?;
        let tokens = Array::zeros(&self.device, lists.total())?;
        let words = taken.words_of_row() as u32;
        let blocks = [words.div_ceil(THREADS), lists.len() as u32];
        let grid = Grid { blocks, threads: THREADS };
        let counts = Array::<D, u32>::zeros(&self.device, lists.len() * blocks[0] as usize)?;
        let sizes = [Argument::U32(members as u32), Argument::U32(words)];
        let counting = [taken.bits.address(), counts.address()].map(Argument::Address);
        let listing = [lists.starts.address(), tokens.address(), lists.lengths.address()]
            .map(Argument::Address);
        if blocks.iter().all(|&count| count > 0) {
            let (count, list) =
                ([&counting[..], &sizes].concat(), [&counting[..], &listing, &sizes].concat());
            // SAFETY: the arguments are those of the kernels. There are as many words of bits, a
            // count for each block of each list, and room for all tokens of each.
            unsafe {
                self.device.launch(&Kernel {
                    module: self.module.clone(),
                    name: "count_taken",
                    grid,
                    arguments: count,
                })?;
                self.device.launch(&Kernel {
                    module: self.module.clone(),
                    name: "list_taken",
                    grid,
                    arguments: list,
                })?;
            }
        }
        Ok(Lists { tokens: Some(tokens), ..lists })
    }
}
