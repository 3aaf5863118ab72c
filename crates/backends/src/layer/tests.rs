use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use vattention_core::{
    FallBack, NewTokens, Picks, Row, Selector, SelectorConfig, plugin::PromptQueries, typetag,
};

use super::*;
use crate::Reference;
use crate::cache::ChunkSizes;
use crate::executor::HeadInput;

const SHAPE: Shape = Shape { query_heads: 2, kv_heads: 2, head_dim: 4, value_dim: 3 };

fn start<M: Executor>(
    config: PipelineConfig,
    shape: Shape,
    options: &Options,
    executor: M,
) -> Layer<M> {
    let pipelines = build_pipelines(&Arc::new(config), 0, shape, options).unwrap();
    Layer::new(pipelines, options, Workers::Serial, executor).unwrap()
}

fn append(layer: &mut dyn Attention, keys: &Array3<f32>, values: &Array3<f32>) -> Result<()> {
    layer.append(keys.view(), values.view())
}

fn rows<M: Executor>(layer: &Layer<M>, head: usize) -> Vec<f32> {
    let view = layer.heads[head].cache.view();
    view.keys().to_array(0..layer.len()).into_iter().collect()
}

/// The first KV head could have grown; it must not where the second cannot.
#[test]
fn heads_grow_together_or_not_at_all() {
    let config = PipelineConfig { dense_layers: vec![0.into()], ..PipelineConfig::default() };
    let mut layer = start(config, SHAPE, &Options::default(), Reference);
    let keys = Array3::from_shape_fn((2, 5, 4), |(i, j, k)| (i * 20 + j * 4 + k) as f32);
    let values = Array3::zeros((2, 5, 3));
    append(&mut layer, &keys, &values).unwrap();

    let too_large = ChunkSizes::new(1 << 50, 50);
    let stuck = Cache::with_chunks(Storage::F32, 4, 3, too_large);
    let whole = std::mem::replace(&mut layer.heads[1].cache, stuck);
    let error = append(&mut layer, &keys, &values).unwrap_err();
    assert!(matches!(error, Error::Memory { .. }), "{error}");
    assert_eq!(layer.len(), 5);
    assert_eq!(rows(&layer, 0), (0..20).map(|x| x as f32).collect::<Vec<_>>());

    layer.heads[1].cache = whole;
    append(&mut layer, &keys, &values).unwrap();
    assert_eq!(layer.len(), 10);
    assert_eq!(rows(&layer, 1)[20..], rows(&layer, 1)[..20]);
}

/// The reference, which fails after some calls.
struct Mortal {
    calls: usize,
}

impl Mortal {
    fn live(&mut self) -> Result<()> {
        self.calls = self.calls.checked_sub(1).ok_or(Error::Memory { bytes: 7 })?;
        Ok(())
    }
}

impl Executor for Mortal {
    const FALLIBLE: bool = true;

    fn append(&mut self, _: usize, _: RowsView<'_>, _: RowsView<'_>) -> Result<()> {
        self.live()
    }

    fn answer(&mut self, heads: Vec<HeadInput<'_>>, workers: &Workers) -> Result<Vec<HeadOutput>> {
        self.live()?;
        Reference.answer(heads, workers)
    }

    fn fork(&self, _: usize) -> Result<Self> {
        Err(Error::Memory { bytes: 7 })
    }
}

/// What a machine refuses has not happened: no token has come, no step was taken.
#[test]
fn a_machine_that_fails_changes_nothing() {
    let (config, options) = (PipelineConfig::default(), Options::default());
    let mut layer = start(config, SHAPE, &options, Mortal { calls: 2 });
    let (keys, values) = (Array3::ones((2, 5, 4)), Array3::ones((2, 5, 3)));
    let queries = Array3::ones((2, 3, 4));
    append(&mut layer, &keys, &values).unwrap();

    let error = layer.attend(queries.view(), None).unwrap_err();
    assert!(matches!(error, Error::Memory { bytes: 7 }), "{error}");
    assert_eq!(layer.step, 0, "the first of three queries was answered");
    append(&mut layer, &keys, &values).unwrap_err();
    assert_eq!((layer.len(), rows(&layer, 1).len()), (5, 20));
    assert!(layer.fork(None).is_err());

    layer.executor.calls = 3;
    layer.attend(queries.view(), None).unwrap();
    assert_eq!(layer.step, 3);
}

