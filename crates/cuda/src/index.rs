//! What the selectors of one KV head keep of its keys, on the device: kernels bring it up to date at
//! each step.

use std::sync::Arc;

use vattention_core::{CodeMap, Plan, Result, SelectorOp};

use crate::Device;
use crate::launch::{DeviceCodes, DeviceNetwork, PageBounds, RowLayout};
use crate::networks::Networks;

/// Of one KV head, what each selector keeps.
#[derive(Debug)]
pub(crate) struct Index<D: Device> {
    device: D,
    networks: Networks<D>,
    layout: RowLayout,
    /// In the order of the pipeline.
    selectors: Vec<Kept<D>>,
}

/// What one selector keeps.
#[derive(Debug)]
enum Kept<D: Device> {
    Nothing,
    /// Codes by each of its maps.
    Codes(Vec<Mapped<D>>),
    /// Bounds of pages.
    Pages {
        bounds: PageBounds<D>,
        /// Full pages.
        known: usize,
    },
}

/// The codes by one map.
#[derive(Debug)]
struct Mapped<D: Device> {
    key: Arc<vattention_core::Network>,
    query: Arc<vattention_core::Network>,
    key_on_device: Arc<DeviceNetwork<D>>,
    query_on_device: Arc<DeviceNetwork<D>>,
    codes: DeviceCodes<D>,
    /// Tokens.
    known: usize,
}

/// Where something is on the device, and of how many of the first tokens or pages it is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whereabouts {
    pub(crate) address: u64,
    pub(crate) known: u32,
}

/// What a routine is told of what one selector keeps.
#[derive(Debug)]
pub(crate) enum ToldIndex {
    Nothing,
    Codes(Vec<ToldMap>),
    Pages(Whereabouts),
}

/// What a routine is told of one map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ToldMap {
    pub(crate) codes: Whereabouts,
    pub(crate) key_network: u64,
    pub(crate) query_network: u64,
}

impl ToldIndex {
    /// Its maps; none if it keeps no codes.
    pub(crate) fn maps(&self) -> &[ToldMap] {
        if let Self::Codes(maps) = self { maps } else { &[] }
    }

    /// The bounds of its pages.
    pub(crate) fn bounds(&self) -> Option<Whereabouts> {
        if let Self::Pages(bounds) = *self { Some(bounds) } else { None }
    }
}

impl<D: Device> Index<D> {
    /// Nothing yet, of rows of a layout.
    pub(crate) fn new(device: D, networks: Networks<D>, layout: RowLayout) -> Self {
        Self { device, networks, layout, selectors: Vec::new() }
    }

    /// Nothing yet, of the same rows.
    pub(crate) fn emptied(&self) -> Self {
        Self::new(self.device.clone(), self.networks.clone(), self.layout)
    }

    /// Makes room for `capacity` tokens, and says where all of it is that a step needs which sees
    /// `visible` ones.
    ///
    /// # Errors
    /// If there is no memory, or the device fails; what is there stays right.
    pub(crate) fn prepare(
        &mut self,
        plan: &Plan<'_>,
        capacity: usize,
        visible: usize,
    ) -> Result<Vec<ToldIndex>> {
        self.selectors.resize_with(plan.ops.len(), || Kept::Nothing);
        let mut told = Vec::with_capacity(plan.ops.len());
        for (i, op) in plan.ops.iter().enumerate() {
            told.push(match op {
                SelectorOp::TopCodes { codes, .. } => {
                    self.prepare_codes(i, &codes.maps, capacity)?
                }
                SelectorOp::TopPages { page, .. } => {
                    self.prepare_bounds(i, page.get().min(capacity), capacity, visible)?
                }
                SelectorOp::Range(_) | SelectorOp::TopLogits { .. } => ToldIndex::Nothing,
            });
        }
        Ok(told)
    }

    /// Takes note that a step has been taken that saw `visible` tokens.
    pub(crate) fn advance(&mut self, told: &[ToldIndex], visible: usize) {
        for (kept, told) in self.selectors.iter_mut().zip(told) {
            match (kept, told) {
                (Kept::Codes(maps), ToldIndex::Codes(_)) => {
                    for map in maps {
                        map.known = map.known.max(visible);
                    }
                }
                (Kept::Pages { bounds, known }, ToldIndex::Pages(_)) => {
                    *known = visible / bounds.page();
                }
                _ => {}
            }
        }
    }

    /// What the tokens take that it knows.
    pub(crate) fn bytes(&self) -> usize {
        let of = |kept: &Kept<D>| match kept {
            Kept::Nothing => 0,
            Kept::Codes(maps) => maps.iter().map(|map| map.codes.bytes_of(map.known)).sum(),
            Kept::Pages { bounds, known } => bounds.bytes_of(*known),
        };
        self.selectors.iter().map(of).sum()
    }

    fn prepare_codes(
        &mut self,
        selector: usize,
        maps: &[&CodeMap],
        capacity: usize,
    ) -> Result<ToldIndex> {
        if !matches!(self.selectors[selector], Kept::Codes(_)) {
            self.selectors[selector] = Kept::Codes(Vec::new());
        }
        let Kept::Codes(mapped) = &mut self.selectors[selector] else {
            return Ok(ToldIndex::Nothing);
        };
        for (i, map) in maps.iter().enumerate() {
            if !mapped.get(i).is_some_and(|mapped| mapped.fits(map, capacity)) {
                mapped.truncate(i);
                mapped.push(Mapped {
                    key: map.key().clone(),
                    query: map.query().clone(),
                    key_on_device: self.networks.get(&self.device, map.key())?,
                    query_on_device: self.networks.get(&self.device, map.query())?,
                    codes: DeviceCodes::new(&self.device, map.bits(), capacity)?,
                    known: 0,
                });
            }
        }
        mapped.truncate(maps.len());
        Ok(ToldIndex::Codes(mapped.iter().map(Mapped::told).collect()))
    }

    fn prepare_bounds(
        &mut self,
        selector: usize,
        page: usize,
        capacity: usize,
        visible: usize,
    ) -> Result<ToldIndex> {
        let kept = &mut self.selectors[selector];
        let of = (self.layout, page, capacity);
        if !matches!(kept, Kept::Pages { bounds, .. } if bounds.of() == of) {
            let bounds = PageBounds::new(&self.device, self.layout, page, capacity)?;
            *kept = Kept::Pages { bounds, known: 0 };
        }
        let Kept::Pages { bounds, known } = kept else { return Ok(ToldIndex::Nothing) };
        // The page in which the visible tokens end is found anew, of these alone.
        *known = (*known).min(visible / page);
        Ok(ToldIndex::Pages(Whereabouts { address: bounds.address(), known: *known as u32 }))
    }
}

impl<D: Device> Mapped<D> {
    /// Whether they are the codes of a map, in so much room.
    fn fits(&self, map: &CodeMap, capacity: usize) -> bool {
        Arc::ptr_eq(&self.key, map.key())
            && Arc::ptr_eq(&self.query, map.query())
            && self.codes.fits(capacity)
    }

    fn told(&self) -> ToldMap {
        ToldMap {
            codes: Whereabouts { address: self.codes.address(), known: self.known as u32 },
            key_network: self.key_on_device.address(),
            query_network: self.query_on_device.address(),
        }
    }
}
