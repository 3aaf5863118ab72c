use ndarray::Array3;
use vattention_backends::Cpu;
use vattention_core::{Fraction, promise::Scope};
use vattention_estimators::Ratio;

use super::*;

/// Backend of dense attention that adds `off(step, head)` to the first number of a head's output if
/// the pipeline makes a promise.
struct ShiftedBackend<F>(F);

struct ShiftedAttention<F> {
    off: Option<F>,
    step: usize,
}

impl<F: Fn(usize, usize) -> f32 + Clone + Send + Sync + 'static> Backend for ShiftedBackend<F> {
    fn name(&self) -> &'static str {
        "off"
    }

    fn summary(&self) -> &'static str {
        ""
    }

    fn start(
        &self,
        pipeline: &Arc<PipelineConfig>,
        layer: usize,
        shape: Shape,
        options: &Options,
    ) -> Result<Box<dyn Attention>> {
        let dense = Cpu::default().start(&Arc::default(), layer, shape, options)?;
        let off = pipeline.promise().map(|_| self.0.clone());
        Ok(wrap(dense, ShiftedAttention { off, step: 0 }))
    }
}

impl<F: Fn(usize, usize) -> f32 + Clone + Send + 'static> Wrapper for ShiftedAttention<F> {
    fn attend(
        &mut self,
        inner: &mut dyn Attention,
        queries: ArrayView3<'_, f32>,
        visible: Option<&[usize]>,
    ) -> Result<Output> {
        let mut output = inner.attend(queries, visible)?;
        let Some(off) = &self.off else { return Ok(output) };
        let (heads, queries, _) = output.out.dim();
        for (head, query) in (0..heads).flat_map(|h| (0..queries).map(move |q| (h, q))) {
            output.out[[head, query, 0]] += off(self.step + query, head);
        }
        self.step += queries;
        Ok(output)
    }

    fn fork(&self, _: Option<u32>) -> Result<Self> {
        Ok(Self { off: self.off.clone(), step: self.step })
    }
}

const HEADS: usize = 4;

fn fraction(x: f64) -> Fraction {
    Fraction::try_from(x).unwrap()
}

fn ratio(scope: Scope) -> PipelineConfig {
    let mut estimator = Ratio::new(fraction(0.1), fraction(0.1));
    estimator.scope = scope;
    PipelineConfig { estimator: Some(Box::new(estimator)), ..PipelineConfig::default() }
}

/// Returns the numbers of violated and of checked units of `steps` steps with four heads over two
/// tokens, whose keys are equal and whose values are `[3, 4]` and `[other, 4]`.
fn count_violations(
    pipeline: PipelineConfig,
    steps: usize,
    other: f32,
    off: impl Fn(usize, usize) -> f32 + Clone + Send + Sync + 'static,
) -> (usize, usize) {
    let backend = ShiftedBackend(off);
    let scope = pipeline.promise().unwrap().scope;
    let observed = ObservedBackend::new(&backend, true, ObservedSums::default());
    let shape = Shape { query_heads: HEADS, kv_heads: 1, head_dim: 2, value_dim: 2 };
    let mut attention = observed.start(&Arc::new(pipeline), 0, shape, &Options::default()).unwrap();
    let values = Array3::from_shape_vec((1, 2, 2), vec![3.0, 4.0, other, 4.0]).unwrap();
    attention.append(Array3::<f32>::zeros((1, 2, 2)).view(), values.view()).unwrap();
    // The first third of the steps runs one by one, the others in one call.
    let alone = steps / 3;
    for queries in std::iter::repeat_n(1, alone).chain([steps - alone]) {
        attention.attend(Array3::ones((HEADS, queries, 2)).view(), None).unwrap();
    }
    let error = observed.observer().summary().error.unwrap();
    let counts = error.violations.unwrap().count(scope);
    (counts.violated, counts.checked)
}

/// Seven of 400 rows (1.8 %) violate the promise, each in a step of its own: 7 % of the steps.
#[test]
fn a_promise_about_steps_is_counted_in_steps() {
    let off = |step: usize, head| if step.is_multiple_of(15) && head == 1 { 0.6 } else { 0.4 };
    assert_eq!(count_violations(ratio(Scope::Row), 100, 3.0, off), (7, 400));
    assert_eq!(count_violations(ratio(Scope::Step), 100, 3.0, off), (7, 100));
    let both = |step: usize, head| if step == 2 && head > 1 { 0.6 } else { 0.4 };
    assert_eq!(count_violations(ratio(Scope::Row), 10, 3.0, both), (2, 40));
    assert_eq!(
        count_violations(ratio(Scope::Step), 10, 3.0, both),
        (1, 10),
        "two heads of one step"
    );
}

#[test]
fn nan_and_infinity_violate_a_promise() {
    for off in [f32::NAN, f32::INFINITY] {
        assert_eq!(count_violations(ratio(Scope::Row), 3, 3.0, move |_, _| off).0, 12, "{off}");
        assert_eq!(count_violations(ratio(Scope::Step), 3, 3.0, move |_, _| off), (3, 3), "{off}");
    }
}
