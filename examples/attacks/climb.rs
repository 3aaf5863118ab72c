//! The hill climb of `search`.

use std::fs;
use std::path::PathBuf;

use ndarray_rand::rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use vattention::PipelineConfig;
use vattention::trace::Trace;
use vattention_testkit::adversarial::{AdversarialHead, Adversary};
use vattention_testkit::promises::HeadData;

use crate::breed::{change_head, change_parameters};
use crate::heads::{gains, judge, layer, write};
use crate::{AttackOptions, folder};

/// Number of children in each generation.
const CHILDREN: usize = 6;

/// Numbers of the pipeline's seeds in each generation, and of samples with each seed.
const SEEDS: usize = 2;
const SAMPLES: usize = 120;

/// Number of heads drawn with each set of parameters.
const DRAWN: u64 = 4;

/// Number of generations between two saved states.
const SAVE_INTERVAL: u32 = 10;

/// Seeds for the verdict. The seeds of all generations are larger.
const HELD_OUT: std::ops::Range<u64> = 1..4;

/// Names and kinds of the heads from which climbs start.
fn starts() -> [(&'static str, Adversary); 11] {
    [
        ("unequal-keys", Adversary::UnequalKeys { factor: 6.0 }),
        ("late-sink", Adversary::LateSink { factor: 8.0, place: 32 }),
        ("large-logits", Adversary::LargeLogits { deviation: 100.0 }),
        ("sign-changes", Adversary::SignChanges { breaks: 1, mean: 0.1 }),
        ("cancelling", Adversary::Cancelling),
        ("random-signs", Adversary::RandomSigns { mean: 0.1 }),
        ("regime-change", Adversary::RegimeChange { factor: 8.0, place: 56 }),
        ("ignored-axis", Adversary::IgnoredAxis { factor: 10.0 }),
        ("distant-needle", Adversary::DistantNeedle { depth: 10.0, place: 32 }),
        (
            "outlier-channels",
            Adversary::OutlierChannels { channels: 2, magnitude: 200.0, share: 0.01 },
        ),
        ("common-offset", Adversary::CommonOffset { length: 30.0 }),
    ]
}

pub(crate) fn run(options: &AttackOptions) {
    for config in &options.pipelines {
        let pipeline = vattention::config::load(config).unwrap();
        let stem = config.file_stem().unwrap().to_string_lossy().into_owned();
        for (kind, start) in starts() {
            let climb = Climb { name: format!("{stem}-{kind}"), pipeline: &pipeline };
            climb.run(start, options);
        }
    }
}

/// One climb from one kind of head.
struct Climb<'a> {
    name: String,
    pipeline: &'a PipelineConfig,
}

