//! The pipeline of one KV head: from queries to the lists of tokens they read.

use std::sync::Arc;

use crate::{
    Error, Result,
    pipeline::{
        PipelineConfig, Read, Reading, Share,
        drawing::{Drawing, Drawn, Outcome},
        first_sizes::FirstSizes,
        lessons::Lessons,
    },
    plugin::{Attended, NewTokens, PromptQueries, Sampler, Schedule, Selector},
    promise::{Assumptions, Certificate, Kind},
    sample::{Accumulator, ExactAccumulator, Residual, stats::norm},
    step::{
        Picks, PrefixMax, Row, Shape, Site, Step, Stream, Tokens, row::GroupLogits, stream::SHARED,
    },
};

/// The pipeline of one KV head of one layer of one sequence. Cloning it forks it.
#[derive(Clone, Debug)]
pub struct Pipeline {
    config: Arc<PipelineConfig>,
    site: Site,
    selectors: Vec<Box<dyn Selector>>,
    /// If tokens are drawn.
    sampler: Option<Box<dyn Sampler>>,
    dense: bool,
    /// Whether samples of a given size are checked for their error bars.
    error_bars: bool,
    /// The norm of each value, if a uniform sample may be judged by the largest.
    norms_v: PrefixMax,
    lessons: Lessons,
    first_sizes: FirstSizes,
}

/// The picks of one KV head's selectors at one step.
#[derive(Clone, Debug)]
pub struct Choice {
    lists: TokenLists,
    /// The bound that each member's selectors proved for its unpicked tokens.
    bounds: Vec<Option<f32>>,
}

/// The token lists of one KV head at one step.
#[derive(Clone, Debug)]
enum TokenLists {
    /// All members read every visible token, as one list.
    Everything,
    /// One list for all members, or one for each.
    Picked(Vec<Arc<Picks>>),
}

impl Choice {
    /// Number of token lists: 1, or one for each member.
    pub fn lists(&self) -> usize {
        match &self.lists {
            TokenLists::Everything => 1,
            TokenLists::Picked(lists) => lists.len(),
        }
    }

    /// Number of picked tokens over all lists, of `visible` tokens.
    pub fn picked(&self, visible: usize) -> usize {
        match &self.lists {
            TokenLists::Everything => visible,
            TokenLists::Picked(lists) => lists.iter().map(|picks| picks.len()).sum(),
        }
    }
}

impl Pipeline {
    /// Builds the selectors of one KV head.
    ///
    /// # Errors
    /// If parts of the pipeline cannot be combined, or a selector cannot be built for the site.
    pub fn new(config: &Arc<PipelineConfig>, site: Site) -> Result<Self> {
        site.shape.check()?;
        if let Some(conflict) = config.conflicts().into_iter().next() {
            return Err(Error::Conflict(conflict));
        }
        if site.layer > 4095 {
            return Err(Error::shape("layer", "at most 4095", site.layer));
        }
        let config = config.layer_config(site.layer);
        let dense = config.is_dense_at(site.layer);
        Self {
            config: config.clone(),
            site,
            selectors: Vec::new(),
            sampler: None,
            dense,
            error_bars: true,
            norms_v: PrefixMax::default(),
            lessons: Lessons::default(),
            first_sizes: FirstSizes::new(site.shape.group()),
        }
        .built()
    }

    /// With empty selectors and sampler.
    fn built(mut self) -> Result<Self> {
        let (config, site) = (&self.config, &self.site);
        if !self.dense {
            let built = config.selectors.iter().map(|selector| selector.build(site));
            self.selectors = built.collect::<Result<_>>()?;
            let sampler = config.draws().then(|| config.sampler().build(site));
            self.sampler = sampler.transpose()?;
        }
        Ok(self)
    }

    /// Its config, as it is at the site's layer.
    pub fn config(&self) -> &PipelineConfig {
        &self.config
    }

