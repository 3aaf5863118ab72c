//! The paper's natural configuration.

use std::sync::Arc;

use vattention_core::{
    Estimator, Fraction, PipelineConfig, SelectorConfig, Share, Size, Target, plugin::Uniform,
    step::Score,
};
use vattention_estimators::{Clt, Combine, Correction, Terms};
use vattention_selectors::{OracleTopK, Sink, Window};

/// Sink, window and exact top-k, and a sample of the residual whose size is set by `clt`, as in
/// `configs/vattention-paper-*-clt.toml`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Natural {
    pub(super) sink: Size,
    pub(super) window: Size,
    pub(super) top_k: Size,
    pub(super) base: Size,
    pub(super) epsilon: Fraction,
    pub(super) delta: Fraction,
}

impl Default for Natural {
    fn default() -> Self {
        Self {
            sink: Size::Tokens(128),
            window: Size::Tokens(128),
            top_k: Size::Share(fraction(0.05)),
            base: Size::Share(fraction(0.05)),
            epsilon: fraction(0.1),
            delta: fraction(0.1),
        }
    }
}

impl Natural {
    /// Returns the configuration without top-k, which always reads sink and window.
    pub(super) fn without_top_k() -> Self {
        Self { top_k: Size::Tokens(0), ..Self::default() }
    }

    /// Returns the pipeline of the selectors alone, without a sample.
    pub(super) fn selectors(&self) -> PipelineConfig {
        let selectors: [Box<dyn SelectorConfig>; 3] = [
            Box::new(Sink { size: self.sink }),
            Box::new(Window { size: self.window, aligned: false }),
            Box::new(OracleTopK { size: self.top_k, score: Score::default() }),
        ];
        PipelineConfig { share: Share::Head, selectors: selectors.into(), ..Default::default() }
    }

    pub(super) fn pipeline(&self, target: Target) -> Arc<PipelineConfig> {
        let estimator: Box<dyn Estimator> =
            Box::new(Clt(paper_terms(target, self.epsilon, self.delta)));
        Arc::new(PipelineConfig {
            sampler: Some(Box::new(Uniform { base: self.base })),
            estimator: Some(estimator),
            ..self.selectors()
        })
    }
}

/// Returns the paper's constants, without a finite-population correction.
pub(super) fn paper_terms(target: Target, epsilon: Fraction, delta: Fraction) -> Terms {
    let once = std::num::NonZeroU8::MIN;
    let (combine, correction) = (Combine::Paper, Correction::None);
    Terms { combine, correction, rounds: once, ..Terms::new(target, epsilon, delta) }
}

/// Converts a constant strictly between 0 and 1.
pub(super) fn fraction(x: f64) -> Fraction {
    Fraction::try_from(x).expect("constants lie between 0 and 1")
}
