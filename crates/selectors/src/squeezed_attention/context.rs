//! The clusters of a fixed context, in one level or two, and what of them passes for a query.

use vattention_core::ndarray::{Array2, ArrayView1, ArrayView2, Axis, s};
use vattention_core::{Picks, Site, Size, plugin::PromptQueries};

use super::{Bar, SqueezedAttentionSelector};
use vattention_index::clusters::{Centroids, Clusters, assign, k_means, order};

/// A context that was clustered.
#[derive(Clone, Debug)]
pub(super) struct Context {
    tokens: usize,
    fine: ClusterLevel,
    coarse: Option<Coarse>,
}

/// The level above, and how the one below lies in it.
#[derive(Clone, Debug)]
struct Coarse {
    level: ClusterLevel,
    /// The clusters within each coarse one, ascending.
    within: Vec<Vec<usize>>,
}

/// Clusters of the context's tokens, and what their scores must exceed.
#[derive(Clone, Debug)]
pub(super) struct ClusterLevel {
    pub(super) clusters: Clusters,
    pub(super) threshold: f64,
}

impl Context {
    /// Clusters a prompt of more than `window` tokens, but for the last `window`.
    pub(super) fn new(worker: &SqueezedAttentionSelector, prompt: &PromptQueries<'_>) -> Self {
        let SqueezedAttentionSelector { config, bar, coarse_bar, site, .. } = worker;
        let window = usize::from(config.window.get());
        let tokens = prompt.keys.len() - window;
        let keys = prompt.keys.to_array(0..tokens);
        let shown = prompt.queries.len_of(Axis(1));
        let observed = prompt.queries.slice(s![.., shown - window.min(shown).., ..]);
        let by_direction = |points: ArrayView2<'_, f32>, size: Size, which| {
            labels(
                directions(points).view(),
                size.to_tokens(tokens),
                config.iterations,
                site,
                which,
            )
        };
        let level = |labels: &[usize], bar: Bar| {
            let clusters = Clusters::new(keys.view(), labels);
            let threshold = match bar {
                Bar::Threshold(threshold) => threshold,
                Bar::Size(size) => {
                    let of_member = |queries: ArrayView2<'_, f32>| averages(&clusters, queries);
                    let averages = observed.outer_iter().map(of_member).collect();
                    exceeded_by(&clusters, size.to_tokens(tokens), averages)
                }
            };
            ClusterLevel { clusters, threshold }
        };
        let fine = level(&by_direction(keys.view(), config.clusters, 0), *bar);
        let coarse = config.coarse.zip(*coarse_bar).map(|(coarse, bar)| {
            let above = by_direction(fine.clusters.means(), coarse.clusters, 1);
            Coarse::new(&fine, &above, |labels| level(labels, bar))
        });
        Self { tokens, fine, coarse }
    }

    /// How many tokens it has.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// What the index takes.
    pub(super) fn bytes(&self) -> usize {
        let coarse = self.coarse.as_ref().map_or(0, |coarse| coarse.level.clusters.bytes());
        self.fine.clusters.bytes() + coarse
    }

    /// Takes the clusters that pass for a query, as far as they are visible.
    pub(super) fn take(&self, query: &[f32], picks: &mut Picks) {
        let found = match &self.coarse {
            None => RankedClusters::in_one_level(&self.fine, query),
            Some(coarse) => RankedClusters::in_two_levels(&self.fine, coarse, query),
        };
        let total = found.log_total;
        for (cluster, &logit) in found.logits.iter().enumerate() {
            if found.seen[cluster] && (f64::from(logit) - total).exp() > self.fine.threshold {
                let tokens = self.fine.clusters.members(cluster);
                picks.take_all(tokens.iter().map(|&token| token as usize));
            }
        }
        let visible = picks.visible();
        let scores = || self.fine.clusters.per_token(&found.logits, visible);
        picks.ranked_by(std::iter::once_with(scores).flatten());
    }

    #[cfg(test)]
    pub(super) fn levels(&self) -> (&ClusterLevel, Option<&ClusterLevel>) {
        (&self.fine, self.coarse.as_ref().map(|coarse| &coarse.level))
    }
}

impl Coarse {
    /// `above` are the coarse clusters of the fine ones, and `level` makes a level of the labels of tokens.
    fn new(fine: &ClusterLevel, above: &[usize], level: impl Fn(&[usize]) -> ClusterLevel) -> Self {
        let tokens = (0..fine.clusters.count()).map(|cluster| fine.clusters.members(cluster).len());
        let mut labels = vec![0; tokens.sum()];
        let mut within = vec![Vec::new(); above.iter().max().map_or(0, |most| most + 1)];
        for (cluster, &label) in above.iter().enumerate() {
            within[label].push(cluster);
            for &token in fine.clusters.members(cluster) {
                labels[token as usize] = label;
            }
        }
        within.retain(|clusters| !clusters.is_empty());
        Self { level: level(&labels), within }
    }
}

