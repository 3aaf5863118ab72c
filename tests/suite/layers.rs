//! Layers with their own settings equal a pipeline that has these settings at all layers.

use crate::common;
use std::sync::Arc;

use ndarray::Array3;
use ndarray_rand::RandomExt;
use ndarray_rand::rand::SeedableRng;
use ndarray_rand::rand_distr::StandardNormal;
use rand_chacha::ChaCha8Rng;
use vattention::config::{Loader, load};
use vattention::experiments::{
    Entry, Error, Results, TraceSettings, compare, tune_to_density, with_epsilon,
};
use vattention::plugin::Tunable;
use vattention::trace::Trace;
use vattention::{Backend, FallBack, Fraction, Options, Output, PipelineConfig, Shape, backend};

const SHAPE: Shape = Shape { query_heads: 4, kv_heads: 2, head_dim: 16, value_dim: 12 };

/// A pipeline with a top-k of a size, and at most `rounds` checks of its sample.
fn text(size: &str, rounds: usize) -> String {
    format!(
        "name = \"p\"\nseed = 5\n[[selectors]]\ntype = \"sink\"\nsize = 4\n[[selectors]]\n\
         type = \"oracle-top-k\"\nsize = {size}\n[estimator]\ntype = \"ratio\"\nepsilon = 0.2\n\
         delta = 0.2\nrounds = {rounds}\n"
    )
}

fn parse(text: &str) -> Arc<PipelineConfig> {
    Loader::default().parse("p.toml", text).unwrap()
}

/// Output of a pipeline at a layer. The tokens are the same at all layers.
fn run(backend: &dyn Backend, pipeline: &Arc<PipelineConfig>, layer: usize) -> Output {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut normal = |dim| Array3::random_using(dim, StandardNormal, &mut rng);
    let (keys, values) = (normal((2, 900, 16)), normal((2, 900, 12)));
    let queries = normal((4, 1, 16));
    let options =
        Options { return_selection: true, fall_back: FallBack::Never, ..Options::default() };
    let mut attention = backend.start(pipeline, layer, SHAPE, &options).unwrap();
    attention.append(keys.view(), values.view()).unwrap();
    attention.attend(queries.view(), None).unwrap()
}

#[test]
fn a_layer_with_settings_equals_a_pipeline_with_these_settings() {
    let layers = "[[layers]]\nat = [1, \"4..6\"]\nselectors.1.size = 0.3\nestimator.rounds = 2\n";
    let by_layer = parse(&(text("0.02", 6) + layers));
    let (default, changed) = (parse(&text("0.02", 6)), parse(&text("0.3", 2)));
    for backend in common::backends() {
        for (layer, plain) in [(0, &default), (5, &changed)] {
            let name = format!("{}, layer {layer}", backend.name());
            let (got, expected) = (run(&*backend, &by_layer, layer), run(&*backend, plain, layer));
            assert_eq!(got.out, expected.out, "{name}");
            assert_eq!(got.selection, expected.selection, "{name}");
            assert_eq!(got.rows, expected.rows, "{name}");
        }
        let read = |pipeline| run(&*backend, pipeline, 1).rows[0].certain;
        assert!(read(&changed) > read(&default), "the settings have no effect");
    }
}

#[test]
fn another_epsilon_is_promised_at_every_layer() {
    let layers = "[[layers]]\nat = [1]\nselectors.1.size = 0.3\n\
                  [[layers]]\nat = [2]\nestimator.rounds = 2\n";
    let epsilon = Fraction::try_from(0.4).unwrap();
    let other = with_epsilon(&parse(&(text("0.02", 6) + layers)), epsilon).unwrap();
    assert!(other.conflicts().is_empty());
    for layer in 0..3 {
        assert_eq!(other.layer_config(layer).promise().unwrap().epsilon, epsilon);
    }
}

/// Returns the share that the second selector of each part picks.
fn shares(pipeline: &PipelineConfig) -> Vec<f64> {
    let mut shares = Vec::new();
    pipeline.clone().change_parts(|part| {
        let Some(Tunable::Sizes(sizes)) = part.selectors[1].tunable() else { panic!() };
        shares.push(sizes[0].share().unwrap().get());
    });
    shares
}

#[test]
fn a_density_search_keeps_the_ratio_of_sizes_by_layer() {
    let layers = "[[layers]]\nat = [1]\nselectors.1.size = 0.3\n";
    let promising = parse(&(text("0.02", 6) + layers));
    let mut fixed = (*promising).clone();
    fixed.change_parts(|part| part.estimator = None);
    let density = Fraction::try_from(0.08).unwrap();
    // A promise reads more than the selectors, the more, the smaller its epsilon.
    let measure = |pipeline: &Arc<PipelineConfig>| {
        let sampled = pipeline.promise().map_or(0.0, |promise| 0.05 - 0.05 * promise.epsilon.get());
        Ok::<_, Error>(shares(pipeline).iter().sum::<f64>() / 2.0 + sampled)
    };
    for (pipeline, selected) in [(&Arc::new(fixed), 0.08), (&promising, 0.04)] {
        let tuned = tune_to_density(pipeline, density, &measure).unwrap();
        assert!((measure(&tuned.pipeline).unwrap() / 0.08 - 1.0).abs() < 0.03, "{}", tuned.set);
        let shares = shares(&tuned.pipeline);
        assert!((shares[1] / shares[0] - 15.0).abs() < 1e-9, "{shares:?}");
        assert!((shares[0] + shares[1] - 2.0 * selected).abs() < 0.004, "{shares:?}");
        let epsilons = [0, 1].map(|layer| tuned.pipeline.layer_config(layer).promise());
        assert_eq!(epsilons[0], epsilons[1]);
    }
}

/// Measurements of a pipeline cover all its layers.
#[test]
fn a_comparison_counts_layers_with_settings() {
    let trace = Trace::open(&common::root("data/smollm2.safetensors")).unwrap();
    let numbers: Vec<usize> = trace.layers().map(|(number, _)| number).collect();
    let [first, second] = numbers[..] else { panic!("{numbers:?}") };
    let only_second = parse(&format!(
        "[[layers]]\nat = [{second}]\n\
         [layers.estimator]\ntype = \"ratio\"\ndelta = 0.1\nsize = 64\n"
    ));
    let pyramid = load(common::root("configs/pyramid-kv.toml")).unwrap();
    let entry = |pipeline| Entry { pipeline, file: String::new(), set: None };
    let settings = TraceSettings { queries: Some(1), ..TraceSettings::default() };
    let entries = [entry(only_second), entry(pyramid)];
    let backend = backend("cpu").unwrap();
    let report =
        compare(&entries, &trace, &*backend, &settings, &Results::default(), &|_, _| ()).unwrap().0;
    let [sampled, pyramid] = &report.pipelines[..] else { panic!() };
    assert_eq!(sampled.budget.unwrap().max, 64.0);
    assert!(sampled.largest_density == 1.0, "dense at layer {first}");
    // The budget is 38 tokens smaller at each layer; 32 of the trace's 6144 tokens follow the
    // prompt.
    let share = |layer: usize| (1167 - 38 * layer + 32) as f64 / 6144.0;
    let expected = f64::midpoint(share(first), share(second));
    assert!((pyramid.density_per_query_head - expected).abs() < 1e-9, "{pyramid:?}");
}
