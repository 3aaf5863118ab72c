//! A selector, a sampler and an estimator of one's own, one file each.

pub mod by_length;
pub mod chebyshev;
pub mod every_nth;

#[cfg(test)]
mod tests {
    use vattention::PipelineConfig;
    use vattention::selectors::OracleTopK;
    use vattention::{
        Share, Size,
        plugin::{Score},
    };

    use crate::by_length::ByLength;
    use crate::chebyshev::Chebyshev;

    /// The best of the tokens, and a sample of the rest by both parts.
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
