//! A pipeline at work on one KV head: from queries to the lists of tokens they read.

use std::sync::Arc;

use crate::sampler::{Drawn, Sampler};
use crate::stats::norm;
use crate::stream::SHARED;
use crate::{
    Attended, Certificate, Conflict, Error, Kind, NewTokens, Picks, PipelineConfig, Prompt, Result,
    Row, RowReport, Selector, Share, Site, Step, Stream,
};

/// The pipeline of one KV head of one layer of one sequence. Cloning it forks it.
#[derive(Clone, Debug)]
pub struct Pipeline {
    config: Arc<PipelineConfig>,
    site: Site,
    selectors: Vec<Box<dyn Selector>>,
    dense: bool,
    max_norm_v: f64,
}

/// What the selectors of one KV head picked at one step.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// One for each list.
    picks: Vec<Picks>,
    /// What each member's selectors promised of the tokens that it did not pick.
    bounds: Vec<Option<f32>>,
}

/// What the query heads of one KV head read at one step: one list for all, or one each.
#[derive(Clone, Debug)]
pub struct Reading {
    lists: Vec<List>,
    read_by_group: usize,
    visible: usize,
}

/// Tokens to read, and what reading them is worth.
#[derive(Clone, Debug)]
pub struct List {
    /// Tokens, ascending, each once.
    pub indices: Vec<u32>,
    /// Their inclusion probabilities; a token weighs one over it.
    pub probabilities: Vec<f32>,
    /// How many of them were read by chance.
    pub sampled: usize,
    /// Tokens that the estimator asked for at its last look.
    pub budget: Option<usize>,
    /// What is promised to a row that reads this list.
    pub certificate: Certificate,
}

impl Pipeline {
    /// Builds the selectors of one KV head.
    ///
    /// # Errors
    /// If parts of the pipeline do not go together, or a selector cannot be built for the site.
    pub fn new(config: &Arc<PipelineConfig>, site: Site) -> Result<Self> {
        site.shape.check()?;
        if let Some(conflict) = config.conflicts().into_iter().next() {
            return Err(Error::Conflict(conflict));
        }
        if site.layer > 4095 {
            return Err(Error::shape("layer", "at most 4095", site.layer));
        }
        let dense = config.is_dense() || config.dense_layers.contains(&site.layer);
        let selectors = if dense {
            Vec::new()
        } else {
            config.selectors.iter().map(|selector| selector.build(&site)).collect::<Result<_>>()?
        };
        Ok(Self { config: config.clone(), site, selectors, dense, max_norm_v: 0.0 })
    }

    /// Where it lives.
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// Gives the pipeline another sequence number, hence other samples.
    pub fn set_sequence(&mut self, sequence: u32) {
        self.site.sequence = sequence;
    }

    /// Takes note of new tokens.
    pub fn append(&mut self, new: &NewTokens<'_>) {
        self.selectors.iter_mut().for_each(|selector| selector.append(new));
        let mut value = vec![0.0; new.values.dim()];
        for token in 0..new.values.len() {
            new.values.copy_row(token, &mut value);
            self.max_norm_v = self.max_norm_v.max(norm(&value));
        }
    }

    /// Shows the selectors the last queries of a prompt.
    pub fn observe(&mut self, prompt: &Prompt<'_>) {
        self.selectors.iter_mut().for_each(|selector| selector.observe(prompt));
    }

    /// Whether a selector waits for [`feedback`](Self::feedback).
    pub fn needs_feedback(&self) -> bool {
        self.selectors.iter().any(|selector| selector.needs_feedback())
    }

    /// Tells the selectors that wait for it how one row's attention was spread.
    pub fn feedback(&mut self, row: &Row<'_>, attended: &Attended<'_>) {
        let waiting = self.selectors.iter_mut().enumerate();
        for (i, selector) in waiting.filter(|(_, selector)| selector.needs_feedback()) {
            selector.feedback(&row.for_selector(i), attended);
        }
    }

    /// Chooses what the query heads of this KV head read at one step.
    pub fn read(&self, step: &Step<'_>) -> Reading {
        self.complete(step, &self.choose(step))
    }

    /// The first half of [`read`](Self::read): what the selectors pick. It does not depend on the
    /// sequence number, unless a selector draws at random.
    pub fn choose(&self, step: &Step<'_>) -> Choice {
        if self.dense {
            return Choice::default();
        }
        let mut picks: Vec<Picks> = step.rows().iter().map(|row| self.select(row)).collect();
        let bounds = picks.iter().map(Picks::residual_bound).collect();
        if self.config.share == Share::Group {
            picks = vec![union(&picks)];
        }
        Choice { picks, bounds }
    }

    /// The second half of [`read`](Self::read): a sample of what the selectors left.
    pub fn complete(&self, step: &Step<'_>, choice: &Choice) -> Reading {
        if self.dense {
            return Reading::new(vec![List::everything(step.visible)], step.visible);
        }
        let rows = step.rows();
        let readers = rows.len() / choice.picks.len();
        let lists = (choice.picks.iter())
            .zip(rows.chunks(readers).zip(choice.bounds.chunks(readers)))
            .map(|(picks, (rows, bounds))| self.list(rows, picks, bounds))
            .collect();
        Reading::new(lists, step.visible)
    }