impl Climb<'_> {
    /// Climbs over parameters for a quarter of the generations, then over the numbers of the head.
    fn run(&self, start: Adversary, options: &AttackOptions) {
        let mut state = self.state();
        let done = state["generation"].as_u64().unwrap_or(0) as u32;
        if state["verdict"].is_string() && done >= options.generations {
            return println!("{}: {}", self.name, state["verdict"].as_str().unwrap());
        }
        let first = options.generations / 4;
        let mut head = if done > 0 {
            self.read_head(state["group"].as_u64().unwrap() as usize)
        } else {
            let best = self.climb_parameters(start, first);
            state["parameters"] = format!("{best:?}").into();
            best.data()
        };
        state["group"] = head.group.into();
        for generation in done.max(first)..options.generations {
            let mut rng = self.rng(generation);
            let mut heads = vec![head.clone()];
            heads.extend((0..CHILDREN).map(|_| change_head(&head, &mut rng)));
            let gains = self.gains(&heads, &mut rng);
            let best = best(&gains);
            head = heads.swap_remove(best);
            if (generation + 1) % SAVE_INTERVAL == 0 || generation + 1 == options.generations {
                println!("{}: generation {}, {:.3}", self.name, generation + 1, gains[best]);
                write(&self.path("safetensors"), layer(std::slice::from_ref(&head)));
                state["generation"] = (generation + 1).into();
                self.save(&state);
            }
        }
        self.conclude(&mut state, options.trials);
    }

    /// Finds the best parameters. Each generation draws new heads.
    fn climb_parameters(&self, start: Adversary, generations: u32) -> AdversarialHead {
        let mut best_head = AdversarialHead { tokens: 2048, ..AdversarialHead::new(start) };
        for generation in 0..generations {
            let mut rng = self.rng(generation);
            let mut candidates = vec![best_head];
            candidates.extend((0..CHILDREN).map(|_| change_parameters(&best_head, &mut rng)));
            let gain = |candidate: &AdversarialHead| {
                let draw = |i| AdversarialHead { seed: candidate.seed ^ i, ..*candidate }.data();
                let heads: Vec<HeadData> = (0..DRAWN).map(draw).collect();
                // All candidates get the same seeds.
                self.gains(&heads, &mut rng.clone()).iter().sum::<f64>() / DRAWN as f64
            };
            let gains: Vec<f64> = candidates.iter().map(gain).collect();
            best_head = candidates[best(&gains)];
            if (generation + 1) % SAVE_INTERVAL == 0 {
                let gain = gains[best(&gains)];
                println!("{}: generation {}, {gain:.3}, {best_head:?}", self.name, generation + 1);
            }
        }
        best_head
    }

    /// Mean gain of each head over some seeds of the pipeline.
    fn gains(&self, heads: &[HeadData], rng: &mut ChaCha8Rng) -> Vec<f64> {
        let mut sums = vec![0.0; heads.len()];
        for _ in 0..SEEDS {
            let seed = rng.random_range(HELD_OUT.end..u64::MAX);
            for (sum, gain) in sums.iter_mut().zip(gains(self.pipeline, seed, heads, SAMPLES)) {
                *sum += gain / SEEDS as f64;
            }
        }
        sums
    }

    /// Judges the best head.
    fn conclude(&self, state: &mut Value, trials: u32) {
        let mut worst: Option<crate::heads::AttackVerdict> = None;
        for seed in HELD_OUT {
            let found = judge(self.pipeline, seed, &self.path("safetensors"), trials);
            if worst.is_none_or(|worst| found.worst_row > worst.worst_row) {
                worst = Some(found);
            }
        }
        let worst = worst.unwrap();
        let verdict = format!(
            "{:.4} of {trials} samples, {:.1} % read, {}; from {}",
            worst.worst_row,
            100.0 * worst.read,
            if worst.held { "held" } else { "CONTRADICTED" },
            state["parameters"].as_str().unwrap(),
        );
        println!("{}: {verdict}", self.name);
        state["verdict"] = verdict.into();
        self.save(state);
    }

    /// Random numbers of a generation, the same if an interrupted climb continues.
    fn rng(&self, generation: u32) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(self.name.bytes().map(u64::from).sum());
        rng.set_stream(generation.into());
        rng
    }

    fn path(&self, extension: &str) -> PathBuf {
        folder().join(format!("{}.{extension}", self.name))
    }

    fn state(&self) -> Value {
        let text = fs::read_to_string(self.path("json"));
        text.map_or_else(|_| json!({}), |text| serde_json::from_str(&text).unwrap())
    }

    fn save(&self, state: &Value) {
        fs::write(self.path("json"), state.to_string()).unwrap();
    }

    fn read_head(&self, group: usize) -> HeadData {
        let layer = Trace::open(&self.path("safetensors")).unwrap().layer(0).unwrap().unwrap();
        HeadData {
            group,
            head_dim: layer.queries.dim().2,
            queries: layer.queries.into_iter().collect(),
            keys: layer.keys.into_iter().collect(),
            values: layer.values.into_iter().collect(),
            soft_cap: None,
            sink_logits: None,
        }
    }
}

fn best(gains: &[f64]) -> usize {
    // The parent is first, so it remains unless a child gains more.
    (0..gains.len()).fold(0, |best, i| if gains[i] > gains[best] { i } else { best })
}