    /// The selectors, in the order of the config; none if [everything is read](Self::is_dense).
    pub fn selectors(&self) -> impl Iterator<Item = &dyn Selector> {
        self.selectors.iter().map(|selector| &**selector)
    }

    /// Whether everything is read.
    pub fn is_dense(&self) -> bool {
        self.dense
    }

    /// The largest norm of the first `visible` values; 0 unless a uniform sample is judged by it.
    pub fn max_norm_v(&self, visible: usize) -> f64 {
        self.norms_v.max_of_first(visible)
    }

    /// Where it lives.
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// Gives the pipeline another sequence number, hence other samples.
    pub fn set_sequence(&mut self, sequence: u32) {
        self.site.sequence = sequence;
    }

    /// Leaves out the error bars of samples of a given `size`, which are then not checked: steps are faster.
    /// Samples with a promise are checked as before.
    pub fn omit_error_bars(&mut self) {
        self.error_bars = false;
    }

    /// The first selector that needs the classes of tokens, by name, if one does.
    pub fn needs_classes(&self) -> Option<&str> {
        if self.dense { None } else { self.config.own_needs_classes() }
    }

    /// Indexes new tokens.
    ///
    /// # Errors
    /// As [`show`](Self::show).
    pub fn append(&mut self, new: &NewTokens<'_>) -> Result<()> {
        self.check_new(new)?;
        self.measure(new.values);
        self.show(new)
    }

    /// Checks that keys, values and classes have matching lengths and this pipeline's dimensions.
    fn check_new(&self, new: &NewTokens<'_>) -> Result<()> {
        let Shape { head_dim, value_dim, .. } = self.site.shape;
        let fits = |what: &str, expected: usize, got: usize| {
            if got == expected { Ok(()) } else { Err(Error::shape(what, expected, got)) }
        };
        fits("head_dim of the new keys", head_dim, new.keys.dim())?;
        fits("value_dim of the new values", value_dim, new.values.dim())?;
        fits("new values", new.keys.len(), new.values.len())?;
        match (new.classes, self.needs_classes()) {
            (Some(classes), _) => fits("classes of new tokens", new.keys.len(), classes.len()),
            (None, Some(selector)) => Err(Error::Classes { selector: selector.into() }),
            (None, None) => Ok(()),
        }
    }

    /// The same pipeline over the first `tokens` tokens, with empty selectors and sampler.
    ///
    /// # Errors
    /// If one cannot be built again.
    pub fn truncated(&self, tokens: usize) -> Result<Self> {
        let mut norms_v = self.norms_v.clone();
        norms_v.truncate(tokens);
        let (config, selectors) = (self.config.clone(), Vec::new());
        let lessons = Lessons::default();
        let first_sizes = FirstSizes::new(self.site.shape.group());
        Self { config, norms_v, selectors, sampler: None, lessons, first_sizes, ..*self }.built()
    }

    /// The part of [`append`](Self::append) that every step needs: the norms of the values, if a
    /// uniform sample may be judged by the largest. Other samplers bound what they miss themselves.
    pub fn measure(&mut self, values: Tokens<'_>) {
        let judged = self.config.estimator.is_some() && self.config.sampler().is_uniform();
        if !judged || self.dense {
            return;
        }
        let mut value = vec![0.0; values.dim()];
        for token in 0..values.len() {
            values.copy_row(token, &mut value);
            self.norms_v.push(norm(&value));
        }
    }

    /// The part of [`append`](Self::append) that may wait until a step reads the tokens: selectors
    /// and sampler index them.
    ///
    /// # Errors
    /// [`Error::Classes`] if a selector [needs](Self::needs_classes) classes and the tokens have
    /// none, [`Error::Shape`] if keys, values or classes are of another shape; then nothing has
    /// changed.
    pub fn show(&mut self, new: &NewTokens<'_>) -> Result<()> {
        self.check_new(new)?;
        self.selectors.iter_mut().for_each(|selector| selector.append(new));
        self.sampler.iter_mut().for_each(|sampler| sampler.append(new));
        Ok(())
    }

