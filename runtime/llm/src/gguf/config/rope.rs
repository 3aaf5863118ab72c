//! Keys of rotary embeddings in GGUF metadata.

use candle_core::quantized::gguf_file::Value;

use super::MetadataKeys;
use crate::config::keys::RopeKeys;
use crate::family::Family;
use crate::gguf::value::typed;
use crate::gguf::{LONG_FACTORS, SHORT_FACTORS};
use crate::rope::{Rotary, Scaling, Sharpening, longrope_length, yarn_length};

/// Divisors of the rotary frequencies of longrope, `[dims / 2]`, for contexts within the original
/// one and beyond it.
pub(in crate::gguf) struct LongRopeFactors {
    pub(in crate::gguf) short: Vec<f32>,
    pub(in crate::gguf) long: Vec<f32>,
}

impl MetadataKeys<'_> {
    /// Number of elements of a head that are rotated.
    fn rotated(&self, family: &Family, head_dim: usize) -> Result<usize, String> {
        const KEY: &str = "rope.dimension_count";
        let default = (head_dim as f64 * family.rotated.unwrap_or(1.0)) as usize;
        let dims = self.whole_at(KEY)?.map_or(default, |dims| dims as usize);
        let name = self.full_name(KEY);
        if family.rotated.is_none() && dims != head_dim {
            return Err(format!("`{name}` is {dims}; expected the head's {head_dim}"));
        }
        if dims == 0 || dims > head_dim || !dims.is_multiple_of(2) {
            return Err(format!(
                "`{name}` is {dims}; expected an even number of the head's {head_dim}"
            ));
        }
        Ok(dims)
    }

    fn scaling(&self, dims: usize, context: usize) -> Result<Scaling, String> {
        if let Some(factors) = &self.factors {
            return self.longrope(factors, dims, context);
        }
        let kind = match self.get("rope.scaling.type") {
            None => return self.old_scaling(),
            Some(Value::String(kind)) => kind.as_str(),
            Some(value) => return Err(self.unknown_scaling(value)),
        };
        match kind {
            "none" => Ok(Scaling::None),
            "linear" => Ok(Scaling::Linear { factor: self.required_at("rope.scaling.factor")? }),
            "yarn" => self.yarn(),
            _ => Err(self.unknown_scaling(&Value::String(kind.into()))),
        }
    }

    /// Reads the scaling from the key of old files, which have no type.
    fn old_scaling(&self) -> Result<Scaling, String> {
        let factor = self.positive_at("rope.scale_linear")?;
        Ok(factor.map_or(Scaling::None, |factor| Scaling::Linear { factor }))
    }

    fn unknown_scaling(&self, value: &Value) -> String {
        let name = self.full_name("rope.scaling.type");
        format!("`{name}` is {}; expected one of none, linear, yarn", typed(value))
    }

    fn yarn(&self) -> Result<Scaling, String> {
        let factor = self.required_at("rope.scaling.factor")?;
        let log = self.positive_at("rope.scaling.yarn_log_multiplier")?;
        Ok(Scaling::Yarn {
            factor,
            fast: self.positive_at("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
            slow: self.positive_at("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            original: self.original()?,
            length: yarn_length(factor, log.map(|log| (1.0, log))),
            truncates: true,
        })
    }

    fn longrope(
        &self,
        factors: &LongRopeFactors,
        dims: usize,
        context: usize,
    ) -> Result<Scaling, String> {
        let original = self.original()?;
        let long = context as f32 > original;
        let (name, factors) =
            if long { (LONG_FACTORS, &factors.long) } else { (SHORT_FACTORS, &factors.short) };
        if factors.len() != dims / 2 || factors.iter().any(|factor| *factor <= 0.0) {
            let found = factors.len();
            return Err(format!(
                "tensor `{name}` has {found} numbers; expected {} positive ones",
                dims / 2
            ));
        }
        let length = self.positive_at("rope.scaling.attn_factor")?;
        let length = length.unwrap_or_else(|| longrope_length(context as f32 / original, original));
        Ok(Scaling::LongRope { factors: factors.clone(), length })
    }

    /// Context length of the original training.
    fn original(&self) -> Result<f32, String> {
        const KEY: &str = "rope.scaling.original_context_length";
        match self.whole_at(KEY)? {
            None => Err(format!("no `{}`", self.full_name(KEY))),
            Some(0) => Err(format!("`{}` is 0; expected at least 1", self.full_name(KEY))),
            Some(original) => Ok(original as f32),
        }
    }
}

impl RopeKeys for MetadataKeys<'_> {
    fn rope(&self, family: &Family, head_dim: usize, context: usize) -> Result<Rotary, String> {
        let dims = self.rotated(family, head_dim)?;
        Ok(Rotary {
            theta: self.positive_at("rope.freq_base")?.unwrap_or(10000.0),
            scaling: self.scaling(dims, context)?,
            dims,
            interleaved: family.interleaved_pairs,
        })
    }

    fn sliding_rope(&self, full: &Rotary, theta: f32) -> Result<Rotary, String> {
        let theta = self.positive_at("rope.freq_base_swa")?.unwrap_or(theta);
        Ok(Rotary { theta, scaling: Scaling::None, ..full.clone() })
    }

    fn sharpening(&self) -> Result<Option<Sharpening>, String> {
        let Some(beta) = self.positive_at("attention.temperature_scale")? else { return Ok(None) };
        Ok(Some(Sharpening { beta, original: self.original()?, first: 0.0 }))
    }
}