/// What was looked up for a query.
struct RankedClusters {
    /// The product of the query with each cluster's mean, or with that of the coarse cluster around it.
    logits: Vec<f32>,
    /// Whether each was looked at.
    seen: Vec<bool>,
    /// The logarithm of what a token's `exp(q·c)` is divided by.
    log_total: f64,
}

impl RankedClusters {
    fn in_one_level(fine: &ClusterLevel, query: &[f32]) -> Self {
        let logits = fine.clusters.logits(query);
        let log_total = log_total(&fine.clusters, &logits);
        Self { seen: vec![true; logits.len()], logits, log_total }
    }

    fn in_two_levels(fine: &ClusterLevel, coarse: &Coarse, query: &[f32]) -> Self {
        let above = &coarse.level.clusters;
        let of_coarse = above.logits(query);
        let bar = coarse.level.threshold;
        let total = log_total(above, &of_coarse);
        let count = fine.clusters.count();
        let (mut logits, mut seen) = (vec![0.0; count], vec![false; count]);
        let mut terms = Vec::new();
        for (group, (within, &logit)) in coarse.within.iter().zip(&of_coarse).enumerate() {
            if (f64::from(logit) - total).exp() > bar {
                for (&cluster, logit) in within.iter().zip(fine.clusters.logits_of(within, query)) {
                    (logits[cluster], seen[cluster]) = (logit, true);
                    terms.push((logit, fine.clusters.members(cluster).len()));
                }
            } else {
                for &cluster in within {
                    logits[cluster] = logit;
                }
                terms.push((logit, above.members(group).len()));
            }
        }
        Self { logits, seen, log_total: log_sum(&terms) }
    }
}

/// `ln Σ N exp(q·c)` of all clusters.
fn log_total(clusters: &Clusters, logits: &[f32]) -> f64 {
    let size = |cluster| clusters.members(cluster).len();
    let terms: Vec<_> = logits.iter().enumerate().map(|(c, &logit)| (logit, size(c))).collect();
    log_sum(&terms)
}

/// `ln Σ N exp(x)` of some `x` and `N`.
fn log_sum(terms: &[(f32, usize)]) -> f64 {
    let shift = f64::from(terms.iter().map(|term| term.0).fold(f32::MIN, f32::max));
    let weight = |&(x, count): &(f32, usize)| count as f64 * (f64::from(x) - shift).exp();
    shift + terms.iter().map(weight).sum::<f64>().ln()
}

/// The score of each cluster, on the average of some queries `[queries, head_dim]`.
fn averages(clusters: &Clusters, queries: ArrayView2<'_, f32>) -> Vec<f64> {
    let mut sums = vec![0.0; clusters.count()];
    for query in queries.rows() {
        let logits = clusters.logits(&query.to_vec());
        let total = log_total(clusters, &logits);
        for (sum, &logit) in sums.iter_mut().zip(&logits) {
            *sum += (f64::from(logit) - total).exp();
        }
    }
    sums.iter().map(|sum| sum / queries.nrows().max(1) as f64).collect()
}

/// What the best `tokens` tokens exceed on average, of scores `[members][clusters]`; 0 if there are no more.
fn exceeded_by(clusters: &Clusters, tokens: usize, averages: Vec<Vec<f64>>) -> f64 {
    let mut left = tokens * averages.len();
    let size = |cluster| clusters.members(cluster).len();
    let with_size = |scores: Vec<f64>| scores.into_iter().enumerate().map(|(c, x)| (x, size(c)));
    let mut falling: Vec<(f64, usize)> = averages.into_iter().flat_map(with_size).collect();
    falling.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (score, size) in falling {
        if size > left {
            return score;
        }
        left -= size;
    }
    0.0
}

/// The cluster of each of `points` `[points, dim]`, of at most `most`.
fn labels(
    points: ArrayView2<'_, f32>,
    most: usize,
    iterations: u16,
    site: &Site,
    which: usize,
) -> Vec<usize> {
    let order = order(points.nrows(), site, which);
    let centroids = k_means(points, most, iterations, order);
    assign(points, &Centroids::new(centroids.view()))
}

/// Points `[points, dim]` of norm 1 in the same directions. What has no direction stays.
fn directions(points: ArrayView2<'_, f32>) -> Array2<f32> {
    let mut points = points.to_owned();
    for mut point in points.rows_mut() {
        let norm = norm(point.view());
        if norm > 0.0 {
            point.mapv_inplace(|x| (f64::from(x) / norm) as f32);
        }
    }
    points
}

fn norm(point: ArrayView1<'_, f32>) -> f64 {
    point.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt()
}
