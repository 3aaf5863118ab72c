//! A backend that notes what attention reads, and how far it is from dense attention.

use std::sync::{Arc, Mutex, PoisonError};

use ndarray::{ArrayView1, ArrayView3, s};
use vattention_core::{
    Attention, Backend, Options, Output, PipelineConfig, Promise, Result, Shape, Target,
};

use crate::record::{self, ErrorOf};

/// Runs pipelines on another backend, and each layer's attention densely beside.
pub(crate) struct Watched<'b> {
    backend: &'b dyn Backend,
    /// Whether to compare with dense attention.
    errors: bool,
    seen: Arc<Mutex<Seen>>,
}

/// One layer.
struct WatchedAttention {
    attention: Box<dyn Attention>,
    dense: Option<Box<dyn Attention>>,
    /// What is to be kept, if that can be seen from outputs.
    promise: Option<Promise>,
    seen: Arc<Mutex<Seen>>,
}

/// Sums over rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    rows: usize,
    density: f64,
    held: usize,
    error: f64,
    largest: f64,
    compared: bool,
    broken: Option<usize>,
}

impl<'b> Watched<'b> {
    pub(crate) fn new(backend: &'b dyn Backend, errors: bool) -> Self {
        Self { backend, errors, seen: Arc::default() }
    }

    /// What was seen so far.
    pub(crate) fn seen(&self) -> Seen {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for Watched<'_> {
    fn name(&self) -> &str {
        self.backend.name()
    }

    fn summary(&self) -> &str {
        self.backend.summary()
    }

    fn start(
        &self,
        pipeline: &Arc<PipelineConfig>,
        layer: usize,
        shape: Shape,
        options: &Options,
    ) -> Result<Box<dyn Attention>> {
        let start =
            |pipeline: &Arc<PipelineConfig>| self.backend.start(pipeline, layer, shape, options);
        let dense = self.errors.then(|| start(&Arc::default())).transpose()?;
        let promise = pipeline.promise().filter(|promise| promise.floor.is_none());
        let attention = start(pipeline)?;
        Ok(Box::new(WatchedAttention { attention, dense, promise, seen: self.seen.clone() }))
    }
}

impl Attention for WatchedAttention {
    fn append(&mut self, keys: ArrayView3<'_, f32>, values: ArrayView3<'_, f32>) -> Result<()> {
        if let Some(dense) = &mut self.dense {
            dense.append(keys, values)?;
        }
        self.attention.append(keys, values)
    }

    fn observe(&mut self, queries: ArrayView3<'_, f32>) -> Result<()> {
        self.attention.observe(queries)
    }

    fn attend(
        &mut self,
        queries: ArrayView3<'_, f32>,
        visible: Option<&[usize]>,
    ) -> Result<Output> {
        let output = self.attention.attend(queries, visible)?;
        let dense = match &mut self.dense {
            Some(dense) => Some(dense.attend(queries, visible)?),
            None => None,
        };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.add(&output);
        if let Some(dense) = dense {
            seen.compare(&output, &dense, self.promise.as_ref());
        }
        Ok(output)
    }

    fn fork(&self, sequence: Option<u32>) -> Result<Box<dyn Attention>> {
        let dense = self.dense.as_ref().map(|dense| dense.fork(sequence)).transpose()?;
        let attention = self.attention.fork(sequence)?;
        Ok(Box::new(Self { attention, dense, promise: self.promise, seen: self.seen.clone() }))
    }

    fn len(&self) -> usize {
        self.attention.len()
    }

    fn index_bytes(&self) -> usize {
        self.attention.index_bytes()
    }
}

impl Seen {
    fn add(&mut self, output: &Output) {
        self.rows += output.rows.len();
        for row in &output.rows {
            self.density += row.density_of_group();
            self.held += usize::from(row.certificate.held);
        }
    }