    /// Shows the selectors the last queries of a prompt.
    pub fn observe(&mut self, prompt: &PromptQueries<'_>) {
        self.lessons.observe();
        self.selectors.iter_mut().for_each(|selector| selector.observe(prompt));
    }

    /// Name of the first selector that [needs a prompt](Selector::needs_prompt) and has been shown
    /// none, if there is one. Such a selector picks everything.
    pub fn awaits_prompt(&self) -> Option<&str> {
        if self.lessons.observed() { None } else { self.name_of(Selector::needs_prompt) }
    }

    /// Name of the first selector for which `is` returns true.
    fn name_of(&self, is: impl Fn(&dyn Selector) -> bool) -> Option<&str> {
        let place = self.selectors.iter().position(|selector| is(&**selector))?;
        Some(self.config.selectors[place].typetag_name())
    }

    /// Refuses a step whose selectors lack a prompt or the feedback for an earlier step: they would
    /// pick everything, or pick by old statistics. [`read`](Self::read) calls this method; engines
    /// that call [`choose`](Self::choose) themselves call it before. The same step may be checked
    /// again.
    ///
    /// # Errors
    /// [`Error::Unobserved`] if a selector [awaits a prompt](Self::awaits_prompt),
    /// [`Error::NoFeedback`] if an earlier step was not followed by [`feedback`](Self::feedback)
    /// and a selector [needs it](Self::needs_feedback).
    pub fn check_taught(&self, step: u32) -> Result<()> {
        if let Some(selector) = self.awaits_prompt() {
            return Err(Error::Unobserved { selector: selector.into() });
        }
        let Some(selector) = self.name_of(Selector::needs_feedback) else {
            return Ok(());
        };
        match self.lessons.begin(step) {
            Some(step) => Err(Error::NoFeedback { selector: selector.into(), step }),
            None => Ok(()),
        }
    }

    /// Bytes of the indexes of selectors and sampler.
    pub fn index_bytes(&self) -> usize {
        let selectors = self.selectors.iter().map(|selector| selector.index_bytes());
        selectors.chain(self.sampler.iter().map(|sampler| sampler.index_bytes())).sum()
    }

    /// The tokens that are not evicted: of the first `visible` those that a row of now or later, which sees at least as many, may
    /// read. `None` is all of them, as wherever tokens are drawn by chance.
    pub fn live(&self, visible: usize) -> Option<Picks> {
        if self.dense || self.sampler.is_some() {
            return None;
        }
        let mut live = Picks::new(visible);
        self.selectors.iter().for_each(|selector| selector.live(&mut live));
        live.take(visible - 1); // What is read if nothing is picked.
        (live.len() < visible).then_some(live)
    }

    /// Whether a selector needs [`feedback`](Self::feedback).
    pub fn needs_feedback(&self) -> bool {
        self.selectors.iter().any(|selector| selector.needs_feedback())
    }

    /// Returns true if a step's reading depends on the steps before it: if a selector needs
    /// feedback, or if samples begin with the size that the step before needed. A sequence that
    /// begins at a later [step](crate::Options::first_step) then does not read what one that came
    /// there by itself does.
    pub fn depends_on_earlier_steps(&self) -> bool {
        self.needs_feedback() || self.sampler.is_some() && self.learns_first_sizes()
    }

    /// Passes one row's attention weights to the selectors that need them.
    pub fn feedback(&mut self, row: &Row<'_>, attended: &Attended<'_>) {
        self.lessons.feed_back();
        let waiting = self.selectors.iter_mut().enumerate();
        for (i, selector) in waiting.filter(|(_, selector)| selector.needs_feedback()) {
            selector.feedback(&row.for_selector(i), attended);
        }
    }

