//! Hash codes of keys and of queries.

use vattention_core::{Error, Result};
use vattention_selectors::Activation;

use super::codes::room;
use super::network::{DeviceNetwork, NetworkShape};
use super::{Array, DeviceCodes, MOST_BLOCKS, Now, Pages, RowLayout, Work, along_y, expect};
use crate::kernels::ENCODE;
use crate::{Device, Grid, Program};

/// As `encode.cu` says.
const THREADS: u32 = 128;

/// Elements of all vectors that are mapped together: twice as many fit in a block's shared memory.
const HELD: usize = 4096;

/// The most keys that are mapped together.
const LARGEST_TILE: usize = 8;

/// Makes codes, compiled for networks of one shape and rows of one layout.
#[derive(Clone, Debug)]
pub struct Encode<D: Device> {
    device: D,
    module: D::Module,
    layout: RowLayout,
    shape: NetworkShape,
}

/// Which keys are mapped, how, and to where, all of it on the device, for each map.
#[derive(Debug)]
pub(crate) struct Encoding<'a, D: Device> {
    /// Tables of pages.
    pub(crate) tables: &'a Array<D, u64>,
    /// [`DeviceNetwork`]s.
    pub(crate) networks: &'a Array<D, u64>,
    /// How many of the first tokens have codes.
    pub(crate) known: &'a Array<D, u32>,
    /// [`DeviceCodes`].
    pub(crate) codes: &'a Array<D, u64>,
}

impl<D: Device> Encode<D> {
    /// What is compiled.
    ///
    /// # Errors
    /// If a network of that shape is too wide, or takes no keys of that layout.
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

    /// Compiles it.
    ///
    /// # Errors
    /// As [`program`](Self::program), or if it cannot be compiled.
    pub fn new(device: &D, layout: RowLayout, shape: &NetworkShape) -> Result<Self> {
        let module = device.compile(&Self::program(layout, shape)?)?;
        Ok(Self { device: device.clone(), module, layout, shape: shape.clone() })
    }

    /// Adds a launch that makes the codes of all visible tokens of some heads, but for the `known` first
    /// ones of each, and writes them where they belong. All slices are as long, and what they hold is
    /// kept.
    ///
    /// O(new · weights of a network) for each map.
    ///
    /// # Errors
    /// If a size does not fit another, or there is no memory.
    pub fn add_heads(
        &self,
        work: &mut Work<D>,
        now: &Now<D>,
        heads: &[&Pages<D>],
        networks: &[&DeviceNetwork<D>],
        known: &[u32],
        codes: &[&DeviceCodes<D>],
    ) -> Result<()> {
        for head in heads {
            head.keep_for(work, self.layout, now.capacity)?;
        }
        for codes in codes {
            expect("bits of codes", self.shape.outputs(), codes.bits())?;
            expect("room for codes", room(now.capacity), codes.capacity())?;
            work.keep(codes.packed());
        }
        let array = |addresses: Vec<u64>| Array::new(&self.device, &addresses);
        let encoding = Encoding {
            tables: &array(heads.iter().map(|head| head.table()).collect())?,
            networks: &self.networks(work, networks)?,
            known: &Array::new(&self.device, known)?,
            codes: &array(codes.iter().map(|codes| codes.address()).collect())?,
        };
        self.add_keys(work, now, &encoding)
    }

    /// The same of what will have been written by then: networks of the shape, codes of as many bits
    /// in the room of all tokens, and pages for the visible ones.
    ///
    /// # Errors
    /// If a size does not fit another.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub(crate) fn add_keys(
        &self,
        work: &mut Work<D>,
        now: &Now<D>,
        encoding: &Encoding<'_, D>,
    ) -> Result<()> {
        let Encoding { tables, networks, known, codes } = encoding;
        let maps = codes.len();
        expect("tables", maps, tables.len())?;
        expect("networks", maps, networks.len())?;
        expect("counts of known codes", maps, known.len())?;
        let blocks = now.capacity.div_ceil(tile(&self.shape)).min(MOST_BLOCKS) as u32;
        let grid = Grid { blocks: [blocks, along_y("maps", maps)?], threads: THREADS };
        let given = [
            now.numbers.given(),
            tables.given(),
            networks.given(),
            known.given(),
            codes.given(),
            now.capacity.into(),
            room(now.capacity).into(),
        ];
        // SAFETY: the arguments are those of the kernel. The pages have the visible rows, and there
        // is room for a code of each.
        unsafe { work.add(&self.module, "encode_keys", grid, given) };
        Ok(())
    }

    /// Adds a launch that makes the codes of queries `[count, head_dim]` by `networks` `[count]`, which
    /// are kept, into `codes` `[count, words]`.
    ///
    /// # Errors
    /// If a size does not fit another, or there is no memory.
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

    /// The same by networks of the shape, whose addresses will have been written by then.
    ///
    /// # Errors
    /// If a size does not fit another.
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
        let given = [queries.given(), networks.given(), codes.given()];
        // SAFETY: the arguments are those of the kernel, of as many queries.
        unsafe { work.add(&self.module, "encode_queries", grid, given) };
        Ok(())
    }

    /// Where networks are, which are kept.
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

/// Keys that are mapped together.
fn tile(shape: &NetworkShape) -> usize {
    (HELD / shape.widest()).clamp(1, LARGEST_TILE)
}
