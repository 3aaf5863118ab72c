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

/// The allocation for the second KV head fails, so the first one must not grow either.
#[test]
fn all_heads_grow_or_no_head_does() {
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

/// The reference, which fails after a number of calls.
struct Failing {
    calls: usize,
}

impl Failing {
    fn count_call(&mut self) -> Result<()> {
        self.calls = self.calls.checked_sub(1).ok_or(Error::Memory { bytes: 7 })?;
        Ok(())
    }
}

impl Executor for Failing {
    const FALLIBLE: bool = true;

    fn append(&mut self, _: usize, _: RowsView<'_>, _: RowsView<'_>) -> Result<()> {
        self.count_call()
    }

    fn execute(&mut self, heads: Vec<HeadInput<'_>>, workers: &Workers) -> Result<Vec<HeadOutput>> {
        self.count_call()?;
        Reference.execute(heads, workers)
    }

    fn fork(&self, _: usize) -> Result<Self> {
        Err(Error::Memory { bytes: 7 })
    }
}

/// After an error of the executor, neither tokens nor steps have been added.
#[test]
fn an_executor_that_fails_changes_nothing() {
    let (config, options) = (PipelineConfig::default(), Options::default());
    let mut layer = start(config, SHAPE, &options, Failing { calls: 2 });
    let (keys, values) = (Array3::ones((2, 5, 4)), Array3::ones((2, 5, 3)));
    let queries = Array3::ones((2, 3, 4));
    append(&mut layer, &keys, &values).unwrap();

    let error = layer.attend(queries.view(), None).unwrap_err();
    assert!(matches!(error, Error::Memory { bytes: 7 }), "{error}");
    assert_eq!(layer.step, 0, "the first of three queries succeeded");
    append(&mut layer, &keys, &values).unwrap_err();
    assert_eq!((layer.len(), rows(&layer, 1).len()), (5, 20));
    assert!(layer.fork(None).is_err());

    layer.executor.calls = 3;
    layer.attend(queries.view(), None).unwrap();
    assert_eq!(layer.step, 3);
}

/// Picks the first four tokens, and records the tokens and prompts that it indexes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Witness {
    #[serde(skip)]
    events: Arc<Mutex<Vec<Event>>>,
}

#[derive(Clone, Debug, PartialEq)]
enum Event {
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
    fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.events.lock().unwrap())
    }
}

impl Selector for Witness {
    fn append(&mut self, new: &NewTokens<'_>) {
        let keys = new.keys.to_array(0..new.keys.len());
        let tokens = (new.first..).zip(keys.outer_iter());
        let events = tokens.map(|(token, key)| Event::Token { token, key: key.to_vec() });
        self.events.lock().unwrap().extend(events);
    }

    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        let queries = prompt.queries.iter().copied().collect();
        let event = Event::PromptQueries { queries, tokens: prompt.keys.len() };
        self.events.lock().unwrap().push(event);
    }

    fn select(&self, _: &Row<'_>, picks: &mut Picks) {
        picks.take_range(0..4);
    }
}

/// The reference, with another time at which selectors index tokens.
#[derive(Clone, Copy, Debug)]
struct IndexingAt(Indexing);

impl Executor for IndexingAt {
    const FALLIBLE: bool = false;

    fn indexing(&self) -> Indexing {
        self.0
    }

    fn execute(&mut self, heads: Vec<HeadInput<'_>>, workers: &Workers) -> Result<Vec<HeadOutput>> {
        Reference.execute(heads, workers)
    }

    fn fork(&self, _: usize) -> Result<Self> {
        Ok(*self)
    }
}

const EAGER: IndexingAt = IndexingAt(Indexing::Eager);

/// Runs a prompt in two parts, its last queries, a token, a query, and in the layer and its fork
/// another token and query. Returns the selector's events during each of these calls.
fn record_events<M: Executor>(executor: M, visible: [usize; 2]) -> Vec<Vec<Event>> {
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
    let mut events = vec![append(&mut layer, 5), append(&mut layer, 2)];
    layer.observe(some(3, 2).view()).unwrap();
    events.push(witness.take());
    events.push(append(&mut layer, 1));
    events.push(attend(&mut layer, visible[0]));
    let mut fork = layer.fork(None).unwrap();
    for layer in [&mut layer as &mut dyn Attention, &mut *fork] {
        events.push(append(layer, 1));
        events.push(attend(layer, visible[1]));
    }
    events
}

