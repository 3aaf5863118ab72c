//! Keys of a configuration, under their names in `config.json`, from either kind of checkpoint.

use vattention_core::Shape;

use crate::family::Family;
use crate::rope::{Rotary, Sharpening};

/// Largest dimension; the product of two fits into `usize`.
const MAX_SIZE: u64 = i32::MAX as u64;

/// Source of the keys: `config.json`, or GGUF metadata, whose keys have other names. Errors name
/// the key as the file does. A key whose value is null is absent.
pub(crate) trait KeySource: RopeKeys {
    /// Returns true if the keys are GGUF metadata.
    fn is_gguf(&self) -> bool;

    /// Name of a key in the file.
    fn name(&self, key: &str) -> String;

    /// Returns whether the file has a key.
    fn has(&self, key: &str) -> bool;

    /// Reads a whole number.
    fn whole(&self, key: &str) -> Result<Option<u64>, String>;

    /// Reads a number.
    fn number(&self, key: &str) -> Result<Option<f64>, String>;

    /// Reads a truth value.
    fn flag(&self, key: &str) -> Result<Option<bool>, String>;

    /// Reads a list of whole numbers.
    fn wholes(&self, key: &str) -> Result<Option<Vec<u64>>, String>;

    /// Returns for each layer whether it slides, if the file has such a list.
    fn sliding_layers(&self, layers: usize) -> Result<Option<Vec<bool>>, String>;

    /// Returns for each layer whether it attends within chunks, if the file has such a list.
    fn chunked_layers(&self, layers: usize) -> Result<Option<Vec<bool>>, String>;

    /// Returns true if models of the family may lack the number of KV heads, which is then that of
    /// query heads.
    fn may_lack_kv_heads(&self, family: &Family) -> bool;

    /// Refuses options that change the computation and are not supported.
    fn refuse_unsupported(&self, family: &Family, shape: &Shape) -> Result<(), String>;
}

/// Source of the keys of rotary embeddings.
pub(crate) trait RopeKeys {
    /// Reads the rotary embedding of full layers, of a model with this context.
    fn rope(&self, family: &Family, head_dim: usize, context: usize) -> Result<Rotary, String>;

    /// Reads the rotary embedding of sliding layers that differs from that of full layers. It has
    /// no scaling. `theta` is the default of its base.
    fn sliding_rope(&self, full: &Rotary, theta: f32) -> Result<Rotary, String>;

    /// Reads the growth of queries with their position.
    fn sharpening(&self) -> Result<Option<Sharpening>, String>;
}

impl dyn KeySource + '_ {
    /// Reads a required dimension.
    pub(crate) fn size(&self, key: &str) -> Result<usize, String> {
        let name = self.name(key);
        match self.whole(key)? {
            None => Err(format!("no `{name}`")),
            Some(0) => Err(format!("`{name}` is 0; expected at least 1")),
            Some(size) if size > MAX_SIZE => {
                Err(format!("`{name}` is {size}; expected at most {MAX_SIZE}"))
            }
            Some(size) => Ok(size as usize),
        }
    }

    /// Reads a positive number.
    pub(crate) fn positive(&self, key: &str) -> Result<Option<f64>, String> {
        match self.number(key)? {
            Some(number) if !(number.is_finite() && number > 0.0) => {
                Err(format!("`{}` is {number}; expected a positive number", self.name(key)))
            }
            number => Ok(number),
        }
    }

    /// Reads a positive number, or returns a default.
    pub(crate) fn positive_or(&self, key: &str, default: f64) -> Result<f64, String> {
        Ok(self.positive(key)?.unwrap_or(default))
    }

    /// Reads a positive number as f32, or returns 1.
    pub(crate) fn factor(&self, key: &str) -> Result<f32, String> {
        Ok(self.positive_or(key, 1.0)? as f32)
    }

    /// Reads a soft cap, which is absent in models without one.
    pub(crate) fn cap(&self, key: &str) -> Result<Option<f32>, String> {
        Ok(self.positive(key)?.map(|cap| cap as f32))
    }

    /// Reads a truth value, which is false by default.
    pub(crate) fn is_set(&self, key: &str) -> Result<bool, String> {
        Ok(self.flag(key)?.unwrap_or(false))
    }
}
