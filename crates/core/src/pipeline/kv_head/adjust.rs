//! Changes of settings that control how many tokens are read, without a new index.

use std::sync::Arc;

use serde::Serialize;

use super::Pipeline;
use crate::{pipeline::PipelineConfig, plugin::SelectorConfig};

impl PipelineConfig {
    /// Returns true if the configurations of a layer are equal but for their names, the tunable
    /// settings of selectors and estimator, and the settings of other layers.
    fn differs_only_in_tunables(&self, other: &Self) -> bool {
        let mut adjusted = self.clone();
        adjusted.name.clone_from(&other.name);
        adjusted.layers.clone_from(&other.layers);
        for (own, of_other) in adjusted.selectors.iter_mut().zip(&other.selectors) {
            let mut of_other = of_other.clone();
            if let (Some(own), Some(of_other)) = (own.tunable(), of_other.tunable()) {
                own.copy_from(of_other);
            }
        }
        let mut of_other = other.estimator.clone();
        let goals = (adjusted.estimator.as_mut(), of_other.as_mut());
        if let (Some(own), Some(of_other)) = goals
            && let (Some(own), Some(of_other)) = (own.tunable(), of_other.tunable())
        {
            own.copy_from(of_other);
        }
        is_same(&adjusted, other)
    }
}

/// Returns true if two configurations are written alike.
fn is_same<T: Serialize + ?Sized>(one: &T, other: &T) -> bool {
    match (serde_json::to_value(one), serde_json::to_value(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

impl Pipeline {
    /// Changes the configuration. Later steps are those of a pipeline that had the new
    /// configuration from the beginning. Returns false if this needs a new index, because the
    /// configurations differ in other than tunable settings ([`SelectorConfig::tunable`],
    /// [`Estimator::tunable`](crate::Estimator::tunable)), or because a selector's changed setting
    /// is not [adjustable](crate::Selector::adjustable); the pipeline must then not be used any
    /// more.
    #[must_use]
    pub fn adjust(&mut self, config: &Arc<PipelineConfig>) -> bool {
        let config = config.layer_config(self.site.layer);
        if config.is_dense_at(self.site.layer) != self.dense
            || !self.config.differs_only_in_tunables(config)
        {
            return false;
        }
        let old = std::mem::replace(&mut self.config, config.clone());
        let changes = old.selectors.iter().zip(&config.selectors);
        self.selectors.iter_mut().zip(changes).all(|(selector, (old, new))| {
            is_same::<dyn SelectorConfig>(&**old, &**new)
                || selector
                    .adjustable()
                    .zip(new.clone().tunable())
                    .is_some_and(|(setting, new)| setting.copy_from(new))
        })
    }
}
