//! Clusters of a fixed context, in one level or two, and those that exceed the threshold for a
//! query.

use vattention_core::ndarray::{ArrayView2, Axis, s};
use vattention_core::{Picks, Row, Size, SoftmaxForm, plugin::PromptQueries};

use super::{SqueezedAttentionSelector, ThresholdRule};
use crate::direction_clusters::label_by_direction;
use vattention_index::clusters::Clusters;

/// Clustered context.
#[derive(Clone, Debug)]
pub(super) struct Context {
    tokens: usize,
    fine: ClusterLevel,
    coarse: Option<CoarseLevel>,
}

/// Coarse level, and the fine clusters in each of its clusters.
#[derive(Clone, Debug)]
struct CoarseLevel {
    level: ClusterLevel,
    /// Fine clusters in each coarse cluster, ascending.
    within: Vec<Vec<usize>>,
}

/// Clusters of the context's tokens, and the threshold that their scores must exceed.
#[derive(Clone, Debug)]
pub(super) struct ClusterLevel {
    pub(super) clusters: Clusters,
    pub(super) threshold: f64,
}

impl Context {
    /// Clusters a prompt of more than `window` tokens, except for the last `window`.
    pub(super) fn new(selector: &SqueezedAttentionSelector, prompt: &PromptQueries<'_>) -> Self {
        let SqueezedAttentionSelector { config, rule, coarse_rule, site, .. } = selector;
        let window = usize::from(config.window.get());
        let tokens = prompt.keys.len() - window;
        let keys = prompt.keys.to_array(0..tokens);
        let count = prompt.queries.len_of(Axis(1));
        let observed = prompt.queries.slice(s![.., count - window.min(count).., ..]);
        let cluster_by_direction = |points: ArrayView2<'_, f32>, size: Size, which| {
            label_by_direction(points, size.to_tokens(tokens), config.iterations, site, which)
        };
        let build_level = |labels: &[usize], rule: ThresholdRule| {
            let clusters = Clusters::new(keys.view(), labels);
            let threshold = match rule {
                ThresholdRule::Threshold(threshold) => threshold,
                ThresholdRule::Size(size) => {
                    let members = observed.outer_iter().enumerate();
                    let averages = members
                        .map(|(member, queries)| {
                            average_scores(&clusters, queries, prompt.form, member)
                        })
                        .collect();
                    find_threshold(&clusters, size.to_tokens(tokens), averages)
                }
            };
            ClusterLevel { clusters, threshold }
        };
        let fine = build_level(&cluster_by_direction(keys.view(), config.clusters, 0), *rule);
        let coarse = config.coarse.zip(*coarse_rule).map(|(coarse, rule)| {
            let above = cluster_by_direction(fine.clusters.means(), coarse.clusters, 1);
            CoarseLevel::new(&fine, &above, |labels| build_level(labels, rule))
        });
        Self { tokens, fine, coarse }
    }

    /// Number of tokens of the context.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Size of the index in bytes.
    pub(super) fn bytes(&self) -> usize {
        let coarse = self.coarse.as_ref().map_or(0, |coarse| coarse.level.clusters.bytes());
        self.fine.clusters.bytes() + coarse
    }

    /// Picks the visible tokens of the clusters whose scores exceed the threshold for a query.
    pub(super) fn take(&self, query: &HeadQuery<'_>, picks: &mut Picks) {
        let found = match &self.coarse {
            None => ClusterLogits::in_one_level(&self.fine, query),
            Some(coarse) => ClusterLogits::in_two_levels(&self.fine, coarse, query),
        };
        let total = found.log_total;
        for (cluster, &logit) in found.logits.iter().enumerate() {
            if found.scored[cluster] && (f64::from(logit) - total).exp() > self.fine.threshold {
                let tokens = self.fine.clusters.members(cluster);
                picks.take_all(tokens.iter().map(|&token| token as usize));
            }
        }
        let visible = picks.visible();
        let scores = || self.fine.clusters.per_token(&found.logits, visible);
        picks.set_scores(std::iter::once_with(scores).flatten());
    }

    #[cfg(test)]
    pub(super) fn levels(&self) -> (&ClusterLevel, Option<&ClusterLevel>) {
        (&self.fine, self.coarse.as_ref().map(|coarse| &coarse.level))
    }
}