    /// Runs the selectors for one row, each seeing what those before it took.
    fn select(&self, row: &Row<'_>) -> Picks {
        let mut picks = Picks::new(row.visible());
        for (i, selector) in self.selectors.iter().enumerate() {
            selector.select(&row.for_selector(i), &mut picks);
        }
        picks
    }

    /// Turns the picks of rows that read one list into that list.
    fn list(&self, rows: &[Row<'_>], picks: &Picks, bounds: &[Option<f32>]) -> List {
        if picks.len() == picks.visible() && picks.certain() {
            return List {
                certificate: self.certificate(Kind::Exact, true),
                ..List::everything(picks.len())
            };
        }
        let Some(estimator) = &self.config.estimator else {
            return self.drop_residual(picks);
        };
        let base = self.config.sampler.unwrap_or_default().base;
        let stream = self.sample_stream(&rows[0]);
        let sampler = Sampler::new(rows, picks, bounds, self.max_norm_v, &stream);
        self.unite(picks, &sampler.run(&**estimator, base))
    }

    /// The sampler's random numbers: purpose 0, and one member number for a list that all share.
    fn sample_stream(&self, row: &Row<'_>) -> Stream {
        let member = if self.config.share == Share::Group { SHARED } else { row.member() };
        Stream::new(&self.site, 0, row.step(), member)
    }

    /// The list of a pipeline without estimator.
    fn drop_residual(&self, picks: &Picks) -> List {
        let mut entries: Vec<_> = picks.iter().collect();
        if entries.is_empty() {
            entries.push((picks.visible() - 1, 1.0));
        }
        let sampled = entries.iter().filter(|&&(_, p)| p < 1.0).count();
        List::new(entries, sampled, None, self.certificate(Kind::None, false))
    }

    /// The list of certain picks, which weigh 1 however they were chosen, and a sample of the
    /// rest, whose tokens weigh `n_s / b`.
    fn unite(&self, picks: &Picks, drawn: &Drawn) -> List {
        let n_s = picks.visible() - picks.len();
        let b = drawn.tokens.len();
        let p = (b as f64 / n_s as f64) as f32;
        let certain = picks.iter().map(|(token, _)| (token, 1.0));
        let sample = drawn.tokens.iter().map(|&token| (token as usize, p));
        let mut entries: Vec<_> = certain.chain(sample).collect();
        entries.sort_unstable_by_key(|&(token, _)| token);
        List::new(entries, b, Some(drawn.budget), self.certificate(drawn.kind, drawn.held))
    }

    fn certificate(&self, kind: Kind, held: bool) -> Certificate {
        Certificate { promise: self.config.promise(), kind, held }
    }
}

/// What any member picked, for certain.
fn union(picks: &[Picks]) -> Picks {
    let mut all = Picks::new(picks[0].visible());
    for picks in picks {
        all.union(picks);
    }
    all
}

impl List {
    fn new(
        entries: Vec<(usize, f32)>,
        sampled: usize,
        budget: Option<usize>,
        certificate: Certificate,
    ) -> Self {
        let (indices, probabilities) =
            entries.into_iter().map(|(token, p)| (token as u32, p)).unzip();
        Self { indices, probabilities, sampled, budget, certificate }
    }

    /// Dense attention.
    fn everything(visible: usize) -> Self {
        let exact = Certificate { promise: None, kind: Kind::Exact, held: true };
        Self::new((0..visible).map(|token| (token, 1.0)).collect(), 0, None, exact)
    }
}

impl Reading {
    fn new(lists: Vec<List>, visible: usize) -> Self {
        let read_by_group = match &lists[..] {
            [shared] => shared.indices.len(),
            own => {
                let mut any = Picks::new(visible);
                let tokens = own.iter().flat_map(|list| &list.indices);
                any.take_all(tokens.map(|&token| token as usize));
                any.len()
            }
        };
        Self { lists, read_by_group, visible }
    }

    /// The lists: one that every member reads, or one for each member.
    pub fn lists(&self) -> &[List] {
        &self.lists
    }

    /// The list that a member of the group reads.
    pub fn list(&self, member: usize) -> &List {
        self.lists.get(member).unwrap_or(&self.lists[0])
    }

    /// The members that read list `index`, of a group of `group`.
    pub fn readers(&self, index: usize, group: usize) -> std::ops::Range<usize> {
        if self.lists.len() == 1 { 0..group } else { index..index + 1 }
    }

    /// What to report of a member's row.
    pub fn report(&self, member: usize) -> RowReport {
        let list = self.list(member);
        RowReport {
            visible: self.visible,
            certain: list.indices.len() - list.sampled,
            sampled: list.sampled,
            read_by_group: self.read_by_group,
            budget: list.budget,
            fell_back: false,
            certificate: list.certificate,
        }
    }
}

impl From<Conflict> for Error {
    fn from(conflict: Conflict) -> Self {
        Self::Conflict(conflict)
    }
}
