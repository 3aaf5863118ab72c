//! Heads to test selectors on. Four small values determine a head, so that failing cases shrink
//! well.

use ndarray_rand::rand::{Rng, SeedableRng};
use ndarray_rand::rand_distr::{Distribution, Normal, StandardNormal, StudentT};
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use vattention_core::ndarray::ArrayView3;
use vattention_core::{
    NewTokens, Shape, Site, SoftmaxForm, Step, TokenClass, Tokens, plugin::PromptQueries,
};

/// Keys, values and queries of one KV head with two query heads, and tokens of every class.
#[derive(Clone)]
pub struct Head {
    /// Number of tokens, at least 1.
    pub tokens: usize,
    /// Number of elements of a query, a key and a value.
    pub dim: usize,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Distribution of the keys.
    pub texture: Texture,
    site: Site,
    keys: Vec<f32>,
    values: Vec<f32>,
    queries: Vec<f32>,
    classes: Vec<TokenClass>,
    /// True if the head has a soft cap and attention sinks.
    formed: bool,
}

/// Distribution of the keys of a head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Texture {
    /// All keys are zero, so that all scores are equal.
    Flat,
    /// Independent Gaussians.
    Gaussian,
    /// Independent numbers with heavy tails (Student's t with 2.5 degrees of freedom).
    HeavyTail,
    /// Small Gaussians, and one key in the direction of the queries.
    Needle,
}

/// Number of query heads of a [`Head`].
const GROUP: usize = 2;

/// Form of the softmax of a head [with one](Head::with_form).
const FORM: SoftmaxForm<'static> =
    SoftmaxForm { soft_cap: Some(4.0), sink_logits: Some(&[2.0, -1.0]) };

impl Head {
    /// Creates the head that four values determine.
    pub fn new(tokens: usize, dim: usize, seed: u64, texture: Texture) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let queries: Vec<f32> = normals(GROUP * dim, &mut rng);
        let mut keys: Vec<f32> = match texture {
            Texture::Flat => vec![0.0; tokens * dim],
            Texture::Gaussian => normals(tokens * dim, &mut rng),
            Texture::HeavyTail => {
                let tail = StudentT::new(2.5).expect("2.5 degrees of freedom are possible");
                (0..tokens * dim).map(|_| tail.sample(&mut rng) as f32).collect()
            }
            Texture::Needle => {
                let small = Normal::new(0.0, 0.1).expect("the deviation is positive");
                (0..tokens * dim).map(|_| small.sample(&mut rng) as f32).collect()
            }
        };
        if texture == Texture::Needle {
            let needle = rng.random_range(0..tokens);
            let sum = |j: usize| (0..GROUP).map(|member| queries[member * dim + j]).sum::<f32>();
            let key = &mut keys[needle * dim..][..dim];
            key.iter_mut().enumerate().for_each(|(j, x)| *x = 4.0 * sum(j));
        }
        let values = normals(tokens * dim, &mut rng);
        let shape = Shape { query_heads: GROUP, kv_heads: 1, head_dim: dim, value_dim: dim };
        let site = Site { seed, sequence: 0, layer: 0, kv_head: 0, shape };
        let classes = (0..tokens).map(|_| class(rng.random_range(0..10))).collect();
        let formed = false;
        Self { tokens, dim, seed, texture, site, keys, values, queries, classes, formed }
    }

    /// Site of the head.
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// Returns the head with a soft cap and attention sinks.
    #[must_use]
    pub fn with_form(&self) -> Self {
        Self { formed: true, ..self.clone() }
    }

    fn form(&self) -> SoftmaxForm<'static> {
        if self.formed { FORM } else { SoftmaxForm::default() }
    }

    /// Returns a head of the first `tokens` tokens.
    #[must_use]
    pub fn first(&self, tokens: usize) -> Self {
        let mut head = self.clone();
        head.tokens = tokens;
        head.keys.truncate(tokens * self.dim);
        head.values.truncate(tokens * self.dim);
        head.classes.truncate(tokens);
        head
    }

    /// First step of the head, with `visible` tokens.
    pub fn step(&self, visible: usize) -> Step<'_> {
        let NewTokens { keys, values, .. } = self.part(0..self.tokens);
        let (site, queries) = (&self.site, &self.queries);
        Step { visible, form: self.form(), ..Step::new(site, queries, keys, values) }
    }

    /// Queries of the newest token, as those of a prompt that was processed elsewhere.
    pub fn prompt(&self) -> PromptQueries<'_> {
        let NewTokens { keys, values, .. } = self.part(0..self.tokens);
        let queries = ArrayView3::from_shape((GROUP, 1, self.dim), &self.queries)
            .expect("a head has a query for each member of its group");
        PromptQueries { site: &self.site, queries, keys, values, form: self.form() }
    }

    /// A range of tokens, in the form in which they are appended.
    pub fn part(&self, range: std::ops::Range<usize>) -> NewTokens<'_> {
        let span = range.start * self.dim..range.end * self.dim;
        NewTokens {
            first: range.start,
            keys: Tokens::new(&self.keys[span.clone()], range.len(), self.dim),
            values: Tokens::new(&self.values[span], range.len(), self.dim),
            classes: Some(&self.classes[range]),
        }
    }
}

/// Prints the four values that determine the head.
impl std::fmt::Debug for Head {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { tokens, dim, seed, texture, formed, .. } = self;
        let form = if *formed { ".with_form()" } else { "" };
        write!(f, "Head::new({tokens}, {dim}, {seed}, Texture::{texture:?}){form}")
    }
}

/// Class of a token for a random number below 10: one token of ten is special, two are punctuation.
fn class(random: u8) -> TokenClass {
    match random {
        0 => TokenClass::Special,
        1 | 2 => TokenClass::Punctuation,
        _ => TokenClass::Other,
    }
}

fn normals(count: usize, rng: &mut ChaCha8Rng) -> Vec<f32> {
    (0..count).map(|_| Distribution::<f32>::sample(&StandardNormal, rng)).collect()
}

/// Strategy of heads with 1 to `most` tokens, of every texture.
pub fn heads(most: usize) -> impl Strategy<Value = Head> {
    let textures = [Texture::Flat, Texture::Gaussian, Texture::HeavyTail, Texture::Needle];
    let dims = prop::sample::select(vec![2_usize, 8, 20]);
    (1..=most, dims, 0_u64..1000, prop::sample::select(textures.to_vec()))
        .prop_map(|(tokens, dim, seed, texture)| Head::new(tokens, dim, seed, texture))
}
