//! Synthetic heads of known difficulty.
//!
//! Each KV head is made on its own: segments of text, each with a topic; keys that follow the
//! topic, with short-range noise and rotary positions; and a base query at the last position.
//! Sinks, heavy hitters and needles are planted by moving their keys along the base query until its
//! scores are those that the kind asks for. Keys move only along the slower half of the rotary
//! pairs, which hardly turn from one position to the next, so that queries at other positions find
//! what was planted too.
//!
//! A query head scales each number of the base query by `1 + 0.3 g` and each of its queries once
//! more by `1 + 0.1 g`, `g` standard normal. Every query is then given the length at which its
//! scores on the keys as they were before planting have the kind's standard deviation; last, its
//! slower half is corrected until planted keys gain as much as they do for the base query, which
//! changes the standard deviation by a few percent. What a planted key scored before still differs
//! from query to query, so shares of the mass hold on average at the last position, and only
//! roughly for one query or further back.

use std::str::FromStr;

use ndarray::{Array1, Array2, Array3, ArrayViewMut1, ArrayViewMut2, Axis, s};
use ndarray_rand::RandomExt;
use ndarray_rand::rand::{Rng, SeedableRng, seq::index};
use ndarray_rand::rand_distr::{LogNormal, StandardNormal, StudentT, Uniform};
use rand_chacha::ChaCha8Rng;
use vattention_core::Shape;

use crate::{Error, Layer, Result};

const SINKS: usize = 4;
/// Tokens at either end among which nothing but sinks is planted.
const MARGIN: usize = 200;
const FEWEST_TOKENS: usize = 512;
const MOST_TOKENS: usize = 1 << 24;
/// The rotary pairs that oscillate in [`HeadKind::Osc`].
const OSCILLATING: std::ops::Range<usize> = 10..18;
const ROPE_BASE: f64 = 500_000.0;

/// What a head attends to, and so how hard it is to approximate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// Spread over everything.
    Diffuse,
    /// Sinks, some heavy hitters and a wide rest.
    Typical,
    /// Sinks, heavy hitters and a skewed rest.
    Sharp,
    /// No sinks; a few tokens of a very skewed rest.
    Vsharp,
    /// Mostly recent tokens.
    Local,
    /// Scores that oscillate with the distance.
    Osc,
    /// 32 tokens hold about half of the mass.
    Needle,
    /// A rest with heavy tails.
    Heavy,
}

/// A kind in numbers.
struct Recipe {
    /// The standard deviation of the scores before planting.
    bulk: f64,
    /// How strongly keys follow their segment's topic.
    topic: f64,
    /// Planted heavy hitters.
    hitters: usize,
    /// The sinks' share of the mass.
    sinks: f64,
}

impl HeadKind {
    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::Diffuse,
        Self::Typical,
        Self::Sharp,
        Self::Vsharp,
        Self::Local,
        Self::Osc,
        Self::Needle,
        Self::Heavy,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Diffuse => "diffuse",
            Self::Typical => "typical",
            Self::Sharp => "sharp",
            Self::Vsharp => "vsharp",
            Self::Local => "local",
            Self::Osc => "osc",
            Self::Needle => "needle",
            Self::Heavy => "heavy",
        }
    }

    fn recipe(self) -> Recipe {
        let (bulk, topic, hitters, sinks) = match self {
            Self::Diffuse => (0.6, 0.5, 8, 0.1),
            Self::Typical => (1.0, 0.7, 24, 0.4),
            Self::Sharp => (1.8, 0.7, 24, 0.3),
            Self::Vsharp => (3.0, 0.7, 8, 0.0),
            Self::Local => (0.8, 0.7, 16, 0.2),
            Self::Osc => (1.5, 0.2, 8, 0.2),
            Self::Needle => (0.6, 0.7, 32, 0.1),
            Self::Heavy => (0.8, 0.7, 0, 0.2),
        };
        Recipe { bulk, topic, hitters, sinks }
    }
}

impl FromStr for HeadKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            format!("unknown kind `{name}`; expected one of {known}")
        })
    }
}

/// What to make.
#[derive(Clone, Debug)]
pub struct Synth {
    /// What the heads attend to.
    pub kind: HeadKind,
    /// Tokens in the cache.
    pub tokens: usize,
    /// Heads and their dimensions.
    pub shape: Shape,
    /// Queries per query head, at the last positions; each sees the tokens up to its own.
    pub queries: usize,
    /// Prompt queries per query head, at the last positions; may be 0.
    pub prompt: usize,
    /// The standard deviation of the mean value's numbers; 0.7 is usual.
    pub value_mean: f64,
    /// Equal seeds make equal layers; the cache depends on neither `queries` nor `prompt`.
    pub seed: u64,
}

