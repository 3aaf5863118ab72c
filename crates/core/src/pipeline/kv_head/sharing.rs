//! Indexes that the pipelines of several sequences share.

use std::sync::Arc;

use super::Pipeline;
use crate::{
    Error, Result,
    step::{Site, Tokens},
};

impl Pipeline {
    /// Checks that pipelines of other sequences can [take over](Self::take_indexes) the indexes.
    ///
    /// # Errors
    /// Returns [`Error::NoSharing`] with the name of a selector or sampler whose index they cannot
    /// use, and the reason.
    pub fn check_shareable(&self) -> Result<()> {
        for (config, selector) in self.config.selectors.iter().zip(&self.selectors) {
            if let Some(reason) = selector.sharing_obstacle() {
                return refuse(config.typetag_name(), reason);
            }
        }
        match self.sampler.as_ref().and_then(|sampler| sampler.sharing_obstacle()) {
            Some(reason) => refuse(self.config.sampler().typetag_name(), reason),
            None => Ok(()),
        }
    }

    /// Moves the indexes to memory that later clones share, where selectors and sampler can.
    pub fn share(&mut self) {
        self.selectors.iter_mut().for_each(|selector| selector.share());
        self.sampler.iter_mut().for_each(|sampler| sampler.share());
    }

    /// Takes over the indexes of the first tokens from another sequence's pipeline. `keys`,
    /// `[tokens, head_dim]`, are the keys of these tokens. The result is that of
    /// [`append`](Self::append), and nothing is computed again. Memory that the donor has
    /// [moved](Self::share) is shared; the remainder is copied.
    ///
    /// # Errors
    /// Returns the error of [`check_shareable`](Self::check_shareable), and [`Error::Shape`] if the
    /// donor belongs to another layer or KV head, or was not created from the same
    /// [`PipelineConfig`](crate::PipelineConfig); then nothing has changed.
    pub fn take_indexes(&mut self, donor: &Self, keys: &Tokens<'_>) -> Result<()> {
        let site = Site { sequence: self.site.sequence, ..donor.site };
        if site != self.site {
            let expected = format!("one of the site {:?}", self.site);
            return Err(Error::shape("donor", expected, donor.site));
        }
        if !Arc::ptr_eq(&self.config, &donor.config) {
            let expected = "one that was created from the same pipeline configuration";
            return Err(Error::shape("donor", expected, donor.config.name.as_str()));
        }
        donor.check_shareable()?;
        self.selectors.clone_from(&donor.selectors);
        self.sampler.clone_from(&donor.sampler);
        self.norms_v.clone_from(&donor.norms_v);
        self.norms_v.truncate(keys.len());
        self.hide(keys);
        Ok(())
    }
}

fn refuse(component: &str, reason: &'static str) -> Result<()> {
    Err(Error::NoSharing { component: component.into(), reason })
}
