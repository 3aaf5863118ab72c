//! Form of a layer's softmax, where a model deviates from the plain one.

use std::ops::{Range, RangeInclusive};

use crate::{
    Error, Result,
    step::{
        Softmax,
        soft_cap::{CAP_ROUNDING, cap_logit, cap_logits},
    },
};

/// Soft caps for which f32 can represent the quotients of logits and the cap.
const CAPS: RangeInclusive<f32> = 1e-16..=1e16;

/// Form of the softmax of a layer's query heads. The default is the plain softmax.
///
/// An attention sink is a logit that a model has learned. It counts like an additional token with
/// the value zero that every step reads: it adds `e^sink` to the denominator, and nothing to the
/// numerator.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SoftmaxForm<'a> {
    /// Cap of the logits: a scaled logit becomes `cap · tanh(logit / cap)`, and sink logits stay.
    /// `None` leaves logits unchanged.
    pub soft_cap: Option<f32>,
    /// Logit of the attention sink of each query head, if there are sinks, `[query_heads]`. A
    /// [`Step`](crate::Step) has those of its group, `[group]`.
    pub sink_logits: Option<&'a [f32]>,
}

impl SoftmaxForm<'_> {
    /// Checks the form for a number of query heads.
    ///
    /// # Errors
    /// Returns [`Error::Shape`], which names `soft_cap` if the cap is not between 1e-16 and 1e16,
    /// and `sink_logits` if there are sinks and not one finite number for each query head.
    pub fn check(&self, query_heads: usize) -> Result<()> {
        if let Some(cap) = self.soft_cap.filter(|cap| !CAPS.contains(cap)) {
            return Err(Error::shape("soft_cap", "a number from 1e-16 to 1e16", cap));
        }
        let Some(sinks) = self.sink_logits else { return Ok(()) };
        if sinks.len() != query_heads {
            let expected = format!("{query_heads} numbers, one for each query head");
            return Err(Error::shape("sink_logits", expected, sinks.len()));
        }
        match sinks.iter().position(|sink| !sink.is_finite()) {
            None => Ok(()),
            Some(i) => Err(Error::shape(format!("sink_logits[{i}]"), "a finite number", sinks[i])),
        }
    }

    /// Form of some of the query heads, which must exist.
    #[must_use]
    pub fn for_heads(&self, heads: Range<usize>) -> Self {
        Self { sink_logits: self.sink_logits.map(|sinks| &sinks[heads]), ..*self }
    }

    /// Logit of a query head's attention sink, if there is one.
    pub fn sink_logit(&self, head: usize) -> Option<f32> {
        self.sink_logits.map(|sinks| sinks[head])
    }

    /// Sums over no tokens, with values `[value_dim]`: those of the query head's attention sink.
    pub fn empty_sums(&self, head: usize, value_dim: usize) -> Softmax {
        let mut sums = Softmax::new(value_dim);
        if let Some(sink) = self.sink_logit(head) {
            sums.add_sink(sink.into());
        }
        sums
    }

    /// Replaces products of queries and keys, or predictions of them, by logits.
    pub fn cap(&self, products: &mut [f32]) {
        if let Some(cap) = self.soft_cap {
            cap_logits(products, cap);
        }
    }

    /// Logit of one product of query and key.
    pub(crate) fn cap_one(&self, product: f32) -> f32 {
        self.soft_cap.map_or(product, |cap| cap_logit(product, cap))
    }

    /// Upper bound on a logit that is computed in f32, from an upper bound on the product of query
    /// and key.
    pub fn cap_bound(&self, product: f64) -> f64 {
        let Some(cap) = self.soft_cap.map(f64::from) else { return product };
        let capped = cap * (product / cap).tanh();
        capped + CAP_ROUNDING * capped.abs()
    }

    /// Upper bound on the error of a logit through the arithmetic of the cap; 0 without a cap.
    pub fn cap_rounding(&self) -> f64 {
        self.soft_cap.map_or(0.0, |cap| CAP_ROUNDING * f64::from(cap))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_forms_are_refused() {
        let check = |soft_cap, sink_logits: Option<&[f32]>| {
            SoftmaxForm { soft_cap, sink_logits }.check(2).map_err(|error| error.to_string())
        };
        assert!(check(None, None).is_ok() && check(Some(50.0), Some(&[1e4, -1e4])).is_ok());
        for cap in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e17] {
            assert!(check(Some(cap), None).unwrap_err().starts_with("soft_cap"), "{cap}");
        }
        for (sinks, len) in [(&[][..], 0), (&[1.0], 1), (&[1.0; 3], 3)] {
            let expected = "sink_logits: expected 2 numbers, one for each query head, got";
            assert_eq!(check(None, Some(sinks)).unwrap_err(), format!("{expected} {len}"));
        }
        for sink in [f32::NEG_INFINITY, f32::NAN] {
            let error = check(None, Some(&[1.0, sink])).unwrap_err();
            assert!(error.starts_with("sink_logits[1]"), "{sink}");
        }
    }

    #[test]
    fn bounds_are_capped_from_above() {
        let form = SoftmaxForm { soft_cap: Some(30.0), ..SoftmaxForm::default() };
        for i in -1000..1000_i16 {
            let product = f32::from(i) / 5.0;
            assert!(form.cap_bound(product.into()) >= form.cap_one(product).into(), "{product}");
        }
        assert_eq!(form.cap_bound(f64::INFINITY), 30.0 * (1.0 + CAP_ROUNDING));
        assert_eq!(SoftmaxForm::default().cap_bound(7.0), 7.0);
    }
}