    /// Chooses the tokens that this KV head's query heads read at one step, by the definition.
    ///
    /// # Errors
    /// The errors of [`check_taught`](Self::check_taught).
    pub fn read(&self, step: &Step<'_>) -> Result<Reading> {
        self.check_taught(step.step)?;
        Ok(self.complete(step, &self.choose(step)))
    }

    /// The first half of [`read`](Self::read): what the selectors pick. It does not depend on the
    /// sequence number.
    pub fn choose(&self, step: &Step<'_>) -> Choice {
        let group = step.site.shape.group();
        if self.dense {
            return Choice { lists: TokenLists::Everything, bounds: vec![None; group] };
        }
        let picks = self.select(step);
        let bounds = match &picks[..] {
            [_alike] if group > 1 => vec![None; group],
            own => own.iter().map(Picks::residual_bound).collect(),
        };
        let picks: Vec<_> = match self.config.share {
            Share::Group => vec![Arc::new(union(picks))],
            Share::Head => picks.into_iter().map(Arc::new).collect(),
        };
        let lists = if self.config.share == Share::Group { 1 } else { group };
        let picks = picks.into_iter().cycle().take(lists).collect();
        Choice { lists: TokenLists::Picked(picks), bounds }
    }

    /// The second half of [`read`](Self::read): a sample of the residual.
    pub fn complete(&self, step: &Step<'_>, choice: &Choice) -> Reading {
        let rows = step.rows();
        let readers = rows.len() / choice.lists();
        let accumulators = rows.chunks(readers).map(ExactAccumulator::new);
        let reads = accumulators
            .enumerate()
            .map(|(i, mut accumulator)| self.sample(step, choice, i, &mut accumulator));
        Reading::new(reads.collect(), rows.len())
    }

    /// Completes one list of a choice, with the `accumulator` of its readers.
    ///
    /// Without an estimator, and where everything is read, the accumulator reads nothing.
    pub fn sample(
        &self,
        step: &Step<'_>,
        choice: &Choice,
        list: usize,
        accumulator: &mut dyn Accumulator,
    ) -> Read {
        let TokenLists::Picked(lists) = &choice.lists else {
            return Read::everything(step.visible, Certificate::exact(None));
        };
        let picks = &lists[list];
        if picks.len() == picks.visible() {
            return Read::everything(step.visible, self.exact());
        }
        let Some(sampler) = &self.sampler else {
            return self.drop_residual(step, picks, accumulator);
        };
        let readers = step.site.shape.group() / choice.lists();
        let residual = |bound: &Option<f32>| Residual {
            n_s: picks.visible() - picks.len(),
            visible: picks.visible(),
            query_heads: step.site.shape.query_heads,
            max_norm_v: self.max_norm_v(picks.visible()),
            bound: *bound,
        };
        let residuals: Vec<Residual> =
            choice.bounds[list * readers..][..readers].iter().map(residual).collect();
        let how = self.config.sampler();
        let base = how.base().to_tokens(step.visible);
        let learns = self.learns_first_sizes();
        let first = if learns { self.first_sizes.begin(list, step.step, base) } else { base };
        if first > base && first >= accumulator.dense_from(true) {
            self.first_sizes.forget(list);
            return self.fall_back(step);
        }
        let rows = step.rows();
        let rows = &rows[list * readers..][..readers];
        let design = sampler.design(rows, picks, &self.sample_stream(step, list));
        let drawing = Drawing::new(design, how.is_uniform(), first, picks, &residuals, accumulator);
        let Some((estimator, goal)) = self.config.estimator.as_ref().zip(self.config.goal()) else {
            return self.drawn(step, picks, drawing.draw_unjudged(picks), None);
        };
        match drawing.run(&**estimator, goal, picks, self.error_bars) {
            Outcome::FellBack(asked) => {
                if let Some(asked) = asked.filter(|_| learns) {
                    self.first_sizes.learn_excess(list, asked, base);
                }
                self.fall_back(step)
            }
            Outcome::Drawn(drawn) => {
                if let Some(needed) = drawn.needed.filter(|_| learns) {
                    self.first_sizes.learn(list, needed, base);
                }
                let budget = Some(drawn.budget);
                self.drawn(step, picks, drawn, budget)
            }
        }
    }