impl Synth {
    /// Makes the layer.
    ///
    /// # Errors
    /// [`Error::Setting`] naming the option that is out of range.
    pub fn layer(&self) -> Result<Layer> {
        self.check()?;
        let Shape { query_heads, kv_heads, head_dim, value_dim } = self.shape;
        let queries = |count| Array3::zeros((query_heads, count, head_dim));
        let first = self.tokens - self.queries + 1;
        let mut layer = Layer {
            queries: queries(self.queries),
            keys: Array3::zeros((kv_heads, self.tokens, head_dim)),
            values: Array3::zeros((kv_heads, self.tokens, value_dim)),
            visible: Some((first..=self.tokens).collect()),
            prompt: (self.prompt > 0).then(|| queries(self.prompt)),
        };
        for kv_head in 0..kv_heads {
            Maker::new(self, kv_head).fill(&mut layer, kv_head);
        }
        Ok(layer)
    }

    fn check(&self) -> Result<()> {
        self.check_shape()?;
        let within = |option, value: usize, least: usize, most: usize| {
            let reason = format!("{value}; expected {least} to {most}");
            if (least..=most).contains(&value) { Ok(()) } else { refuse(option, reason) }
        };
        within("--tokens", self.tokens, FEWEST_TOKENS, MOST_TOKENS)?;
        within("--queries", self.queries, 1, self.tokens)?;
        within("--prompt", self.prompt, 0, self.tokens)?;
        if !(0.0..=1000.0).contains(&self.value_mean) {
            return refuse("--value-mean", format!("{}; expected 0 to 1000", self.value_mean));
        }
        Ok(())
    }

    fn check_shape(&self) -> Result<()> {
        if let Err(error) = self.shape.check() {
            let text = error.to_string();
            let at_fault = |(name, _): &(&str, _)| text.starts_with(name);
            let options = [
                ("kv_heads", "--kv-heads"),
                ("head_dim", "--head-dim"),
                ("value_dim", "--value-dim"),
            ];
            let option = options.into_iter().find(at_fault).map_or("--query-heads", |(_, o)| o);
            return refuse(option, text);
        }
        let dim = self.shape.head_dim;
        if !dim.is_multiple_of(2) {
            let reason = format!("{dim}; expected an even number, for rotary pairs");
            return refuse("--head-dim", reason);
        }
        let least = 2 * OSCILLATING.end;
        if self.kind == HeadKind::Osc && dim < least {
            let reason = format!("{dim}; expected at least {least} for kind `osc`");
            return refuse("--head-dim", reason);
        }
        Ok(())
    }
}

fn refuse<T>(option: &'static str, reason: String) -> Result<T> {
    Err(Error::Setting { option, reason })
}

/// Makes one KV head and the query heads that share it.
struct Maker<'a> {
    synth: &'a Synth,
    recipe: Recipe,
    /// Radians per position, for each rotary pair.
    frequencies: Vec<f64>,
    rng: ChaCha8Rng,
}

/// What keys and values have in common.
struct Text {
    /// Each token's segment.
    segments: Vec<usize>,
    /// `[tokens, head_dim]`, correlated over a few tokens.
    noise: Array2<f64>,
}

impl Text {
    fn segment_count(&self) -> usize {
        self.segments.last().map_or(0, |last| last + 1)
    }
}

impl<'a> Maker<'a> {
    fn new(synth: &'a Synth, kv_head: usize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(synth.seed);
        rng.set_stream(kv_head as u64);
        let pairs = synth.shape.head_dim / 2;
        let frequency = |pair| ROPE_BASE.powf(-(pair as f64) / pairs as f64);
        let frequencies = (0..pairs).map(frequency).collect();
        Self { synth, recipe: synth.kind.recipe(), frequencies, rng }
    }