/// Takes four tokens, and records what it is shown.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Witness {
    #[serde(skip)]
    shown: Arc<Mutex<Vec<Shown>>>,
}

#[derive(Clone, Debug, PartialEq)]
enum Shown {
    Token { token: usize, key: Vec<f32> },
    PromptQueries { queries: Vec<f32>, tokens: usize },
}

#[typetag::serde(name = "witness")]
impl SelectorConfig for Witness {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }
}

impl Witness {
    fn take(&self) -> Vec<Shown> {
        std::mem::take(&mut self.shown.lock().unwrap())
    }
}

impl Selector for Witness {
    fn append(&mut self, new: &NewTokens<'_>) {
        let keys = new.keys.to_array(0..new.keys.len());
        let tokens = (new.first..).zip(keys.outer_iter());
        let shown = tokens.map(|(token, key)| Shown::Token { token, key: key.to_vec() });
        self.shown.lock().unwrap().extend(shown);
    }

    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        let queries = prompt.queries.iter().copied().collect();
        self.shown
            .lock()
            .unwrap()
            .push(Shown::PromptQueries { queries, tokens: prompt.keys.len() });
    }

    fn select(&self, _: &Row<'_>, picks: &mut Picks) {
        picks.take_range(0..4);
    }
}

/// The reference, with another time at which selectors index tokens.
#[derive(Clone, Copy, Debug)]
struct Timed(Indexing);

impl Executor for Timed {
    const FALLIBLE: bool = false;

    fn indexing(&self) -> Indexing {
        self.0
    }

    fn answer(&mut self, heads: Vec<HeadInput<'_>>, workers: &Workers) -> Result<Vec<HeadOutput>> {
        Reference.answer(heads, workers)
    }

    fn fork(&self, _: usize) -> Result<Self> {
        Ok(*self)
    }
}

const EAGER: Timed = Timed(Indexing::Eager);

/// A prompt in two parts, its last queries, tokens and queries after it; what the selectors of the one
/// KV head were shown after each, and again after a fork has done the last two as well.
fn shown_by<M: Executor>(executor: M, visible: [usize; 2]) -> Vec<Vec<Shown>> {
    let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: 2, value_dim: 1 };
    let witness = Witness::default();
    let selectors: Vec<Box<dyn SelectorConfig>> = vec![Box::new(witness.clone())];
    let config = PipelineConfig { selectors, ..PipelineConfig::default() };
    let options = Options { scale: Some(2.0), ..Options::default() };
    let mut layer = start(config, shape, &options, executor);
    let some = |count, dim| Array3::from_shape_fn((1, count, dim), |(_, t, i)| (t * 3 + i) as f32);
    let append = |layer: &mut dyn Attention, new| {
        layer.append(some(new, 2).view(), some(new, 1).view()).unwrap();
        witness.take()
    };
    let attend = |layer: &mut dyn Attention, visible| {
        layer.attend(some(1, 2).view(), Some(&[visible])).unwrap();
        witness.take()
    };
    let mut shown = vec![append(&mut layer, 5), append(&mut layer, 2)];
    layer.observe(some(3, 2).view()).unwrap();
    shown.push(witness.take());
    shown.push(append(&mut layer, 1));
    shown.push(attend(&mut layer, visible[0]));
    let mut fork = layer.fork(None).unwrap();
    for layer in [&mut layer as &mut dyn Attention, &mut *fork] {
        shown.push(append(layer, 1));
        shown.push(attend(layer, visible[1]));
    }
    shown
}

