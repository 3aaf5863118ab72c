//! The codes of keys, on the device as the selectors have them.

use vattention_core::{HashCodes, Plan, Recipe, Result};

use crate::Device;
use crate::launch::Codes;

/// Of one KV head, the codes by each map of each selector.
#[derive(Debug)]
pub(crate) struct Mirror<D: Device> {
    /// In the order of the pipeline; selectors without codes have no maps.
    selectors: Vec<Vec<Mirrored<D>>>,
}

/// The codes by one map.
#[derive(Debug)]
struct Mirrored<D: Device> {
    codes: Codes<D>,
    capacity: usize,
    /// Tokens whose codes are there.
    tokens: usize,
}

impl<D: Device> Mirror<D> {
    /// Nothing yet.
    pub(crate) fn new() -> Self {
        Self { selectors: Vec::new() }
    }

    /// Brings it up to date, with room for `capacity` tokens, and says where the codes of each
    /// selector are: nowhere, if it picks by other means at this step.
    ///
    /// # Errors
    /// If there is no memory, or the device fails; what is there stays right.
    pub(crate) fn update(
        &mut self,
        device: &D,
        plan: &Plan<'_>,
        capacity: usize,
    ) -> Result<Vec<Vec<u64>>> {
        self.selectors.resize_with(plan.recipes.len(), Vec::new);
        let of_selector = |(recipe, maps): (&Recipe<'_>, &mut Vec<_>)| match recipe {
            Recipe::TopCodes { codes, .. } => update(device, maps, codes, capacity),
            Recipe::Range(_) | Recipe::TopLogits { .. } => Ok(Vec::new()),
        };
        plan.recipes.iter().zip(&mut self.selectors).map(of_selector).collect()
    }
}

/// Brings the codes of one selector up to date.
fn update<D: Device>(
    device: &D,
    maps: &mut Vec<Mirrored<D>>,
    codes: &HashCodes<'_>,
    capacity: usize,
) -> Result<Vec<u64>> {
    for (map, &words) in codes.keys.iter().enumerate() {
        // The kernel takes it for granted that codes are of so many bits, in so much room.
        let fits = |mirrored: &Mirrored<D>| {
            (mirrored.codes.bits(), mirrored.capacity) == (codes.bits, capacity)
        };
        if !maps.get(map).is_some_and(fits) {
            maps.truncate(map);
            maps.push(Mirrored {
                codes: Codes::new(device, codes.bits, capacity)?,
                capacity,
                tokens: 0,
            });
        }
        let Mirrored { codes: mirror, tokens, .. } = &mut maps[map];
        let all = words.first().map_or(0, Vec::len);
        if *tokens < all {
            for (word, codes) in words.iter().enumerate() {
                mirror.write(word, *tokens, &codes[*tokens..])?;
            }
            *tokens = all;
        }
    }
    Ok(maps.iter().map(|map| map.codes.address()).collect())
}