    fn fill(&mut self, layer: &mut Layer, kv_head: usize) {
        let text = self.text();
        let (mut keys, direction) = self.keys(&text);
        let covariance = covariance(&keys);
        let base = self.query(&direction, self.synth.tokens - 1, &covariance);
        let slow = self.slow_part(&base);
        let planted = self.plant(&mut keys, &base, &slow);
        let values = self.values(&text, &planted);
        layer.keys.index_axis_mut(Axis(0), kv_head).assign(&keys.mapv(|x| x as f32));
        layer.values.index_axis_mut(Axis(0), kv_head).assign(&values.mapv(|x| x as f32));
        let group = self.synth.shape.group();
        for head in kv_head * group..(kv_head + 1) * group {
            let direction = self.near(&direction, 0.3);
            for queries in [Some(&mut layer.queries), layer.prompt.as_mut()].into_iter().flatten() {
                let queries = queries.index_axis_mut(Axis(0), head);
                self.fill_queries(queries, &direction, &covariance, &slow);
            }
        }
    }

    /// Fills in the queries of one query head, at the last positions, not scaled.
    fn fill_queries(
        &mut self,
        mut queries: ArrayViewMut2<'_, f32>,
        direction: &Array1<f64>,
        covariance: &Array2<f64>,
        slow: &Array1<f64>,
    ) {
        let first = self.synth.tokens - queries.nrows();
        let scale = (self.synth.shape.head_dim as f64).sqrt();
        for (i, mut row) in queries.rows_mut().into_iter().enumerate() {
            let direction = self.near(direction, 0.1);
            let mut query = self.query(&direction, first + i, covariance);
            let lack = 1.0 - query.dot(slow) / slow.dot(slow);
            query.scaled_add(lack, slow);
            row.assign(&query.mapv(|x| (x * scale) as f32));
        }
    }

    fn normals(&mut self, rows: usize, columns: usize) -> Array2<f64> {
        Array2::random_using((rows, columns), StandardNormal, &mut self.rng)
    }

    fn normal(&mut self, len: usize) -> Array1<f64> {
        Array1::random_using(len, StandardNormal, &mut self.rng)
    }

    /// A direction that differs from another by `amount` of each number.
    fn near(&mut self, direction: &Array1<f64>, amount: f64) -> Array1<f64> {
        direction * (self.normal(direction.len()) * amount + 1.0)
    }

    fn text(&mut self) -> Text {
        let Synth { tokens, shape, .. } = *self.synth;
        let mut segment = 0;
        let mut next = |_| {
            segment += usize::from(self.rng.random_bool(1.0 / 150.0));
            segment
        };
        let segments = (0..tokens).map(&mut next).collect();
        let mut noise = self.normals(tokens, shape.head_dim);
        for i in 1..tokens {
            let (before, mut row) = noise.multi_slice_mut((s![i - 1, ..], s![i, ..]));
            row.zip_mut_with(&before, |x, before| *x = 0.6 * before + 0.8 * *x);
        }
        Text { segments, noise }
    }

    /// The keys before planting, and the base query's direction before it is rotated.
    fn keys(&mut self, text: &Text) -> (Array2<f64>, Array1<f64>) {
        let dim = self.synth.shape.head_dim;
        let topics = self.normals(text.segment_count(), dim) * self.recipe.topic;
        let mut keys = topics.select(Axis(0), &text.segments) + &text.noise;
        let (mean, direction) = if self.synth.kind == HeadKind::Osc {
            keys *= 0.15;
            self.oscillating()
        } else {
            let mean = self.normal(dim) * 1.5;
            (mean.clone(), self.normal(dim) + mean * 0.4)
        };
        keys += &mean;
        for (position, row) in keys.rows_mut().into_iter().enumerate() {
            self.rotate(row, position);
        }
        (keys, direction)
    }

    /// A mean key and a query whose product is large in a few pairs.
    fn oscillating(&mut self) -> (Array1<f64>, Array1<f64>) {
        let dim = self.synth.shape.head_dim;
        let mut mean = Array1::zeros(dim);
        let mut direction = self.normal(dim) * 0.3;
        for pair in OSCILLATING {
            mean[pair] = 3.0;
            mean[dim / 2 + pair] = 1.0;
            direction[pair] += 2.0;
        }
        (mean, direction)
    }

    fn rotate(&self, mut row: ArrayViewMut1<'_, f64>, position: usize) {
        let pairs = self.frequencies.len();
        for (i, frequency) in self.frequencies.iter().enumerate() {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            let (a, b) = (row[i], row[pairs + i]);
            row[i] = a * cos - b * sin;
            row[pairs + i] = a * sin + b * cos;
        }
    }

