//! Indexes of one KV head's selectors on the device. Kernels add the new tokens at each step.

use std::sync::Arc;

use vattention_core::Result;
use vattention_selectors::CodeMap;

use crate::Device;
use crate::launch::{DeviceCodes, DeviceNetwork, PageBounds, RowLayout};
use crate::plan::{Op, Plan};

/// Indexes of all selectors of one KV head.
#[derive(Debug)]
pub(crate) struct HeadIndex<D: Device> {
    device: D,
    layout: RowLayout,
    /// Definition of each selector's index, in the order of the pipeline, shared by forks.
    definitions: Arc<Vec<IndexDefinition<D>>>,
    /// Tokens for which there is memory.
    capacity: usize,
    /// One index per selector; empty until memory is allocated.
    indexes: Vec<SelectorIndex<D>>,
}

/// Definition of the index of one selector.
#[derive(Debug)]
enum IndexDefinition<D: Device> {
    Nothing,
    /// Codes, one set for each map.
    Codes(Vec<MapNetworks<D>>),
    /// Bounds of pages with this number of tokens.
    Pages(usize),
}

/// The networks of a map on the device.
#[derive(Debug)]
struct MapNetworks<D: Device> {
    key: Arc<DeviceNetwork<D>>,
    query: Arc<DeviceNetwork<D>>,
}

/// The index of one selector.
#[derive(Debug)]
enum SelectorIndex<D: Device> {
    Nothing,
    /// Codes of the first `tokens` tokens, one set for each map.
    Codes {
        codes: Vec<DeviceCodes<D>>,
        tokens: usize,
    },
    /// Bounds of the first `pages` pages, all of which are full.
    Pages {
        bounds: PageBounds<D>,
        pages: usize,
    },
}

/// Address of a part of an index, and the number of tokens or pages indexed so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexSpan {
    pub(crate) address: u64,
    pub(crate) indexed: u32,
}

/// Inputs of a routine from one selector's index.
#[derive(Debug)]
pub(crate) enum IndexInputs {
    Nothing,
    Codes(Vec<MapInputs>),
    Pages(IndexSpan),
}

/// Inputs of a routine from the codes of one map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapInputs {
    pub(crate) codes: IndexSpan,
    pub(crate) key_network: u64,
    pub(crate) query_network: u64,
}

impl IndexInputs {
    /// Inputs of each map; empty if the selector has no codes.
    pub(crate) fn maps(&self) -> &[MapInputs] {
        if let Self::Codes(maps) = self { maps } else { &[] }
    }

    /// Bounds of pages, if the selector has them.
    pub(crate) fn bounds(&self) -> Option<IndexSpan> {
        if let Self::Pages(bounds) = *self { Some(bounds) } else { None }
    }
}

impl<D: Device> HeadIndex<D> {
    /// Returns empty indexes for rows of a layout, and copies the networks of a KV head to the
    /// device.
    pub(crate) fn new(device: D, layout: RowLayout, plan: &Plan, kv_head: usize) -> Result<Self> {
        let definition = |op: &Op| -> Result<_> {
            Ok(match op {
                Op::TopCodes { maps, .. } => {
                    let networks = maps[kv_head].iter().map(|map| MapNetworks::new(&device, map));
                    IndexDefinition::Codes(networks.collect::<Result<_>>()?)
                }
                Op::TopPages { page, .. } => IndexDefinition::Pages(page.get()),
                Op::Sink(_) | Op::Window(_) | Op::TopLogits { .. } => IndexDefinition::Nothing,
            })
        };
        let definitions = Arc::new(plan.ops.iter().map(definition).collect::<Result<_>>()?);
        Ok(Self { device, layout, definitions, capacity: 0, indexes: Vec::new() })
    }

    /// Returns empty indexes with the same definitions.
    pub(crate) fn new_empty(&self) -> Self {
        let (device, definitions) = (self.device.clone(), self.definitions.clone());
        Self { device, definitions, capacity: 0, indexes: Vec::new(), ..*self }
    }

