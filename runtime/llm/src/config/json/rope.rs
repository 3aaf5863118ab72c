//! Keys of rotary embeddings in `config.json`.

use serde::Deserialize;

use super::{FULL, JsonKeys, SLIDING};
use crate::config::keys::{KeySource, RopeKeys};
use crate::family::Family;
use crate::rope::{Rotary, Scaling, Sharpening, longrope_length, yarn_length};

/// Parameters of rotary embeddings.
#[derive(Debug, Default, Deserialize)]
struct RopeParameters {
    /// Kind of scaling; old files call the key `type`.
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f32>,
    partial_rotary_factor: Option<f64>,
    factor: Option<f32>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    original_max_position_embeddings: Option<f32>,
    beta_fast: Option<f32>,
    beta_slow: Option<f32>,
    mscale: Option<f32>,
    mscale_all_dim: Option<f32>,
    attention_factor: Option<f32>,
    /// True, the default, if the range of pairs that yarn interpolates is rounded to whole numbers.
    truncate: Option<bool>,
    llama_4_scaling_beta: Option<f32>,
    short_factor: Option<Vec<f32>>,
    long_factor: Option<Vec<f32>>,
}

impl JsonKeys {
    /// Parameters of the rotary embeddings of full layers or of sliding layers. transformers 5 may
    /// write them for each kind of layers.
    fn rope_parameters(&self, kind: &str) -> Result<Option<RopeParameters>, String> {
        let (key, found) = match (self.get("rope_parameters"), self.get("rope_scaling")) {
            (Some(found), _) => ("rope_parameters", found),
            (None, Some(found)) => ("rope_scaling", found),
            (None, None) => return Ok(None),
        };
        let found = if found.get(FULL).is_some() || found.get(SLIDING).is_some() {
            found.get(kind)
        } else {
            (kind == FULL).then_some(found)
        };
        let Some(found) = found.filter(|found| !found.is_null()) else { return Ok(None) };
        let parsed = RopeParameters::deserialize(found);
        parsed.map(Some).map_err(|error| format!("`{key}`: {error}"))
    }

    /// Number of elements of a head that are rotated.
    fn rotated(&self, rope: &RopeParameters, family: &Family, dim: usize) -> Result<usize, String> {
        const KEY: &str = "partial_rotary_factor";
        let part = self.number(KEY)?.or(rope.partial_rotary_factor);
        let Some(default) = family.rotated else {
            return match part {
                Some(part) if part != 1.0 => Err(format!("`{KEY}` is {part}; expected 1")),
                _ => Ok(dim),
            };
        };
        let part = part.unwrap_or(default);
        let rotated = (dim as f64 * part) as usize;
        if part > 0.0 && part <= 1.0 && rotated >= 2 && rotated.is_multiple_of(2) {
            return Ok(rotated);
        }
        Err(format!("`{KEY}` is {part}; expected an even number of a head's {dim} elements"))
    }
}

impl RopeKeys for JsonKeys {
    fn rope(&self, family: &Family, head_dim: usize, context: usize) -> Result<Rotary, String> {
        let mut rope = self.rope_parameters(FULL)?.unwrap_or_default();
        let original = self.number("original_max_position_embeddings")?;
        rope.original_max_position_embeddings =
            rope.original_max_position_embeddings.or(original.map(|original| original as f32));
        let theta = rope.rope_theta.or(self.number("rope_theta")?.map(|theta| theta as f32));
        let dims = self.rotated(&rope, family, head_dim)?;
        Ok(Rotary {
            theta: positive("rope_theta", theta.or(Some(family.theta)))?,
            scaling: rope.scaling(dims, context)?,
            dims,
            interleaved: family.interleaved_pairs,
        })
    }

    fn sliding_rope(&self, full: &Rotary, theta: f32) -> Result<Rotary, String> {
        let found = self.rope_parameters(SLIDING)?.unwrap_or_default();
        let local = self.number("rope_local_base_freq")?.map(|theta| theta as f32);
        let theta = found.rope_theta.or(local).unwrap_or(theta);
        let kind = found.rope_type.as_deref().unwrap_or("default");
        if kind != "default" {
            return Err(format!(
                "the rope type of sliding layers is {kind:?}; expected \"default\""
            ));
        }
        let theta = positive("rope_theta", Some(theta))?;
        Ok(Rotary { theta, scaling: Scaling::None, ..full.clone() })
    }