    fn compare(&mut self, output: &Output, dense: &Output, promise: Option<&Promise>) {
        self.compared = true;
        let (heads, queries, _) = output.out.dim();
        for (head, query) in (0..heads).flat_map(|h| (0..queries).map(move |q| (h, q))) {
            let at = s![head, query, ..];
            let [found, exact] = [output.out.slice(at), dense.out.slice(at)];
            let logarithms = [output, dense].map(|it| f64::from(it.log_denominator[[head, query]]));
            let ratio = (logarithms[0] - logarithms[1]).exp();
            let error = relative(found, exact, 1.0);
            self.error += error;
            self.largest = self.largest.max(error);
            let Some(promise) = promise else { continue };
            let promised = match promise.target {
                Target::Sdpa => error,
                Target::Numerator => relative(found, exact, ratio),
                Target::Denominator => (ratio - 1.0).abs(),
            };
            *self.broken.get_or_insert(0) += usize::from(promised > promise.epsilon.get());
        }
    }

    /// Means over rows.
    pub(crate) fn summary(&self) -> record::Attention {
        let rows = self.rows.max(1) as f64;
        let error = ErrorOf { mean: self.error / rows, max: self.largest, broken: self.broken };
        record::Attention {
            rows: self.rows,
            density: self.density / rows,
            held: self.held,
            error: self.compared.then_some(error),
        }
    }
}

/// `|scale · found - exact| / |exact|`, which is finite: only nothing but zeros has no length.
fn relative(found: ArrayView1<'_, f32>, exact: ArrayView1<'_, f32>, scale: f64) -> f64 {
    let mut sums = (0.0, f64::MIN_POSITIVE);
    for (&found, &exact) in found.iter().zip(exact) {
        let (found, exact) = (f64::from(found), f64::from(exact));
        sums.0 += (scale * found - exact).powi(2);
        sums.1 += exact.powi(2);
    }
    (sums.0 / sums.1).sqrt()
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, Array3, arr1};
    use vattention_core::Fraction;

    use super::*;

    fn output(out: [f32; 2], log_denominator: f32) -> Output {
        Output {
            out: Array3::from_shape_vec((1, 1, 2), out.to_vec()).unwrap(),
            log_denominator: Array2::from_elem((1, 1), log_denominator),
            rows: Vec::new(),
            selection: None,
            timings: None,
        }
    }

    /// What is broken if `found` answers for `[3, 4]` with a denominator of 1.
    fn broken(found: &Output, target: Target, epsilon: f64) -> bool {
        let fraction = |x| Fraction::try_from(x).unwrap();
        let promise = Promise::new(target, fraction(epsilon), fraction(0.1));
        let mut seen = Seen::default();
        seen.compare(found, &output([3.0, 4.0], 0.0), Some(&promise));
        seen.broken == Some(1)
    }

    #[test]
    fn errors_are_relative_to_dense_attention() {
        let exact = arr1(&[3.0, 4.0]);
        assert_eq!(relative(arr1(&[3.0, 4.0]).view(), exact.view(), 1.0), 0.0);
        assert!((relative(arr1(&[3.0, 4.5]).view(), exact.view(), 1.0) - 0.1).abs() < 1e-12);
        assert!((relative(arr1(&[6.0, 8.0]).view(), exact.view(), 0.55) - 0.1).abs() < 1e-12);
        assert_eq!(relative(arr1(&[0.0]).view(), arr1(&[0.0]).view(), 1.0), 0.0);
    }

    #[test]
    fn a_promise_is_about_its_target() {
        // The output is off by 0.1, the denominator by 0.2, their product by some 0.3.
        let found = output([3.0, 4.5], 1.2_f32.ln());
        for (target, error) in
            [(Target::Sdpa, 0.1), (Target::Denominator, 0.2), (Target::Numerator, 0.305)]
        {
            assert!(broken(&found, target, error - 0.01), "{target:?}");
            assert!(!broken(&found, target, error + 0.01), "{target:?}");
        }
    }
}
