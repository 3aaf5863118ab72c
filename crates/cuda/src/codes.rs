//! The codes of keys, on the device as the selectors have them.

use vattention_core::{HashCodes, Plan, Recipe, Result};

use crate::Device;
use crate::launch::Codes;

/// Of one KV head, the codes of each selector that has some, and of each of its maps.
#[derive(Debug)]
pub(crate) struct Mirror<D: Device> {
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

    /// Brings it up to date, with room for `capacity` tokens, and says where the codes are.
    ///
    /// # Errors
    /// If there is no memory, or the device fails; what is there stays right.
    pub(crate) fn update(
        &mut self,
        device: &D,
        plan: &Plan<'_>,
        capacity: usize,
    ) -> Result<Vec<Vec<u64>>> {
        let codes = plan.recipes.iter().filter_map(|recipe| match recipe {
            Recipe::TopCodes { codes, .. } => Some(codes),
            Recipe::Range(_) | Recipe::TopLogits { .. } => None,
        });
        let mut addresses = Vec::new();
        for (i, codes) in codes.enumerate() {
            if i == self.selectors.len() {
                self.selectors.push(Vec::new());
            }
            addresses.push(update(device, &mut self.selectors[i], codes, capacity)?);
        }
        Ok(addresses)
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
        if maps.get(map).is_none_or(|mirrored| mirrored.capacity < capacity) {
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
