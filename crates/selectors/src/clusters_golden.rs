//! Known outputs (`tests/golden/clusters.json`) of a numpy implementation of the papers'
//! descriptions, and the KV head for which they were computed.

use serde::Deserialize;
use vattention_core::ndarray::{Array3, ArrayView3};
use vattention_core::{
    NewTokens, Picks, Selector, SelectorConfig, Shape, Site, SoftmaxForm, Step, Tokens,
    plugin::PromptQueries,
};

use vattention_index::clusters::Clusters;

/// The head, and the cases of each selector that indexes a prompt's keys.
#[derive(Deserialize)]
pub(crate) struct Golden {
    pub(crate) head: GoldenHead,
    pub(crate) squeezed: Vec<serde_json::Value>,
    pub(crate) tactic: Vec<serde_json::Value>,
    pub(crate) retrieval: Vec<serde_json::Value>,
    pub(crate) cluster_kv: Vec<serde_json::Value>,
}

/// A prompt, its last queries, tokens that come later, and a query for each member of the group.
#[derive(Deserialize)]
pub(crate) struct GoldenHead {
    place: Place,
    prompt_tokens: usize,
    keys: Vec<Vec<f32>>,
    prompt: Vec<Vec<Vec<f32>>>,
    queries: Vec<Vec<f32>>,
}

#[derive(Deserialize)]
struct Place {
    seed: u64,
    layer: usize,
    kv_head: usize,
}

/// Case of one selector: its config, its clusters, and the picks of each member of the group.
#[derive(Deserialize)]
pub(crate) struct Case<C> {
    pub(crate) config: C,
    pub(crate) labels: Vec<usize>,
    pub(crate) picks: Vec<Vec<usize>>,
}

impl Golden {
    pub(crate) fn load() -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/clusters.json");
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }
}

impl GoldenHead {
    pub(crate) fn site(&self) -> Site {
        let Place { seed, layer, kv_head } = self.place;
        let dim = self.keys[0].len();
        let group = self.queries.len();
        let shape = Shape {
            query_heads: group * (kv_head + 1),
            kv_heads: kv_head + 1,
            head_dim: dim,
            value_dim: dim,
        };
        Site { seed, sequence: 5, layer, kv_head, shape }
    }

    /// Passes the prompt and the later tokens to a selector.
    pub(crate) fn feed(&self, selector: &mut dyn Selector) {
        let (site, keys) = (self.site(), self.keys.concat());
        let dim = site.shape.head_dim;
        let part = |first: usize, end: usize| {
            let keys = Tokens::new(&keys[first * dim..end * dim], end - first, dim);
            NewTokens { first, keys, values: keys, classes: None }
        };
        let begin = part(0, self.prompt_tokens);
        selector.append(&begin);
        let queries: Array3<f32> = Array3::from_shape_vec(
            (self.prompt.len(), self.prompt[0].len(), dim),
            self.prompt.concat().concat(),
        )
        .unwrap();
        let queries: ArrayView3<'_, f32> = queries.view();
        let NewTokens { keys, values, .. } = begin;
        selector.observe(&PromptQueries {
            site: &site,
            queries,
            keys,
            values,
            form: SoftmaxForm::default(),
        });
        selector.append(&part(self.prompt_tokens, self.keys.len()));
    }

    /// Returns the picks of each member, without the tokens that were `taken` before.
    pub(crate) fn picks(&self, selector: &dyn Selector, taken: &[usize]) -> Vec<Vec<usize>> {
        let (site, keys, queries) = (self.site(), self.keys.concat(), self.queries.concat());
        let visible = self.keys.len();
        let keys = Tokens::new(&keys, visible, site.shape.head_dim);
        let step = Step::new(&site, &queries, keys, keys);
        let picked = |row| {
            let mut picks = Picks::new(visible);
            picks.take_all(taken.iter().copied());
            selector.select(&row, &mut picks);
            picks.iter().filter(|token| !taken.contains(token)).collect()
        };
        step.rows().into_iter().map(picked).collect()
    }

    /// Builds a selector from its config, as plug-ins are built, and passes all tokens to it.
    pub(crate) fn build(&self, config: &dyn SelectorConfig) -> Box<dyn Selector> {
        let mut selector = config.build(&self.site()).unwrap();
        self.feed(&mut *selector);
        selector
    }
}

/// Returns the number of each token's cluster.
pub(crate) fn labels(clusters: &Clusters) -> Vec<usize> {
    let mut labels = Vec::new();
    for cluster in 0..clusters.count() {
        for &token in clusters.members(cluster) {
            labels.resize(labels.len().max(token as usize + 1), usize::MAX);
            labels[token as usize] = cluster;
        }
    }
    labels
}