    /// Returns true if the first size of a sample follows from the steps before. A proof is checked
    /// at sizes known beforehand, and the checks of a uniform sample cost little.
    fn learns_first_sizes(&self) -> bool {
        let schedule = self.config.estimator.as_ref().map(|estimator| estimator.schedule());
        matches!(schedule, Some(Schedule::Adaptive { .. })) && !self.config.sampler().is_uniform()
    }

    /// The list and its sample, with their certificate.
    fn drawn(
        &self,
        step: &Step<'_>,
        picks: &Arc<Picks>,
        drawn: Drawn,
        budget: Option<usize>,
    ) -> Read {
        let widest = drawn.radii.iter().copied().reduce(f64::max);
        let certificate = Certificate {
            promise: if drawn.withheld { None } else { self.config.promise() },
            bar: self.config.goal().zip(widest).map(|(goal, radius)| goal.bar(radius)),
            kind: drawn.kind,
            assumes: drawn.assumes,
            held: drawn.held,
        };
        if picks.is_empty() && drawn.tokens.is_empty() {
            return Read::only(newest(step), certificate);
        }
        Read::sampled(picks.clone(), drawn, budget, certificate)
    }

    /// Everything, because that is faster than the pipeline's choice.
    pub fn fall_back(&self, step: &Step<'_>) -> Read {
        let mut everything = Read::everything(step.visible, self.exact());
        everything.fell_back = true;
        everything
    }

    /// Runs the selectors, each seeing the picks of those before it: once for all members while
    /// they pick the same, then for each.
    fn select(&self, step: &Step<'_>) -> Vec<Picks> {
        let (rows, logits) = (step.rows(), GroupLogits::default());
        let mut picks = vec![Picks::new(step.visible)];
        if self.sampler.is_some() && self.config.sampler().wants_scores() {
            picks[0].keep_scores();
        }
        for (i, selector) in self.selectors.iter().enumerate() {
            if !selector.group_wide() {
                picks.resize(rows.len(), picks[0].clone());
            }
            for (row, picks) in rows.iter().zip(&mut picks) {
                let row = row.sharing(&logits).for_selector(i);
                selector.select(&row, picks);
            }
        }
        picks
    }

    /// The sampler's random numbers: purpose 0, and one member number for a list that all share.
    pub fn sample_stream(&self, step: &Step<'_>, list: usize) -> Stream {
        let member = if self.config.share == Share::Group { SHARED } else { list };
        Stream::new(&self.site, 0, step.step, member)
    }

    /// The list of a pipeline that draws nothing.
    fn drop_residual(
        &self,
        step: &Step<'_>,
        picks: &Arc<Picks>,
        accumulator: &mut dyn Accumulator,
    ) -> Read {
        if picks.len() >= accumulator.dense_from(false) {
            return self.fall_back(step);
        }
        let certificate = Certificate {
            promise: self.config.promise(),
            bar: None,
            kind: Kind::None,
            assumes: Assumptions::NONE,
            held: false,
        };
        Read::only(if picks.is_empty() { newest(step) } else { picks.clone() }, certificate)
    }

    fn exact(&self) -> Certificate {
        Certificate::exact(self.config.goal())
    }
}

/// The newest token: a list must hold something.
fn newest(step: &Step<'_>) -> Arc<Picks> {
    let mut picks = Picks::new(step.visible);
    picks.take(step.visible - 1);
    Arc::new(picks)
}

/// What any member picked.
fn union(picks: Vec<Picks>) -> Picks {
    let mut picks = picks.into_iter();
    let mut all = picks.next().expect("a group has at least one member");
    picks.for_each(|picks| all.union(&picks));
    all
}
