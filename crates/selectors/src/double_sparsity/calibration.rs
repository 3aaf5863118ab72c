//! File of channels by importance. Reading parses one list and skips the others.

use std::path::Path;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use vattention_core::Site;

use super::{Importance, IndexScope};

/// Checks that a file has lists of some layer.
pub(super) fn check_file(path: &Path) -> Result<(), String> {
    let named = |reason: String| format!("{}: {reason}", path.display());
    let bytes = std::fs::read(path).map_err(|error| named(error.to_string()))?;
    let lists: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&bytes).map_err(|error| named(error.to_string()))?;
    if lists.keys().any(|key| key.starts_with("model.layers.")) {
        return Ok(());
    }
    Err(named(
        "there are no lists of channels: expected keys such as `model.layers.0.self_attn.qk_proj`"
            .into(),
    ))
}

/// Reads the channels at `site` by falling importance, `[head_dim]` each: one list, or one per
/// member. Errors name the file and the key.
pub(super) fn read(
    path: &Path,
    site: &Site,
    by: Importance,
    labels: IndexScope,
) -> Result<Vec<Vec<usize>>, String> {
    let named = |reason: String| format!("{}: {reason}", path.display());
    let bytes = std::fs::read(path).map_err(|error| named(error.to_string()))?;
    let group = site.shape.group();
    let (suffix, heads, own_heads) = if labels == IndexScope::Group && group > 1 {
        ("proj_group", site.shape.kv_heads, site.kv_head..site.kv_head + 1)
    } else {
        ("proj", site.shape.query_heads, site.kv_head * group..(site.kv_head + 1) * group)
    };
    let list = match by {
        Importance::Qk => "qk",
        Importance::Q => "q",
        Importance::K => "k",
    };
    let key = format!("model.layers.{}.self_attn.{list}_{suffix}", site.layer);
    let mut lists = find(&bytes, &key).map_err(named)?;
    check(&lists, heads, site.shape.head_dim)
        .map_err(|reason| named(format!("`{key}` has {reason}")))?;
    Ok(lists.drain(own_heads).collect())
}

/// Returns the lists under a key.
fn find(bytes: &[u8], key: &str) -> Result<Vec<Vec<usize>>, String> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let found = ChannelEntry(key).deserialize(&mut json).map_err(|error| error.to_string())?;
    json.end().map_err(|error| error.to_string())?;
    found.ok_or_else(|| format!("there is no `{key}`"))
}

/// Checks that there is one list per head and that each is a permutation of the channels. The error
/// continues a sentence that begins with "`key` has".
fn check(lists: &[Vec<usize>], heads: usize, dim: usize) -> Result<(), String> {
    if lists.len() != heads {
        return Err(format!("{} heads: expected {heads}", lists.len()));
    }
    for (head, list) in lists.iter().enumerate() {
        let mut sorted = list.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..dim) {
            return Err(format!(
                "{} channels for head {head}: expected each of 0 to {} once",
                list.len(),
                dim - 1
            ));
        }
    }
    Ok(())
}

/// Deserializer of the entry of an object under one key; skips all other entries.
struct ChannelEntry<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for ChannelEntry<'_> {
    type Value = Option<Vec<Vec<usize>>>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ChannelEntry<'_> {
    type Value = Option<Vec<Vec<usize>>>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object with lists of channels for each layer")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            if key == self.0 {
                found = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}
