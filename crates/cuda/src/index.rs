//! The indexes of one KV head's selectors on the device. Kernels add the newest tokens at each step.

use std::sync::Arc;

use vattention_core::Result;
use vattention_selectors::CodeMap;

use crate::Device;
use crate::launch::{DeviceCodes, DeviceNetwork, PageBounds, RowLayout};
use crate::plan::{Op, Plan};

/// The indexes of one KV head.
#[derive(Debug)]
pub(crate) struct Index<D: Device> {
    device: D,
    layout: RowLayout,
    /// The definition of each selector's index, in the order of the pipeline. Forks share them.
    definitions: Arc<Vec<Definition<D>>>,
    /// Tokens that there is room for.
    capacity: usize,
    /// The indexes, once there is room for tokens.
    indexes: Vec<SelectorIndex<D>>,
}

/// The index that a selector has.
#[derive(Debug)]
enum Definition<D: Device> {
    Nothing,
    /// Codes, by each of its maps.
    Codes(Vec<MapNetworks<D>>),
    /// Bounds of pages of this number of tokens.
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
    /// The codes by each of its maps, of the first tokens.
    Codes {
        codes: Vec<DeviceCodes<D>>,
        tokens: usize,
    },
    /// The bounds of the first pages, all of them full.
    Pages {
        bounds: PageBounds<D>,
        pages: usize,
    },
}

/// Where a part of an index lies on the device, and how many of the first tokens or pages it holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexSpan {
    pub(crate) address: u64,
    pub(crate) known: u32,
}

/// What a routine needs to know of one selector's index.
#[derive(Debug)]
pub(crate) enum IndexInputs {
    Nothing,
    Codes(Vec<MapInputs>),
    Pages(IndexSpan),
}

/// What a routine needs to know of the codes by one map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapInputs {
    pub(crate) codes: IndexSpan,
    pub(crate) key_network: u64,
    pub(crate) query_network: u64,
}

impl IndexInputs {
    /// Its maps; none if it keeps no codes.
    pub(crate) fn maps(&self) -> &[MapInputs] {
        if let Self::Codes(maps) = self { maps } else { &[] }
    }

    /// The bounds of its pages.
    pub(crate) fn bounds(&self) -> Option<IndexSpan> {
        if let Self::Pages(bounds) = *self { Some(bounds) } else { None }
    }
}

impl<D: Device> Index<D> {
    /// Empty indexes of rows of a layout, and the networks of a KV head copied to the device.
    pub(crate) fn new(device: D, layout: RowLayout, plan: &Plan, kv_head: usize) -> Result<Self> {
        let definition = |op: &Op| -> Result<_> {
            Ok(match op {
                Op::TopCodes { maps, .. } => {
                    let networks = maps[kv_head].iter().map(|map| MapNetworks::new(&device, map));
                    Definition::Codes(networks.collect::<Result<_>>()?)
                }
                Op::TopPages { page, .. } => Definition::Pages(page.get()),
                Op::Sink(_) | Op::Window(_) | Op::TopLogits { .. } => Definition::Nothing,
            })
        };
        let definitions = Arc::new(plan.ops.iter().map(definition).collect::<Result<_>>()?);
        Ok(Self { device, layout, definitions, capacity: 0, indexes: Vec::new() })
    }

    /// Empty indexes by the same definitions.
    pub(crate) fn emptied(&self) -> Self {
        let (device, definitions) = (self.device.clone(), self.definitions.clone());
        Self { device, definitions, capacity: 0, indexes: Vec::new(), ..*self }
    }

    /// Makes room for `capacity` tokens, and returns the inputs of a step that sees `visible` of them,
    /// selector by selector. Other room than before begins empty.
    ///
    /// # Errors
    /// If there is no memory, or the device fails; indexes stay valid.
    pub(crate) fn prepare(&mut self, capacity: usize, visible: usize) -> Result<Vec<IndexInputs>> {
        if self.capacity != capacity {
            let empty = self.definitions.iter().map(|definition| self.empty(definition, capacity));
            self.indexes = empty.collect::<Result<_>>()?;
            self.capacity = capacity;
        }
        let indexes = self.indexes.iter_mut().zip(&*self.definitions);
        Ok(indexes.map(|(index, definition)| index.inputs(definition, visible)).collect())
    }

    fn empty(&self, definition: &Definition<D>, capacity: usize) -> Result<SelectorIndex<D>> {
        let device = &self.device;
        Ok(match definition {
            Definition::Nothing => SelectorIndex::Nothing,
            Definition::Codes(networks) => {
                let bits = networks.iter().map(|networks| networks.key.shape().outputs());
                let codes = bits.map(|bits| DeviceCodes::new(device, bits, capacity));
                SelectorIndex::Codes { codes: codes.collect::<Result<_>>()?, tokens: 0 }
            }
            &Definition::Pages(page) => {
                let bounds = PageBounds::new(device, self.layout, page.min(capacity), capacity)?;
                SelectorIndex::Pages { bounds, pages: 0 }
            }
        })
    }

    /// Notes that a step has indexed the first `visible` tokens.
    pub(crate) fn advance(&mut self, visible: usize) {
        for index in &mut self.indexes {
            match index {
                SelectorIndex::Nothing => {}
                SelectorIndex::Codes { tokens, .. } => *tokens = visible.max(*tokens),
                SelectorIndex::Pages { bounds, pages } => *pages = visible / bounds.page(),
            }
        }
    }

    /// Bytes of the indexed tokens.
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
    fn inputs(&mut self, definition: &Definition<D>, visible: usize) -> IndexInputs {
        match (self, definition) {
            (Self::Codes { codes, tokens }, Definition::Codes(networks)) => {
                let map = |(codes, networks): (&DeviceCodes<D>, &MapNetworks<D>)| MapInputs {
                    codes: IndexSpan { address: codes.address(), known: *tokens as u32 },
                    key_network: networks.key.address(),
                    query_network: networks.query.address(),
                };
                IndexInputs::Codes(codes.iter().zip(networks).map(map).collect())
            }
            (Self::Pages { bounds, pages }, _) => {
                // Bounds of the page in which the visible tokens end are computed anew, of the visible
                // ones alone.
                *pages = (*pages).min(visible / bounds.page());
                IndexInputs::Pages(IndexSpan { address: bounds.address(), known: *pages as u32 })
            }
            _ => IndexInputs::Nothing,
        }
    }
}
