//! Hash codes of keys and of queries.

use vattention_core::{Error, Result};
use vattention_selectors::Activation;

use super::codes::padded_capacity;
use super::network::{DeviceNetwork, NetworkShape};
use super::{
    Array, DeviceCodes, MOST_BLOCKS, Pages, RowLayout, StepNumbers, Work, along_y, expect,
};
use crate::kernels::ENCODE;
use crate::{Device, Grid, Program};

/// Threads in a block, as in `encode.cu`.
const THREADS: u32 = 128;

/// Elements of all vectors that a block maps together; its shared memory holds twice as many.
const HELD: usize = 4096;

/// Most keys that a block maps together.
const LARGEST_TILE: usize = 8;

/// Computes hash codes, compiled for networks of one shape and rows of one layout.
#[derive(Clone, Debug)]
pub struct Encode<D: Device> {
    device: D,
    module: D::Module,
    layout: RowLayout,
    shape: NetworkShape,
}

/// Inputs and outputs of the encoding of keys, one element per map, all on the device.
#[derive(Debug)]
pub(crate) struct Encoding<'a, D: Device> {
    /// Addresses of page tables.
    pub(crate) tables: &'a Array<D, u64>,
    /// Addresses of [`DeviceNetwork`]s.
    pub(crate) networks: &'a Array<D, u64>,
    /// Number of first tokens that have codes.
    pub(crate) indexed: &'a Array<D, u32>,
    /// Addresses of [`DeviceCodes`].
    pub(crate) codes: &'a Array<D, u64>,
}

impl<D: Device> Encode<D> {
    /// Returns the program to compile.
    ///
    /// # Errors
    /// If a layer of the network is too wide, or its inputs differ from the elements of a key.
    pub fn program(layout: RowLayout, shape: &NetworkShape) -> Result<Program> {
        Self::check(layout, shape)?;
        let activation = match shape.activation {
            Activation::Silu => "silu",
            Activation::Relu => "relu",
            Activation::Gelu => "gelu",
            Activation::Tanh => "tanhf",
        };
        let widths: Vec<String> = shape.widths.iter().map(usize::to_string).collect();
        let mut constants = layout.constants();
        constants.extend([
            ("LAYERS", (widths.len() - 1).to_string()),
            ("WIDTHS", format!("{{{}}}", widths.join(", "))),
            ("WIDEST", shape.widest().to_string()),
            ("TILE", tile(shape).to_string()),
            ("ACTIVATION", activation.to_owned()),
        ]);
        Ok(Program { source: ENCODE, constants })
    }

    /// Fails if there is no kernel for such networks.
    pub(crate) fn check(layout: RowLayout, shape: &NetworkShape) -> Result<()> {
        let inputs = shape.widths.first().copied().unwrap_or(0);
        expect("numbers that go into a network", layout.head_dim(), inputs)?;
        if shape.widest() > HELD || shape.widths.len() < 2 || shape.widths.contains(&0) {
            let expected = format_args!("layers of 1 to {HELD} elements on CUDA");
            return Err(Error::shape("a network", expected, &shape.widths));
        }
        Ok(())
    }

    /// Compiles the program.
    ///
    /// # Errors
    /// If [`program`](Self::program) fails, or the program cannot be compiled.
    pub fn new(device: &D, layout: RowLayout, shape: &NetworkShape) -> Result<Self> {
        let module = device.compile(&Self::program(layout, shape)?)?;
        Ok(Self { device: device.clone(), module, layout, shape: shape.clone() })
    }

    /// Adds a launch that encodes the visible tokens of `heads[i]` beyond the first `indexed[i]`
    /// with `networks[i]`, and writes them to `codes[i]`. All slices have the same length, and the
    /// work shares ownership of their contents.
    ///
    /// O(new tokens · weights of a network) for each map.
    ///
    /// # Errors
    /// If the sizes of arguments do not agree, or there is no memory.
    pub fn add_heads(
        &self,
        work: &mut Work<D>,
        step: &StepNumbers<D>,
        heads: &[&Pages<D>],
        networks: &[&DeviceNetwork<D>],
        indexed: &[u32],
        codes: &[&DeviceCodes<D>],
    ) -> Result<()> {
        for head in heads {
            head.keep_for(work, self.layout, step.capacity)?;
        }
        for codes in codes {
            expect("bits of codes", self.shape.outputs(), codes.bits())?;
            expect("room for codes", padded_capacity(step.capacity), codes.capacity())?;
            work.keep(codes.packed());
        }
        let array = |addresses: Vec<u64>| Array::new(&self.device, &addresses);
        let encoding = Encoding {
            tables: &array(heads.iter().map(|head| head.table()).collect())?,
            networks: &self.networks(work, networks)?,
            indexed: &Array::new(&self.device, indexed)?,
            codes: &array(codes.iter().map(|codes| codes.address()).collect())?,
        };
        self.add_keys(work, step, &encoding)
    }

