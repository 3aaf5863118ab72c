//! The indexes of one KV head's selectors on the device. Kernels add the newest tokens at each step.

use std::sync::Arc;

use vattention_core::{CodeMap, Plan, Result, SelectorOp};

use crate::Device;
use crate::launch::{DeviceCodes, DeviceNetwork, PageBounds, RowLayout};
use crate::networks::Networks;

/// The indexes of one KV head.
#[derive(Debug)]
pub(crate) struct Index<D: Device> {
    device: D,
    networks: Networks<D>,
    layout: RowLayout,
    /// In the order of the pipeline.
    selectors: Vec<SelectorIndex<D>>,
}

/// The index of one selector.
#[derive(Debug)]
enum SelectorIndex<D: Device> {
    Nothing,
    /// Codes by each of its maps.
    Codes(Vec<MapCodes<D>>),
    /// Bounds of pages.
    Pages {
        bounds: PageBounds<D>,
        /// Full pages.
        known: usize,
    },
}

/// The codes by one map.
#[derive(Debug)]
struct MapCodes<D: Device> {
    key: Arc<vattention_core::Network>,
    query: Arc<vattention_core::Network>,
    key_on_device: Arc<DeviceNetwork<D>>,
    query_on_device: Arc<DeviceNetwork<D>>,
    codes: DeviceCodes<D>,
    /// Tokens.
    known: usize,
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
    /// Empty indexes of rows of a layout.
    pub(crate) fn new(device: D, networks: Networks<D>, layout: RowLayout) -> Self {
        Self { device, networks, layout, selectors: Vec::new() }
    }

    /// Empty indexes of the same rows.
    pub(crate) fn emptied(&self) -> Self {
        Self::new(self.device.clone(), self.networks.clone(), self.layout)
    }

    /// Makes room for `capacity` tokens, and returns what a step that sees `visible` of them needs,
    /// selector by selector.
    ///
    /// # Errors
    /// If there is no memory, or the device fails; indexes stay valid.
    pub(crate) fn prepare(
        &mut self,
        plan: &Plan<'_>,
        capacity: usize,
        visible: usize,
    ) -> Result<Vec<IndexInputs>> {
        self.selectors.resize_with(plan.ops.len(), || SelectorIndex::Nothing);
        let mut inputs = Vec::with_capacity(plan.ops.len());
        for (i, op) in plan.ops.iter().enumerate() {
            inputs.push(match op {
                SelectorOp::TopCodes { codes, .. } => {
                    self.prepare_codes(i, &codes.maps, capacity)?
                }
                SelectorOp::TopPages { page, .. } => {
                    self.prepare_bounds(i, page.get().min(capacity), capacity, visible)?
                }
                SelectorOp::Range(_) | SelectorOp::TopLogits { .. } => IndexInputs::Nothing,
            });
        }
        Ok(inputs)
    }

    /// Notes that a step has indexed the first `visible` tokens.
    pub(crate) fn advance(&mut self, inputs: &[IndexInputs], visible: usize) {
        for (index, inputs) in self.selectors.iter_mut().zip(inputs) {
            match (index, inputs) {
                (SelectorIndex::Codes(maps), IndexInputs::Codes(_)) => {
                    for map in maps {
                        map.known = map.known.max(visible);
                    }
                }
                (SelectorIndex::Pages { bounds, known }, IndexInputs::Pages(_)) => {
                    *known = visible / bounds.page();
                }
                _ => {}
            }
        }
    }

    /// Bytes of the indexed tokens.
    pub(crate) fn bytes(&self) -> usize {
        let of = |index: &SelectorIndex<D>| match index {
            SelectorIndex::Nothing => 0,
            SelectorIndex::Codes(maps) => {
                maps.iter().map(|map| map.codes.bytes_of(map.known)).sum()
            }
            SelectorIndex::Pages { bounds, known } => bounds.bytes_of(*known),
        };
        self.selectors.iter().map(of).sum()
    }

    fn prepare_codes(
        &mut self,
        selector: usize,
        maps: &[&CodeMap],
        capacity: usize,
    ) -> Result<IndexInputs> {
        if !matches!(self.selectors[selector], SelectorIndex::Codes(_)) {
            self.selectors[selector] = SelectorIndex::Codes(Vec::new());
        }
        let SelectorIndex::Codes(codes_of_maps) = &mut self.selectors[selector] else {
            return Ok(IndexInputs::Nothing);
        };
        for (i, map) in maps.iter().enumerate() {
            if !codes_of_maps.get(i).is_some_and(|codes_of_maps| codes_of_maps.fits(map, capacity))
            {
                codes_of_maps.truncate(i);
                codes_of_maps.push(MapCodes {
                    key: map.key().clone(),
                    query: map.query().clone(),
                    key_on_device: self.networks.get(&self.device, map.key())?,
                    query_on_device: self.networks.get(&self.device, map.query())?,
                    codes: DeviceCodes::new(&self.device, map.bits(), capacity)?,
                    known: 0,
                });
            }
        }
        codes_of_maps.truncate(maps.len());
        Ok(IndexInputs::Codes(codes_of_maps.iter().map(MapCodes::inputs).collect()))
    }

    fn prepare_bounds(
        &mut self,
        selector: usize,
        page: usize,
        capacity: usize,
        visible: usize,
    ) -> Result<IndexInputs> {
        let index = &mut self.selectors[selector];
        let of = (self.layout, page, capacity);
        if !matches!(index, SelectorIndex::Pages { bounds, .. } if bounds.of() == of) {
            let bounds = PageBounds::new(&self.device, self.layout, page, capacity)?;
            *index = SelectorIndex::Pages { bounds, known: 0 };
        }
        let SelectorIndex::Pages { bounds, known } = index else { return Ok(IndexInputs::Nothing) };
        // Bounds of the page in which the visible tokens end are computed anew, of the visible ones alone.
        *known = (*known).min(visible / page);
        Ok(IndexInputs::Pages(IndexSpan { address: bounds.address(), known: *known as u32 }))
    }
}

impl<D: Device> MapCodes<D> {
    /// Whether these are the codes of `map`, with room for `capacity` tokens.
    fn fits(&self, map: &CodeMap, capacity: usize) -> bool {
        Arc::ptr_eq(&self.key, map.key())
            && Arc::ptr_eq(&self.query, map.query())
            && self.codes.fits(capacity)
    }

    fn inputs(&self) -> MapInputs {
        MapInputs {
            codes: IndexSpan { address: self.codes.address(), known: self.known as u32 },
            key_network: self.key_on_device.address(),
            query_network: self.query_on_device.address(),
        }
    }
}