    fn sharpening(&self) -> Result<Option<Sharpening>, String> {
        let rope = self.rope_parameters(FULL)?;
        let Some((rope, beta)) = rope.and_then(|rope| {
            let beta = rope.llama_4_scaling_beta?;
            Some((rope, beta))
        }) else {
            return Ok(None);
        };
        let beta = positive("llama_4_scaling_beta", Some(beta))?;
        Ok(Some(Sharpening { beta, original: rope.original()?, first: 0.0 }))
    }
}

impl RopeParameters {
    /// Returns the scaling of `dims` rotated elements, in a model with this context.
    fn scaling(&self, dims: usize, context: usize) -> Result<Scaling, String> {
        match self.rope_type.as_deref() {
            Some("default") => Ok(Scaling::None),
            None if self.factor.is_none() => Ok(Scaling::None),
            None => Err("no `rope_type` of the rotary embeddings, but a `factor`".into()),
            Some("linear") => Ok(Scaling::Linear { factor: positive("factor", self.factor)? }),
            Some("llama3") => self.llama3(),
            Some("yarn") => self.yarn(),
            Some("longrope" | "su") => self.longrope(dims, context),
            Some(other) => Err(format!(
                "the rope type {other:?} is not supported; expected one of default, linear, \
                 llama3, yarn, longrope"
            )),
        }
    }

    /// Context length of the original training.
    fn original(&self) -> Result<f32, String> {
        positive("original_max_position_embeddings", self.original_max_position_embeddings)
    }

    fn yarn(&self) -> Result<Scaling, String> {
        let factor = positive("factor", self.factor)?;
        let scales = self.mscale.zip(self.mscale_all_dim);
        let length = self.attention_factor.unwrap_or_else(|| yarn_length(factor, scales));
        Ok(Scaling::Yarn {
            factor,
            fast: positive("beta_fast", self.beta_fast.or(Some(32.0)))?,
            slow: positive("beta_slow", self.beta_slow.or(Some(1.0)))?,
            original: self.original()?,
            length: positive("attention_factor", Some(length))?,
            truncates: self.truncate.unwrap_or(true),
        })
    }

    fn llama3(&self) -> Result<Scaling, String> {
        let scaling = Scaling::Llama3 {
            factor: positive("factor", self.factor)?,
            low: positive("low_freq_factor", self.low_freq_factor)?,
            high: positive("high_freq_factor", self.high_freq_factor)?,
            original: self.original()?,
        };
        match scaling {
            Scaling::Llama3 { low, high, .. } if low >= high => Err(format!(
                "`low_freq_factor` is {low}; expected less than `high_freq_factor` = {high}"
            )),
            scaling => Ok(scaling),
        }
    }

    fn longrope(&self, dims: usize, context: usize) -> Result<Scaling, String> {
        let original = self.original()?;
        let factor = positive("factor", self.factor.or(Some(context as f32 / original)))?;
        let long = context as f32 > original;
        let (key, factors) = if long {
            ("long_factor", &self.long_factor)
        } else {
            ("short_factor", &self.short_factor)
        };
        let factors =
            factors.clone().ok_or_else(|| format!("no `{key}` of the rotary embeddings"))?;
        if factors.len() != dims / 2 {
            let (found, expected) = (factors.len(), dims / 2);
            return Err(format!("`{key}` has {found} numbers; expected {expected}"));
        }
        for &factor in &factors {
            positive(key, Some(factor))?;
        }
        let length = self.attention_factor.unwrap_or_else(|| longrope_length(factor, original));
        let length = positive("attention_factor", Some(length))?;
        Ok(Scaling::LongRope { factors, length })
    }
}

/// Returns a required positive number of the rotary embeddings.
fn positive(key: &str, value: Option<f32>) -> Result<f32, String> {
    match value {
        None => Err(format!("no `{key}` of the rotary embeddings")),
        Some(value) if value.is_finite() && value > 0.0 => Ok(value),
        Some(value) => Err(format!("`{key}` is {value}; expected a positive number")),
    }
}