/// Selectors are shown everything as it comes, or nothing if the executor does without their picks.
#[test]
fn selectors_are_shown_tokens_and_prompts_in_order() {
    let shown = shown_by(EAGER, [7, 8]);
    let events: Vec<usize> = shown.iter().map(Vec::len).collect();
    assert_eq!(events, [5, 2, 1, 1, 0, 1, 0, 1, 0]);
    assert_eq!(shown[1][1], Shown::Token { token: 6, key: vec![3.0, 4.0] });
    let queries = vec![0.0, 2.0, 6.0, 8.0, 12.0, 14.0];
    assert_eq!(shown[2], [Shown::PromptQueries { queries, tokens: 7 }]);

    let never = shown_by(Timed(Indexing::Never), [7, 8]);
    assert!(never.iter().all(Vec::is_empty), "{never:?}");
}

/// The reference shows its selectors what a row sees when the row comes, and nothing else.
#[test]
fn selectors_of_the_reference_are_shown_what_rows_see() {
    let at_once = shown_by(EAGER, [7, 8]).concat();
    let as_seen = shown_by(Reference, [7, 8]);
    let events: Vec<usize> = as_seen.iter().map(Vec::len).collect();
    assert_eq!(events, [0, 0, 0, 0, 8, 0, 1, 0, 1]);
    assert_eq!(as_seen.concat()[..9], at_once[..9], "and the ninth token never");
    assert_eq!(as_seen[8], as_seen[6], "the fork");
}

/// Takes half as many tokens as it has been shown, seen by a row or not.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Leaking {
    shown: usize,
}

#[typetag::serde(name = "leaking")]
impl SelectorConfig for Leaking {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }
}

impl Selector for Leaking {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.shown += new.keys.len();
    }

    fn select(&self, _: &Row<'_>, picks: &mut Picks) {
        picks.take_range(0..self.shown / 2);
    }
}

/// Several queries of growing limits are decoding one by one on the reference, whatever a selector
/// does with tokens that it should not know.
#[test]
fn a_leaking_selector_is_found_by_the_reference() {
    fn out<M: Executor>(executor: M, at_once: bool) -> Array3<f32> {
        let selectors: Vec<Box<dyn SelectorConfig>> = vec![Box::new(Leaking::default())];
        let config = PipelineConfig { selectors, ..PipelineConfig::default() };
        let mut layer = start(config, SHAPE, &Options::default(), executor);
        let some = |tokens: std::ops::Range<usize>, dim| {
            Array3::from_shape_fn((2, tokens.len(), dim), |(h, t, i)| {
                ((h + 7 * (tokens.start + t) + 3 * i) % 11) as f32 - 5.0
            })
        };
        let queries = some(0..3, 4);
        if at_once {
            append(&mut layer, &some(0..20, 4), &some(0..20, 3)).unwrap();
            return layer.attend(queries.view(), Some(&[10, 15, 20])).unwrap().out;
        }
        let mut out = Array3::zeros((2, 3, 3));
        for (t, tokens) in [0..10, 10..15, 15..20].into_iter().enumerate() {
            append(&mut layer, &some(tokens.clone(), 4), &some(tokens, 3)).unwrap();
            let one = layer.attend(queries.slice(s![.., t..=t, ..]), None).unwrap().out;
            out.slice_mut(s![.., t..=t, ..]).assign(&one);
        }
        out
    }
    let decoded = out(EAGER, false);
    assert_eq!(out(Reference, false), decoded);
    assert_eq!(out(Reference, true), decoded);
    assert_ne!(out(EAGER, true), decoded);
}

/// Takes the special tokens; needs to know which they are.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Specials {
    special: Vec<bool>,
}

#[typetag::serde(name = "specials")]
impl SelectorConfig for Specials {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }

    fn needs_classes(&self) -> bool {
        true
    }
}

