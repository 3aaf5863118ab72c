//! Two selectors, a sampler and an estimator, one file each.

pub mod by_length;
pub mod chebyshev;
pub mod every_nth;
pub mod last_used;

#[cfg(test)]
mod tests {
    use vattention::PipelineConfig;
    use vattention::plugin::Score;
    use vattention::selectors::OracleTopK;
    use vattention::{Share, Size};

    use crate::by_length::ByLength;
    use crate::chebyshev::Chebyshev;

    /// The 150 largest scores, and a sample of the others by [`ByLength`] and [`Chebyshev`].
    fn pipeline() -> PipelineConfig {
        let size = Size::Tokens(150);
        let [epsilon, delta] = [0.2, 0.1].map(|x| x.try_into().unwrap());
        PipelineConfig {
            share: Share::Head,
            selectors: vec![Box::new(OracleTopK { size, score: Score::Head })],
            sampler: Some(Box::new(ByLength { base: Size::Tokens(64) })),
            estimator: Some(Box::new(Chebyshev { epsilon, delta })),
            ..PipelineConfig::default()
        }
    }

    vattention_testkit::promise!(the_promise_is_kept, pipeline());
}