    /// Adds the same launch for addresses that must be valid when the kernel runs: networks of this
    /// shape, codes with matching bits and capacity, and pages for the visible tokens.
    ///
    /// # Errors
    /// If the sizes of arguments do not agree.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub(crate) fn add_keys(
        &self,
        work: &mut Work<D>,
        step: &StepNumbers<D>,
        encoding: &Encoding<'_, D>,
    ) -> Result<()> {
        let Encoding { tables, networks, indexed, codes } = encoding;
        let maps = codes.len();
        expect("tables", maps, tables.len())?;
        expect("networks", maps, networks.len())?;
        expect("counts of indexed codes", maps, indexed.len())?;
        let blocks = step.capacity.div_ceil(tile(&self.shape)).min(MOST_BLOCKS) as u32;
        let grid = Grid { blocks: [blocks, along_y("maps", maps)?], threads: THREADS };
        let arguments = [
            step.numbers.argument(),
            tables.argument(),
            networks.argument(),
            indexed.argument(),
            codes.argument(),
            step.capacity.into(),
            padded_capacity(step.capacity).into(),
        ];
        // SAFETY: the arguments match the kernel's parameters. The pages have the visible rows, and
        // there is room for a code of each.
        unsafe { work.add(&self.module, "encode_keys", grid, arguments) };
        Ok(())
    }

    /// Adds a launch that encodes queries `[count, head_dim]` with `networks` `[count]` into
    /// `codes` `[count, words]`. The work shares ownership of the networks.
    ///
    /// # Errors
    /// If the sizes of arguments do not agree, or there is no memory.
    pub fn add_queries_by(
        &self,
        work: &mut Work<D>,
        queries: &Array<D, f32>,
        networks: &[&DeviceNetwork<D>],
        codes: &Array<D, u32>,
    ) -> Result<()> {
        let networks = self.networks(work, networks)?;
        self.add_queries(work, queries, &networks, codes)
    }

    /// Adds the same launch for addresses of networks that must be valid when the kernel runs.
    ///
    /// # Errors
    /// If the sizes of arguments do not agree.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub(crate) fn add_queries(
        &self,
        work: &mut Work<D>,
        queries: &Array<D, f32>,
        networks: &Array<D, u64>,
        codes: &Array<D, u32>,
    ) -> Result<()> {
        let count = networks.len();
        expect("elements of queries", count * self.layout.head_dim(), queries.len())?;
        expect("words of query codes", count * self.shape.outputs().div_ceil(32), codes.len())?;
        let grid = Grid { blocks: [count as u32, 1], threads: THREADS };
        let arguments = [queries.argument(), networks.argument(), codes.argument()];
        // SAFETY: the arguments match the kernel's parameters, for `count` queries.
        unsafe { work.add(&self.module, "encode_queries", grid, arguments) };
        Ok(())
    }

    /// Addresses of networks, whose memory the work shares.
    fn networks(
        &self,
        work: &mut Work<D>,
        networks: &[&DeviceNetwork<D>],
    ) -> Result<Array<D, u64>> {
        for network in networks {
            if *network.shape() != self.shape {
                let expected = format!("{:?}", self.shape);
                return Err(Error::shape("a network", expected, network.shape()));
            }
            work.keep(network.numbers());
        }
        let addresses: Vec<u64> = networks.iter().map(|network| network.address()).collect();
        Array::new(&self.device, &addresses)
    }
}

/// Number of keys that a block maps together.
fn tile(shape: &NetworkShape) -> usize {
    (HELD / shape.widest()).clamp(1, LARGEST_TILE)
}