impl CoarseLevel {
    /// Creates the coarse level. `above` has the coarse cluster of each fine cluster, and `level`
    /// creates a level from the labels of tokens.
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

/// Logits of the clusters for a query.
struct ClusterLogits {
    /// Product of the query with each cluster's mean, or with the mean of the coarse cluster around
    /// it if the cluster was not scored.
    logits: Vec<f32>,
    /// True for each cluster that was scored itself.
    scored: Vec<bool>,
    /// Logarithm of the denominator of a token's score.
    log_total: f64,
}

impl ClusterLogits {
    fn in_one_level(fine: &ClusterLevel, query: &HeadQuery<'_>) -> Self {
        let logits = query.logits(&fine.clusters);
        let log_total = query.log_total(&fine.clusters, &logits);
        Self { scored: vec![true; logits.len()], logits, log_total }
    }

    fn in_two_levels(fine: &ClusterLevel, coarse: &CoarseLevel, query: &HeadQuery<'_>) -> Self {
        let above = &coarse.level.clusters;
        let coarse_logits = query.logits(above);
        let total = query.log_total(above, &coarse_logits);
        let count = fine.clusters.count();
        let (mut logits, mut scored) = (vec![0.0; count], vec![false; count]);
        let mut terms = query.sink_term();
        for (group, (within, &logit)) in coarse.within.iter().zip(&coarse_logits).enumerate() {
            if (f64::from(logit) - total).exp() > coarse.level.threshold {
                for (&cluster, logit) in within.iter().zip(query.logits_of(&fine.clusters, within))
                {
                    (logits[cluster], scored[cluster]) = (logit, true);
                    terms.push((logit, fine.clusters.members(cluster).len()));
                }
            } else {
                for &cluster in within {
                    logits[cluster] = logit;
                }
                terms.push((logit, above.members(group).len()));
            }
        }
        Self { logits, scored, log_total: log_sum(&terms) }
    }
}

/// Query of one query head, and the form of its softmax.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadQuery<'a> {
    query: &'a [f32],
    form: SoftmaxForm<'a>,
    /// Index of the query head in its group.
    member: usize,
}

impl<'a> From<&Row<'a>> for HeadQuery<'a> {
    fn from(row: &Row<'a>) -> Self {
        Self { query: row.query(), form: row.form(), member: row.member() }
    }
}

impl HeadQuery<'_> {
    /// Logits of all clusters.
    fn logits(&self, clusters: &Clusters) -> Vec<f32> {
        let mut logits = clusters.logits(self.query);
        self.form.cap(&mut logits);
        logits
    }

    /// Logits of some clusters.
    fn logits_of(&self, clusters: &Clusters, which: &[usize]) -> Vec<f32> {
        let mut logits = clusters.logits_of(which, self.query);
        self.form.cap(&mut logits);
        logits
    }

    /// Logit of the attention sink with the count 1; empty without a sink.
    fn sink_term(&self) -> Vec<(f32, usize)> {
        self.form.sink_logit(self.member).map(|sink| (sink, 1)).into_iter().collect()
    }

    /// Computes `ln Σ N exp(q·c)` over all clusters and the attention sink.
    fn log_total(&self, clusters: &Clusters, logits: &[f32]) -> f64 {
        let size = |cluster| clusters.members(cluster).len();
        let mut terms = self.sink_term();
        terms.extend(logits.iter().enumerate().map(|(cluster, &logit)| (logit, size(cluster))));
        log_sum(&terms)
    }
}

/// Computes `ln Σ N exp(x)` over pairs of `x` and `N`.
fn log_sum(terms: &[(f32, usize)]) -> f64 {
    let shift = f64::from(terms.iter().map(|term| term.0).fold(f32::MIN, f32::max));
    let weight = |&(x, count): &(f32, usize)| count as f64 * (f64::from(x) - shift).exp();
    shift + terms.iter().map(weight).sum::<f64>().ln()
}

/// Computes the score of each cluster, averaged over some queries `[queries, head_dim]` of a member
/// of the group.
fn average_scores(
    clusters: &Clusters,
    queries: ArrayView2<'_, f32>,
    form: SoftmaxForm<'_>,
    member: usize,
) -> Vec<f64> {
    let mut sums = vec![0.0; clusters.count()];
    for query in queries.rows() {
        let query = HeadQuery { query: &query.to_vec(), form, member };
        let logits = query.logits(clusters);
        let total = query.log_total(clusters, &logits);
        for (sum, &logit) in sums.iter_mut().zip(&logits) {
            *sum += (f64::from(logit) - total).exp();
        }
    }
    sums.iter().map(|sum| sum / queries.nrows().max(1) as f64).collect()
}

/// Returns the threshold that the average scores `[members][clusters]` of at most `tokens` tokens
/// per member exceed; 0 if there are no more tokens than that.
fn find_threshold(clusters: &Clusters, tokens: usize, averages: Vec<Vec<f64>>) -> f64 {
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