/// Selectors index everything when it arrives, or nothing if the executor does not use their picks.
#[test]
fn selectors_index_tokens_and_prompts_in_order() {
    let events = record_events(EAGER, [7, 8]);
    let counts: Vec<usize> = events.iter().map(Vec::len).collect();
    assert_eq!(counts, [5, 2, 1, 1, 0, 1, 0, 1, 0]);
    assert_eq!(events[1][1], Event::Token { token: 6, key: vec![3.0, 4.0] });
    let queries = vec![0.0, 2.0, 6.0, 8.0, 12.0, 14.0];
    assert_eq!(events[2], [Event::PromptQueries { queries, tokens: 7 }]);

    let never = record_events(IndexingAt(Indexing::Never), [7, 8]);
    assert!(never.iter().all(Vec::is_empty), "{never:?}");
}

/// Selectors of the reference index the visible tokens at each step, and no others.
#[test]
fn selectors_of_the_reference_index_visible_tokens_only() {
    let eager = record_events(EAGER, [7, 8]).concat();
    let lazy = record_events(Reference, [7, 8]);
    let counts: Vec<usize> = lazy.iter().map(Vec::len).collect();
    assert_eq!(counts, [0, 0, 0, 0, 8, 0, 1, 0, 1]);
    assert_eq!(lazy.concat()[..9], eager[..9], "the ninth token is never indexed");
    assert_eq!(lazy[8], lazy[6], "the fork");
}

/// Picks half of all tokens that it has indexed, visible or not.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Leaking {
    indexed: usize,
}

#[typetag::serde(name = "leaking")]
impl SelectorConfig for Leaking {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }
}

impl Selector for Leaking {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.indexed += new.keys.len();
    }

    fn select(&self, _: &Row<'_>, picks: &mut Picks) {
        picks.take_range(0..self.indexed / 2);
    }
}

/// On the reference, several queries with growing limits give the same output as decoding token by
/// token, even with a selector that uses tokens beyond the limit. With eager
/// indexing, the outputs differ.
#[test]
fn the_reference_reveals_a_leaking_selector() {
    fn out<M: Executor>(executor: M, in_one_call: bool) -> Array3<f32> {
        let selectors: Vec<Box<dyn SelectorConfig>> = vec![Box::new(Leaking::default())];
        let config = PipelineConfig { selectors, ..PipelineConfig::default() };
        let mut layer = start(config, SHAPE, &Options::default(), executor);
        let some = |tokens: std::ops::Range<usize>, dim| {
            Array3::from_shape_fn((2, tokens.len(), dim), |(h, t, i)| {
                ((h + 7 * (tokens.start + t) + 3 * i) % 11) as f32 - 5.0
            })
        };
        let queries = some(0..3, 4);
        if in_one_call {
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

/// Picks the special tokens, for which it needs token classes.
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

/// Layer whose pipeline picks special tokens, or is dense.
fn start_specials<M: Executor>(executor: M, dense: bool) -> Layer<M> {
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

/// Tokens read by both KV heads.
fn read(layer: &mut dyn Attention) -> Vec<u32> {
    let queries = Array3::<f32>::ones((2, 1, 4));
    let selection = layer.attend(queries.view(), None).unwrap().selection.unwrap();
    assert_eq!(selection.row(0).0, selection.row(1).0);
    selection.row(0).0.to_vec()
}

/// Selectors get each token with its class: if tokens arrive in parts, in forks, after truncations,
/// indexed eagerly and lazily.
#[test]
fn tokens_are_indexed_with_their_classes() {
    fn check<M: Executor>(executor: M) {
        let mut layer = start_specials(executor, false);
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
fn tokens_without_needed_classes_are_an_error() {
    let mut layer = start_specials(EAGER, false);
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
    // A dense layer does not need classes and does not store them, but checks their number.
    let mut dense = start_specials(EAGER, true);
    append(&mut dense, &keys, &values).unwrap();
    append_classed(&mut dense, &[2, 1]).unwrap();
    assert_eq!((dense.len(), dense.classes.is_none()), (7, true));
    dense.append_rows(keys.view().into(), values.view().into(), Some(&[])).unwrap_err();
}