    /// A query at a position, scaled so that its scores are its products with the keys.
    fn query(
        &self,
        direction: &Array1<f64>,
        position: usize,
        covariance: &Array2<f64>,
    ) -> Array1<f64> {
        let mut query = direction.clone();
        self.rotate(query.view_mut(), position);
        let deviation = query.dot(&covariance.dot(&query)).sqrt();
        query * (self.recipe.bulk / deviation)
    }

    /// Moves keys so that the base query finds what the kind asks for; returns the heavy hitters.
    fn plant(
        &mut self,
        keys: &mut Array2<f64>,
        base: &Array1<f64>,
        slow: &Array1<f64>,
    ) -> Vec<usize> {
        let before = keys.dot(base);
        let mut scores = before.clone();
        self.bend(&mut scores);
        let hitters = self.raise_hitters(&mut scores);
        self.raise_sinks(&mut scores);
        let along = slow / slow.dot(slow);
        for (mut key, moved) in keys.rows_mut().into_iter().zip(scores - before) {
            key.scaled_add(moved, &along);
        }
        hitters
    }

    /// A vector without its faster rotary pairs.
    fn slow_part(&self, vector: &Array1<f64>) -> Array1<f64> {
        let pairs = self.frequencies.len();
        let mut slow = vector.clone();
        slow.slice_mut(s![..pairs / 2]).fill(0.0);
        slow.slice_mut(s![pairs..pairs + pairs / 2]).fill(0.0);
        slow
    }

    /// What a kind does to the scores of all tokens.
    fn bend(&mut self, scores: &mut Array1<f64>) {
        let last = scores.len() - 1;
        match self.synth.kind {
            HeadKind::Local => {
                for (i, score) in scores.iter_mut().enumerate() {
                    *score -= (0.9 * ((last - i) as f64 / 64.0).ln_1p()).min(3.0);
                }
            }
            HeadKind::Heavy => {
                let tails = StudentT::new(4.0).expect("4 degrees of freedom are possible");
                *scores += &(Array1::random_using(last + 1, tails, &mut self.rng) * 0.6);
            }
            _ => {}
        }
    }

    fn raise_hitters(&mut self, scores: &mut Array1<f64>) -> Vec<usize> {
        let (tokens, count) = (scores.len(), self.recipe.hitters);
        let raised: Array1<f64> = if self.synth.kind == HeadKind::Needle {
            // Together as much as all others.
            self.normal(count) * 0.5 + (tokens as f64 / count as f64).ln()
        } else {
            let range = Uniform::new(2.5, 5.5).expect("the range is not empty");
            Array1::random_using(count, range, &mut self.rng)
        };
        let mean = (mass(scores.iter()) / tokens as f64).ln();
        let hitters = index::sample(&mut self.rng, tokens - 2 * MARGIN, count);
        let hitters: Vec<_> = hitters.into_iter().map(|i| i + MARGIN).collect();
        for (&i, raised) in hitters.iter().zip(raised) {
            scores[i] = mean + raised;
        }
        hitters
    }

    /// Gives the first tokens their share of the mass, most of it to the very first.
    fn raise_sinks(&self, scores: &mut Array1<f64>) {
        let share = self.recipe.sinks;
        if share == 0.0 {
            return;
        }
        let sinks = mass(scores.iter().skip(SINKS)) * share / (1.0 - share);
        for (score, part) in scores.iter_mut().zip([0.85, 0.1, 0.03, 0.02_f64]) {
            *score = (part * sinks).ln();
        }
    }

    /// A mean, a part for the segment, a part that the key explains, and noise; sinks have little.
    fn values(&mut self, text: &Text, hitters: &[usize]) -> Array2<f64> {
        let Synth { tokens, shape, value_mean, .. } = *self.synth;
        let (from, to) = (shape.head_dim, shape.value_dim);
        let mean = self.normal(to) * value_mean;
        let mixing = self.normals(from, to) / (from as f64).sqrt();
        let segments = self.normals(text.segment_count(), to) * 0.5;
        let mut values = segments.select(Axis(0), &text.segments) + &mean;
        values.scaled_add(0.35, &text.noise.dot(&mixing));
        let sizes = LogNormal::new(0.0, 0.3).expect("the deviation is finite");
        let sizes = Array2::random_using((tokens, 1), sizes, &mut self.rng);
        values += &(self.normals(tokens, to) * sizes * 0.6);
        let shared = self.normal(to) * 0.8;
        for &i in hitters {
            let mut value = values.row_mut(i);
            value += &shared;
        }
        values.slice_mut(s![..SINKS, ..]).mapv_inplace(|x| x * 0.05);
        values
    }
}

