//! Statistics that estimators receive, compared with sums computed here.

use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use vattention_core::{
    Estimator, Fraction, Goal, Kind, NewTokens, Picks, Pipeline, PipelineConfig, Promise, Result,
    Row, SampleStats, Selector, SelectorConfig, Shape, Share, Site, Size, Step, Target, Tokens,
    plugin::{Radius, Uniform},
    promise::Assumptions,
    typetag,
};

/// Statistics that the estimator has received.
static RECEIVED: Mutex<Vec<SampleStats>> = Mutex::new(Vec::new());

/// Records the statistics that it receives.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Recorder {}

#[typetag::serde(name = "recorder")]
impl Estimator for Recorder {
    fn radius(&self, stats: &SampleStats) -> Radius {
        RECEIVED.lock().unwrap().push(*stats);
        let kind = if stats.norm_n > 0.0 { Kind::Asymptotic } else { Kind::None };
        Radius::new(0.25, kind, Assumptions::NONE)
    }
    fn goal(&self) -> Result<Goal, &'static str> {
        let half = Fraction::try_from(0.5).unwrap();
        Ok(Promise::new(Target::Sdpa, half, half).into())
    }
}

/// Picks the first three tokens, and records a bound that differs by member.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Three {}

#[typetag::serde(name = "three")]
impl SelectorConfig for Three {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }
}

impl Selector for Three {
    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        picks.take_all(0..3);
        picks.bound_residual(3.0 + row.member() as f32);
    }
}

#[test]
fn each_query_head_receives_its_own_statistics() {
    let shape = Shape { query_heads: 2, kv_heads: 1, head_dim: 1, value_dim: 1 };
    let site = Site { seed: 5, sequence: 0, layer: 0, kv_head: 0, shape };
    let (n, visible) = (400, 300);
    for heavy in [1.0_f32, 3.0, 1500.0] {
        let mut keys: Vec<f32> = (0..n).map(|i| (i * 7 % 5) as f32 - 2.0).collect();
        (keys[0], keys[1]) = (heavy, heavy - 1.0);
        let values: Vec<f32> =
            (0..n).map(|i| if i == 350 { -9.0 } else { (i % 3) as f32 - 0.5 }).collect();
        let queries = [0.5_f32, 1.0];
        let config = PipelineConfig {
            seed: 5,
            share: Share::Group,
            selectors: vec![Box::new(Three {})],
            sampler: Some(Box::new(Uniform { base: Size::Share(0.25.try_into().unwrap()) })),
            estimator: Some(Box::new(Recorder {})),
            ..PipelineConfig::default()
        };
        let mut pipeline = Pipeline::new(&Arc::new(config), site).unwrap();
        let (keys_, values_) = (Tokens::new(&keys, n, 1), Tokens::new(&values, n, 1));
        let new = NewTokens { first: 0, keys: keys_, values: values_, classes: None };
        pipeline.append(&new).unwrap();
        RECEIVED.lock().unwrap().clear();
        let step = Step { visible, ..Step::new(&site, &queries, keys_, values_) };
        let reading = pipeline.read(&step).unwrap();
        let list = reading.list(0);
        assert_eq!(list.sampled, 75, "a quarter of the visible tokens");
        // For one member, the statistics of all sizes that are tried differ only by the size.
        let mut received: Vec<_> =
            RECEIVED.lock().unwrap().iter().map(|stats| stats.with_size(75)).collect();
        received.dedup();
        assert_eq!(received.len(), 2);
        for (member, stats) in received.iter().enumerate() {
            let q = f64::from(queries[member]);
            let shift = q * f64::from(heavy);
            let (mut d, mut d_certain, mut n_sum) = (0.0, 0.0, 0.0);
            for (&token, &p) in list.indices.iter().zip(&list.probabilities) {
                let (k, v) = (f64::from(keys[token as usize]), f64::from(values[token as usize]));
                let e = (q * k - shift).exp() / f64::from(p);
                d += e;
                n_sum += e * v;
                d_certain += if token < 3 { e } else { 0.0 };
            }
            assert_eq!((stats.b, stats.n_s, stats.visible), (75, 297, visible));
            assert_eq!(stats.max_norm_v, 1.5);
            let bound = (3.0 + member as f64 - shift).exp();
            for (got, want) in [
                (stats.d_certain, d_certain / d),
                (stats.norm_n, f64::abs(n_sum) / d),
                (stats.bound.unwrap(), bound / d),
            ] {
                let got = got / stats.d;
                assert!(
                    (got - want).abs() <= 1e-5 * want.abs(),
                    "member {member}: {got} for {want}"
                );
            }
        }
    }
}