impl Selector for Specials {
    fn append(&mut self, new: &NewTokens<'_>) {
        assert_eq!(self.special.len(), new.first);
        let classes = new.classes.expect("classes are needed");
        self.special.extend(classes.iter().map(|&class| class == TokenClass::Special));
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        picks.take_all((0..row.visible()).filter(|&token| self.special[token]));
    }
}

/// A layer of such a pipeline, or of a dense one.
fn classed<M: Executor>(executor: M, dense: bool) -> Layer<M> {
    let selectors: Vec<Box<dyn SelectorConfig>> = vec![Box::new(Specials::default())];
    let dense_layers = if dense { vec![0.into()] } else { Vec::new() };
    let config = PipelineConfig { selectors, dense_layers, ..PipelineConfig::default() };
    let options =
        Options { return_selection: true, fall_back: FallBack::Never, ..Options::default() };
    start(config, SHAPE, &options, executor)
}

fn append_classed(layer: &mut dyn Attention, numbers: &[u8]) -> Result<()> {
    let classes: Vec<_> = numbers.iter().map(|&n| TokenClass::from_number(n).unwrap()).collect();
    let rows = |dim| Array3::<f32>::ones((2, numbers.len(), dim));
    layer.append_classed(rows(4).view(), rows(3).view(), &classes)
}

/// What both KV heads read.
fn read(layer: &mut dyn Attention) -> Vec<u32> {
    let queries = Array3::<f32>::ones((2, 1, 4));
    let selection = layer.attend(queries.view(), None).unwrap().selection.unwrap();
    assert_eq!(selection.row(0).0, selection.row(1).0);
    selection.row(0).0.to_vec()
}

/// Tokens are shown with their own classes: in parts, in forks, after tokens were taken back, sooner or later.
#[test]
fn tokens_are_shown_with_their_classes() {
    fn check<M: Executor>(executor: M) {
        let mut layer = classed(executor, false);
        append_classed(&mut layer, &[2, 0, 1, 2]).unwrap();
        append_classed(&mut layer, &[0, 2]).unwrap();
        let mut fork = layer.fork(None).unwrap();
        append_classed(&mut *fork, &[2, 0]).unwrap();
        append_classed(&mut layer, &[0, 2]).unwrap();
        assert_eq!((read(&mut layer), read(&mut *fork)), (vec![0, 3, 5, 7], vec![0, 3, 5, 6]));
        layer.truncate(4).unwrap();
        append_classed(&mut layer, &[2, 0]).unwrap();
        assert_eq!(read(&mut layer), [0, 3, 4]);
    }
    check(EAGER);
    check(Reference);
}

#[test]
fn tokens_without_the_classes_that_are_needed_are_refused() {
    let mut layer = classed(EAGER, false);
    let (keys, values) = (Array3::ones((2, 5, 4)), Array3::ones((2, 5, 3)));
    append_classed(&mut layer, &[2, 1]).unwrap();
    let error = append(&mut layer, &keys, &values).unwrap_err().to_string();
    assert!(error.starts_with("`specials` needs the class of each token"), "{error}");
    let few = layer.append_rows(
        keys.view().into(),
        values.view().into(),
        Some(&[TokenClass::Special; 4]),
    );
    let error = few.unwrap_err().to_string();
    assert_eq!(error, "classes: expected 5, one per token, got 4");
    assert_eq!(layer.len(), 2);
    append_classed(&mut layer, &[2]).unwrap();
    assert_eq!(read(&mut layer), [0, 2]);
    // Where everything is read, nobody needs them; they are not kept, but counted.
    let mut dense = classed(EAGER, true);
    append(&mut dense, &keys, &values).unwrap();
    append_classed(&mut dense, &[2, 1]).unwrap();
    assert_eq!((dense.len(), dense.classes.is_none()), (7, true));
    dense.append_rows(keys.view().into(), values.view().into(), Some(&[])).unwrap_err();
}