    /// Allocates memory for `capacity` tokens, and returns the inputs of each selector for a step
    /// that sees `visible` of them. A change of the capacity empties the indexes.
    ///
    /// # Errors
    /// If there is no memory, or the device fails; the indexes stay valid.
    pub(crate) fn prepare(&mut self, capacity: usize, visible: usize) -> Result<Vec<IndexInputs>> {
        if self.capacity != capacity {
            let empty =
                self.definitions.iter().map(|definition| self.allocate(definition, capacity));
            self.indexes = empty.collect::<Result<_>>()?;
            self.capacity = capacity;
        }
        let indexes = self.indexes.iter_mut().zip(&*self.definitions);
        Ok(indexes.map(|(index, definition)| index.inputs(definition, visible)).collect())
    }

    fn allocate(
        &self,
        definition: &IndexDefinition<D>,
        capacity: usize,
    ) -> Result<SelectorIndex<D>> {
        let device = &self.device;
        Ok(match definition {
            IndexDefinition::Nothing => SelectorIndex::Nothing,
            IndexDefinition::Codes(networks) => {
                let bits = networks.iter().map(|networks| networks.key.shape().outputs());
                let codes = bits.map(|bits| DeviceCodes::new(device, bits, capacity));
                SelectorIndex::Codes { codes: codes.collect::<Result<_>>()?, tokens: 0 }
            }
            &IndexDefinition::Pages(page) => {
                let bounds = PageBounds::new(device, self.layout, page.min(capacity), capacity)?;
                SelectorIndex::Pages { bounds, pages: 0 }
            }
        })
    }

    /// Records that a step has indexed the first `visible` tokens.
    pub(crate) fn advance(&mut self, visible: usize) {
        for index in &mut self.indexes {
            match index {
                SelectorIndex::Nothing => {}
                SelectorIndex::Codes { tokens, .. } => *tokens = visible.max(*tokens),
                SelectorIndex::Pages { bounds, pages } => *pages = visible / bounds.page(),
            }
        }
    }

    /// Bytes of the index entries of all indexed tokens.
    pub(crate) fn bytes(&self) -> usize {
        let bytes = |index: &SelectorIndex<D>| match index {
            SelectorIndex::Nothing => 0,
            SelectorIndex::Codes { codes, tokens } => {
                codes.iter().map(|codes| codes.bytes_of(*tokens)).sum()
            }
            SelectorIndex::Pages { bounds, pages } => bounds.bytes_of(*pages),
        };
        self.indexes.iter().map(bytes).sum()
    }
}

impl<D: Device> MapNetworks<D> {
    fn new(device: &D, map: &CodeMap) -> Result<Self> {
        let key = Arc::new(DeviceNetwork::new(device, map.key())?);
        let query = if Arc::ptr_eq(map.key(), map.query()) {
            key.clone()
        } else {
            Arc::new(DeviceNetwork::new(device, map.query())?)
        };
        Ok(Self { key, query })
    }
}

impl<D: Device> SelectorIndex<D> {
    fn inputs(&mut self, definition: &IndexDefinition<D>, visible: usize) -> IndexInputs {
        match (self, definition) {
            (Self::Codes { codes, tokens }, IndexDefinition::Codes(networks)) => {
                let map = |(codes, networks): (&DeviceCodes<D>, &MapNetworks<D>)| MapInputs {
                    codes: IndexSpan { address: codes.address(), indexed: *tokens as u32 },
                    key_network: networks.key.address(),
                    query_network: networks.query.address(),
                };
                IndexInputs::Codes(codes.iter().zip(networks).map(map).collect())
            }
            (Self::Pages { bounds, pages }, _) => {
                // The last page may be visible in part. Its bounds are computed anew from the
                // visible keys.
                *pages = (*pages).min(visible / bounds.page());
                IndexInputs::Pages(IndexSpan { address: bounds.address(), indexed: *pages as u32 })
            }
            _ => IndexInputs::Nothing,
        }
    }
}