fn mass<'a>(scores: impl Iterator<Item = &'a f64>) -> f64 {
    scores.map(|score| score.exp()).sum()
}

fn covariance(rows: &Array2<f64>) -> Array2<f64> {
    let count = rows.nrows() as f64;
    let centred = rows - &(rows.sum_axis(Axis(0)) / count);
    centred.t().dot(&centred) / count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(kind: HeadKind) -> Synth {
        let shape = Shape { query_heads: 8, kv_heads: 2, head_dim: 64, value_dim: 48 };
        Synth { kind, tokens: 2048, shape, queries: 8, prompt: 0, value_mean: 0.7, seed: 0 }
    }

    /// Each query's scores over what it sees.
    fn scores(synth: &Synth) -> Vec<Vec<f64>> {
        let Layer { queries, keys, visible, .. } = synth.layer().unwrap();
        let scale = 1.0 / (synth.shape.head_dim as f32).sqrt();
        let mut all = Vec::new();
        for (head, rows) in queries.outer_iter().enumerate() {
            let keys = keys.index_axis(Axis(0), head / synth.shape.group());
            for (row, &seen) in rows.outer_iter().zip(visible.as_ref().unwrap()) {
                let scores = keys.slice(s![..seen, ..]).dot(&row) * scale;
                all.push(scores.iter().map(|&x| f64::from(x)).collect());
            }
        }
        all
    }

    /// The mean of a fact over all queries of four layers.
    fn mean(kind: HeadKind, fact: impl Fn(&[f64]) -> f64) -> f64 {
        let of = |seed| scores(&Synth { seed, ..small(kind) });
        let facts: Vec<f64> = (0..4).flat_map(of).map(|scores| fact(&scores)).collect();
        facts.iter().sum::<f64>() / facts.len() as f64
    }

    fn sorted(scores: &[f64]) -> Vec<f64> {
        let mut sorted = scores.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// The share of the mass in the `count` tokens that have most, without the sinks.
    fn top_share(scores: &[f64], count: usize) -> f64 {
        let sorted = sorted(&scores[SINKS..]);
        mass(sorted.iter().rev().take(count)) / mass(sorted.iter())
    }

    fn assert_near(kind: HeadKind, got: f64, expected: f64, factor: f64) {
        let name = kind.name();
        assert!(
            (expected / factor..=expected * factor).contains(&got),
            "{name}: {got}, {expected}"
        );
    }

    #[test]
    fn equal_seeds_make_equal_layers() {
        let synth = Synth { prompt: 3, ..small(HeadKind::Typical) };
        let layer = synth.layer().unwrap();
        assert_eq!(layer, synth.layer().unwrap());
        let other = Synth { seed: 1, ..synth.clone() }.layer().unwrap();
        assert_ne!(layer.keys, other.keys);
        assert_ne!(layer.keys.index_axis(Axis(0), 0), layer.keys.index_axis(Axis(0), 1));
        let longer = Synth { queries: 20, prompt: 0, ..synth }.layer().unwrap();
        assert_eq!((layer.keys, layer.values), (longer.keys, longer.values));
    }

    #[test]
    fn layers_have_the_shape_asked_for() {
        let synth = Synth { prompt: 600, tokens: 600, ..small(HeadKind::Local) };
        let layer = synth.layer().unwrap();
        assert_eq!(layer.queries.dim(), (8, 8, 64));
        assert_eq!(layer.keys.dim(), (2, 600, 64));
        assert_eq!(layer.values.dim(), (2, 600, 48));
        assert_eq!(layer.prompt.unwrap().dim(), (8, 600, 64));
        assert_eq!(layer.visible, Some((593..=600).collect()));
        let pair = Shape { query_heads: 1, kv_heads: 1, head_dim: 2, value_dim: 1 };
        let smallest = Synth { shape: pair, queries: 600, prompt: 0, ..synth }.layer().unwrap();
        assert_eq!(smallest.visible, Some((1..=600).collect()));
        assert_eq!(smallest.prompt, None);
    }

    #[test]
    fn numbers_fit_half_precision() {
        for kind in HeadKind::ALL {
            let synth = Synth { prompt: 64, value_mean: 1000.0, ..small(kind) };
            let layer = synth.layer().unwrap();
            let arrays = [layer.queries, layer.keys, layer.values, layer.prompt.unwrap()];
            let fits = |x: &f32| x.abs() <= 65504.0;
            assert!(arrays.iter().flatten().all(fits), "{}", kind.name());
        }
    }

    #[test]
    fn sinks_hold_their_share() {
        for kind in HeadKind::ALL {
            let share = mean(kind, |scores| mass(scores[..SINKS].iter()) / mass(scores.iter()));
            let expected = kind.recipe().sinks;
            if expected > 0.0 {
                assert_near(kind, share, expected, 1.6);
            } else {
                assert!(share < 0.01, "{}: {share}", kind.name());
            }
        }
    }

    #[test]
    fn scores_spread_as_the_kind_says() {
        for kind in HeadKind::ALL {
            // Without the highest 2%, among which is what was planted.
            let deviation = mean(kind, |scores| {
                let rest = &sorted(scores)[..scores.len() * 98 / 100];
                let mean = rest.iter().sum::<f64>() / rest.len() as f64;
                (rest.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / rest.len() as f64).sqrt()
            });
            let bent = matches!(kind, HeadKind::Local | HeadKind::Heavy);
            assert_near(kind, deviation, kind.recipe().bulk, if bent { 1.7 } else { 1.1 });
        }
    }

    #[test]
    fn few_tokens_hold_as_much_as_the_kind_says() {
        let top = |kind| mean(kind, |scores| top_share(scores, 32));
        assert_near(HeadKind::Needle, top(HeadKind::Needle), 0.5, 1.2);
        let kinds = [HeadKind::Diffuse, HeadKind::Typical, HeadKind::Sharp, HeadKind::Vsharp];
        let shares = kinds.map(top);
        assert!(shares.windows(2).all(|pair| pair[1] > 1.1 * pair[0]), "{shares:?}");
    }

    #[test]
    fn kinds_have_the_texture_of_their_names() {
        use HeadKind::{Diffuse, Heavy, Local, Osc, Sharp};
        let recent = |kind| mean(kind, |s| mass(s[s.len() - 64..].iter()) / mass(s.iter()));
        assert!(recent(Local) > 2.0 * recent(Diffuse));
        let tail = |kind| {
            mean(kind, |scores| {
                let sorted = sorted(scores);
                let below = |share| sorted[sorted.len() / 2] - sorted[sorted.len() / share];
                below(200) / below(6)
            })
        };
        assert!(tail(Heavy) > 1.1 * tail(Diffuse));
        let jumps = |kind| {
            mean(kind, |scores| {
                let jump = |pair: &[f64]| (pair[1] - pair[0]).abs();
                scores.windows(2).map(jump).sum::<f64>() / scores.len() as f64
            }) / kind.recipe().bulk
        };
        assert!(jumps(Osc) < 0.5 * jumps(Sharp));
    }

    #[test]
    fn names_are_read_back() {
        for kind in HeadKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        let error = "spiky".parse::<HeadKind>().unwrap_err();
        assert!(error.starts_with("unknown kind `spiky`; expected one of diffuse, typical"));
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        let good = small(HeadKind::Osc);
        let shaped = |change: fn(&mut Shape)| {
            let mut synth = good.clone();
            change(&mut synth.shape);
            synth
        };
        for (bad, expected) in [
            (Synth { tokens: 511, ..good.clone() }, "--tokens: 511; expected 512 to"),
            (Synth { tokens: 1 << 25, ..good.clone() }, "--tokens: 33554432; expected"),
            (Synth { queries: 0, ..good.clone() }, "--queries: 0; expected 1 to 2048"),
            (Synth { queries: 2049, ..good.clone() }, "--queries: 2049"),
            (Synth { prompt: 2049, ..good.clone() }, "--prompt: 2049; expected 0 to 2048"),
            (Synth { value_mean: f64::NAN, ..good.clone() }, "--value-mean: NaN"),
            (Synth { value_mean: 1e4, ..good.clone() }, "--value-mean: 10000; expected 0 to"),
            (shaped(|s| s.head_dim = 65), "--head-dim: 65; expected an even"),
            (shaped(|s| s.head_dim = 34), "--head-dim: 34; expected at least 36 for kind `osc`"),
            (shaped(|s| s.head_dim = 0), "--head-dim: head_dim"),
            (shaped(|s| s.value_dim = 0), "--value-dim: value_dim"),
            (shaped(|s| s.kv_heads = 0), "--kv-heads: kv_heads"),
            (shaped(|s| s.query_heads = 3), "--query-heads: query_heads"),
        ] {
            let error = bad.layer().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
