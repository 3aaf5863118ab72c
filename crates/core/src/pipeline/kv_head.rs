//! Pipeline of one KV head, which turns queries into the token lists that they read.

mod adjust;
mod sharing;

use std::sync::Arc;

use ndarray::Ix2;

use crate::{
    Error, Result, RowsView,
    pipeline::{
        PipelineConfig, Read, Reading, Share,
        drawing::{FinishedSample, GrowingSample, Outcome},
        first_sizes::FirstSizes,
        learning_record::LearningRecord,
        rounding::{RoundingErrors, RowRounding},
        row_report::RowReport,
    },
    plugin::{AttentionWeights, NewTokens, PromptQueries, Sampler, Schedule, Selector},
    promise::{Assumptions, Certificate, Goal, Kind},
    sample::{Accumulator, ExactAccumulator, RemainingWork, Residual, stats::norm},
    step::{
        Picks, PrefixMax, Row, Shape, Site, Softmax, Step, Stream, Tokens, row::GroupLogits,
        stream::SHARED,
    },
};

/// Pipeline of one KV head of one layer of one sequence. A clone is a fork.
#[derive(Clone, Debug)]
pub struct Pipeline {
    config: Arc<PipelineConfig>,
    site: Site,
    selectors: Vec<Box<dyn Selector>>,
    /// Sampler, if tokens are sampled.
    sampler: Option<Box<dyn Sampler>>,
    dense: bool,
    /// If true, samples of a given size are checked to compute their error bars.
    error_bars: bool,
    /// Norms of the values; empty unless an estimator checks uniform samples.
    norms_v: PrefixMax,
    /// Rounding errors of the tokens; empty unless the goal counts them.
    rounding_errors: RoundingErrors,
    learning_record: LearningRecord,
    first_sizes: FirstSizes,
}

/// Picks of one KV head's selectors at one step.
#[derive(Clone, Debug)]
pub struct Choice {
    lists: TokenLists,
    /// Upper bound on the logits of unpicked tokens that the selectors proved for each member of
    /// the group, `[group]`.
    bounds: Vec<Option<f32>>,
}

/// Token lists of one KV head at one step.
#[derive(Clone, Debug)]
enum TokenLists {
    /// All members of the group read every visible token, as one list.
    Everything,
    /// Picks of the token list that all members share, or of each member's token list.
    Picked(Vec<Arc<Picks>>),
}

impl Choice {
    /// Number of token lists: 1, or one for each member of the group.
    pub fn lists(&self) -> usize {
        match &self.lists {
            TokenLists::Everything => 1,
            TokenLists::Picked(lists) => lists.len(),
        }
    }

    /// Number of picked tokens over all lists, if `visible` tokens may be read.
    pub fn picked(&self, visible: usize) -> usize {
        match &self.lists {
            TokenLists::Everything => visible,
            TokenLists::Picked(lists) => lists.iter().map(|picks| picks.len()).sum(),
        }
    }
}

impl Pipeline {
    /// Creates the pipeline of one KV head, without any tokens yet.
    ///
    /// # Errors
    /// Returns an error if parts of the pipeline contradict each other, if the shape or the layer's
    /// number is out of range, or if a selector or the sampler cannot be built for the site.
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
            rounding_errors: RoundingErrors::default(),
            learning_record: LearningRecord::default(),
            first_sizes: FirstSizes::new(site.shape.group()),
        }
        .build_components()
    }

    /// Returns the pipeline with new selectors and a new sampler, whose indexes are empty.
    fn build_components(mut self) -> Result<Self> {
        let (config, site) = (&self.config, &self.site);
        if !self.dense {
            let built = config.selectors.iter().map(|selector| selector.build(site));
            self.selectors = built.collect::<Result<_>>()?;
            let sampler = config.draws().then(|| config.sampler().build(site));
            self.sampler = sampler.transpose()?;
        }
        Ok(self)
    }

    /// Configuration of the site's layer.
    pub fn config(&self) -> &PipelineConfig {
        &self.config
    }

    /// Selectors, in the order of the configuration; none if the pipeline is
    /// [dense](Self::is_dense).
    pub fn selectors(&self) -> impl Iterator<Item = &dyn Selector> {
        self.selectors.iter().map(|selector| &**selector)
    }

    /// Returns true if every token is read.
    pub fn is_dense(&self) -> bool {
        self.dense
    }

    /// Largest norm among the first `visible` values; 0 unless an estimator checks uniform samples.
    pub fn max_norm_v(&self, visible: usize) -> f64 {
        self.norms_v.max_of_first(visible)
    }

    /// KV head, layer and sequence of the pipeline.
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// Changes the sequence number. Later samples depend on the new number.
    pub fn set_sequence(&mut self, sequence: u32) {
        self.site.sequence = sequence;
    }

    /// Omits the error bars of samples of a given `size`. These samples are then not checked, which
    /// makes steps faster. Samples with a promise are still checked.
    pub fn omit_error_bars(&mut self) {
        self.error_bars = false;
    }

    /// Name of the first selector that needs the classes of tokens.
    pub fn needs_classes(&self) -> Option<&str> {
        if self.dense { None } else { self.config.own_needs_classes() }
    }

    /// Indexes new tokens.
    ///
    /// # Errors
    /// Returns the errors of [`show`](Self::show).
    pub fn append(&mut self, new: &NewTokens<'_>) -> Result<()> {
        self.check_new(new)?;
        self.measure(new.values);
        self.show(new)
    }

    /// Checks that keys, values and classes have matching lengths and this pipeline's dimensions.
    fn check_new(&self, new: &NewTokens<'_>) -> Result<()> {
        let Shape { head_dim, value_dim, .. } = self.site.shape;
        let expect = |what: &str, expected: usize, got: usize| {
            if got == expected { Ok(()) } else { Err(Error::shape(what, expected, got)) }
        };
        expect("head_dim of the new keys", head_dim, new.keys.dim())?;
        expect("value_dim of the new values", value_dim, new.values.dim())?;
        expect("new values", new.keys.len(), new.values.len())?;
        new.keys.check_scales("new keys")?;
        new.values.check_scales("new values")?;
        match (new.classes, self.needs_classes()) {
            (Some(classes), _) => expect("classes of new tokens", new.keys.len(), classes.len()),
            (None, Some(selector)) => Err(Error::Classes { selector: selector.into() }),
            (None, None) => Ok(()),
        }
    }

    /// Returns the same pipeline over the first `tokens` tokens. Its selectors and its sampler are
    /// new, so the tokens must be [shown](Self::show) to them again.
    ///
    /// # Errors
    /// Returns an error if a selector or the sampler cannot be built again.
    pub fn truncated(&self, tokens: usize) -> Result<Self> {
        let mut norms_v = self.norms_v.clone();
        norms_v.truncate(tokens);
        let mut rounding_errors = self.rounding_errors.clone();
        rounding_errors.truncate(tokens);
        let (config, selectors) = (self.config.clone(), Vec::new());
        let learning_record = LearningRecord::default();
        let first_sizes = FirstSizes::new(self.site.shape.group());
        Self {
            config,
            norms_v,
            rounding_errors,
            selectors,
            sampler: None,
            learning_record,
            first_sizes,
            ..*self
        }
        .build_components()
    }

    /// Checks that selectors and sampler can remove tokens in place.
    ///
    /// # Errors
    /// Returns [`Error::NoRewind`] with the name of a selector or sampler that cannot.
    pub fn check_rewindable(&self) -> Result<()> {
        let refuse = |component: &str| Err(Error::NoRewind { component: component.into() });
        if let Some(selector) = self.find_selector_name(|selector| !selector.can_truncate()) {
            return refuse(selector);
        }
        match &self.sampler {
            Some(sampler) if !sampler.can_truncate() => {
                refuse(self.config.sampler().typetag_name())
            }
            _ => Ok(()),
        }
    }

    /// Forgets all but the first `tokens` tokens, and restores the first sample sizes of that
    /// point. Tokens that selectors and sampler have indexed must also be [hidden](Self::hide).
    ///
    /// # Errors
    /// Returns the errors of [`restore_first_sizes`](Self::restore_first_sizes); then nothing has
    /// changed.
    pub fn rewind(&mut self, tokens: usize, first_sizes: &[u64]) -> Result<()> {
        self.restore_first_sizes(first_sizes)?;
        self.norms_v.truncate(tokens);
        self.rounding_errors.truncate(tokens);
        Ok(())
    }

    /// Removes from the indexes of selectors and sampler all but the first tokens, whose keys are
    /// `keys`. The pipeline must be [rewindable](Self::check_rewindable).
    pub fn hide(&mut self, keys: &Tokens<'_>) {
        self.selectors.iter_mut().for_each(|selector| selector.truncate(keys));
        self.sampler.iter_mut().for_each(|sampler| sampler.truncate(keys));
    }

    /// Records the norms of new values if an estimator checks uniform samples, whose bounds depend
    /// on the largest norm. This is the part of [`append`](Self::append) that must be done before
    /// the next step.
    pub fn measure(&mut self, values: Tokens<'_>) {
        let checked = self.config.estimator.is_some() && self.config.sampler().is_uniform();
        if !checked || self.dense {
            return;
        }
        let mut value = vec![0.0; values.dim()];
        for token in 0..values.len() {
            values.copy_row(token, &mut value);
            self.norms_v.push(norm(&value));
        }
    }

    /// Measures how much rounding has changed new tokens, if the goal
    /// [counts it](crate::promise::ReferenceRows::Unrounded): `keys` and `values` as they were
    /// given, `[new, dim]`, and as stored. Nothing is promised about tokens that were appended but
    /// not measured.
    ///
    /// # Errors
    /// Returns [`Error::Shape`] if the rows do not have the shape of the stored ones.
    pub fn measure_rounding(
        &mut self,
        keys: RowsView<'_, Ix2>,
        values: RowsView<'_, Ix2>,
        stored: &NewTokens<'_>,
    ) -> Result<()> {
        if !self.counts_rounding() {
            return Ok(());
        }
        for (what, given, stored) in
            [("keys", keys.shape(), &stored.keys), ("values", values.shape(), &stored.values)]
        {
            let expected = [stored.len(), stored.dim()];
            if given != expected {
                return Err(Error::shape(what, format!("{expected:?}"), given));
            }
        }
        self.rounding_errors.measure(keys, values, stored);
        Ok(())
    }

    /// Goal of the samples, if it counts the rounding of keys and values.
    fn rounding_goal(&self) -> Option<Goal> {
        self.config.goal().filter(|goal| !self.dense && !goal.reference.is_stored())
    }

    /// Returns true if the goal counts the rounding of keys and values.
    pub fn counts_rounding(&self) -> bool {
        self.rounding_goal().is_some()
    }

    /// Returns true if the goal counts rounding, and a stored row differs from the given one.
    pub fn has_rounded_rows(&self) -> bool {
        self.rounding_errors.any()
    }

    /// Completes the report of a row whose goal counts rounding, from the row's sums: the bound on
    /// the change by rounding, and the certificate of a row that read every token.
    #[must_use]
    pub fn count_rounding(&self, row: &Row<'_>, sums: &Softmax, report: RowReport) -> RowReport {
        let Some(Goal { target, .. }) = self.rounding_goal() else { return report };
        let output_norm = sums.output().iter().map(|x| x * x).sum::<f64>().sqrt();
        let bound = self.rounding_errors.bound(row);
        let certificate = match report.certificate.kind {
            Kind::Exact => {
                report.certificate.exact_but_rounded(bound.widen(target, 0.0, output_norm))
            }
            _ => report.certificate,
        };
        let rounding = Some(bound.relative(target, output_norm));
        RowReport { rounding, certificate, ..report }
    }

    /// Bounds on the effect of rounding on each of these rows; zero unless the goal counts it.
    fn rounding_bounds(&self, rows: &[Row<'_>]) -> Vec<RowRounding> {
        let counts = self.counts_rounding();
        let bound = |row| if counts { self.rounding_errors.bound(row) } else { RowRounding::NONE };
        rows.iter().map(bound).collect()
    }

    /// Passes new tokens to the selectors and the sampler, which index them. This is the part of
    /// [`append`](Self::append) that may wait until a step reads the tokens.
    ///
    /// # Errors
    /// Returns [`Error::Classes`] if a selector [needs](Self::needs_classes) classes and the tokens
    /// have none, and [`Error::Shape`] if keys, values or classes do not have the expected shape;
    /// then nothing has changed.
    pub fn show(&mut self, new: &NewTokens<'_>) -> Result<()> {
        self.check_new(new)?;
        self.selectors.iter_mut().for_each(|selector| selector.append(new));
        self.sampler.iter_mut().for_each(|sampler| sampler.append(new));
        Ok(())
    }

    /// Passes the last queries of a prompt to the selectors.
    pub fn observe(&mut self, prompt: &PromptQueries<'_>) {
        self.learning_record.record_prompt();
        self.selectors.iter_mut().for_each(|selector| selector.observe(prompt));
    }

    /// Name of the first selector that [needs a prompt](Selector::needs_prompt) and has not
    /// received one. Such a selector picks every token.
    pub fn awaits_prompt(&self) -> Option<&str> {
        if self.learning_record.has_prompt() {
            None
        } else {
            self.find_selector_name(Selector::needs_prompt)
        }
    }

    /// Name of the first selector for which `test` returns true.
    fn find_selector_name(&self, test: impl Fn(&dyn Selector) -> bool) -> Option<&str> {
        let place = self.selectors.iter().position(|selector| test(&**selector))?;
        Some(self.config.selectors[place].typetag_name())
    }

    /// Checks that selectors have received the prompt and the feedback for earlier steps that they
    /// need. Otherwise they would pick every token, or pick by old statistics.
    /// [`read`](Self::read) calls this method; engines that call [`choose`](Self::choose) directly
    /// must call it before each step. A step may be checked more than once.
    ///
    /// # Errors
    /// Returns [`Error::Unobserved`] if a selector [awaits a prompt](Self::awaits_prompt), and
    /// [`Error::NoFeedback`] if a selector [needs feedback](Self::needs_feedback) and an earlier
    /// step was not followed by [`feedback`](Self::feedback).
    pub fn check_observed(&self, step: u32) -> Result<()> {
        if let Some(selector) = self.awaits_prompt() {
            return Err(Error::Unobserved { selector: selector.into() });
        }
        let Some(selector) = self.find_selector_name(Selector::needs_feedback) else {
            return Ok(());
        };
        match self.learning_record.begin_step(step) {
            Some(step) => Err(Error::NoFeedback { selector: selector.into(), step }),
            None => Ok(()),
        }
    }

    /// First sample size that each query head has learned, `[group]`, in the encoding that
    /// [`restore_first_sizes`](Self::restore_first_sizes) reads.
    pub fn first_sizes(&self) -> Vec<u64> {
        self.first_sizes.save()
    }

    /// Restores the first sample sizes of another pipeline.
    ///
    /// # Errors
    /// Returns an error if the numbers are not those of a pipeline with the same number of query
    /// heads.
    pub fn restore_first_sizes(&mut self, saved: &[u64]) -> Result<()> {
        let group = self.site.shape.group();
        let restored = FirstSizes::restore(saved).filter(|_| saved.len() == group);
        let expected = || format!("{group} numbers of a saved pipeline");
        self.first_sizes = restored
            .ok_or_else(|| Error::shape("first sizes", expected(), format!("{saved:?}")))?;
        Ok(())
    }

    /// Size in bytes of the indexes of selectors and sampler.
    pub fn index_bytes(&self) -> usize {
        let selectors = self.selectors.iter().map(|selector| selector.index_bytes());
        selectors.chain(self.sampler.iter().map(|sampler| sampler.index_bytes())).sum()
    }

    /// Tokens among the first `visible` that are not evicted: tokens that the current row, or a
    /// later row that sees at least as many tokens, may read. `None` means that no token is
    /// evicted, which is always the case if the pipeline is dense or has a sampler.
    pub fn live(&self, visible: usize) -> Option<Picks> {
        if self.dense || self.sampler.is_some() {
            return None;
        }
        let mut live = Picks::new(visible);
        self.selectors.iter().for_each(|selector| selector.live(&mut live));
        live.take(visible - 1); // The newest token is read if nothing is picked.
        (live.len() < visible).then_some(live)
    }

    /// Returns true if a selector needs [`feedback`](Self::feedback).
    pub fn needs_feedback(&self) -> bool {
        self.selectors.iter().any(|selector| selector.needs_feedback())
    }

    /// Returns true if the tokens read at a step depend on earlier steps: if a selector needs
    /// feedback, or if a step learns from the size of the previous step's sample. Then a sequence
    /// that begins at a later [step](crate::Options::first_step) may read other tokens than a
    /// sequence that has computed all steps.
    pub fn depends_on_earlier_steps(&self) -> bool {
        self.needs_feedback() || self.sampler.is_some() && self.learns_sizes()
    }

    /// Passes the attention weights of one row to the selectors that need them.
    pub fn feedback(&mut self, row: &Row<'_>, attended: &AttentionWeights<'_>) {
        self.learning_record.record_feedback();
        let selectors = self.selectors.iter_mut().enumerate();
        for (i, selector) in selectors.filter(|(_, selector)| selector.needs_feedback()) {
            selector.feedback(&row.for_selector(i), attended);
        }
    }

    /// Chooses the tokens that this KV head's query heads read at one step, and computes the
    /// statistics of samples by the reference implementation, [`ExactAccumulator`].
    ///
    /// # Errors
    /// Returns the errors of [`check_observed`](Self::check_observed) and of
    /// [`SoftmaxForm::check`](crate::SoftmaxForm::check).
    pub fn read(&self, step: &Step<'_>) -> Result<Reading> {
        step.form.check(step.site.shape.group())?;
        self.check_observed(step.step)?;
        Ok(self.complete(step, &self.choose(step)))
    }

    /// Runs the selectors, which is the first half of [`read`](Self::read). The result does not
    /// depend on the [sequence number](Self::set_sequence) of the pipeline.
    pub fn choose(&self, step: &Step<'_>) -> Choice {
        let group = step.site.shape.group();
        if self.dense {
            return Choice { lists: TokenLists::Everything, bounds: vec![None; group] };
        }
        let picks = self.select(step);
        let bounds = match &picks[..] {
            [_shared] if group > 1 => vec![None; group],
            separate => separate.iter().map(Picks::residual_bound).collect(),
        };
        let picks: Vec<_> = match self.config.share {
            Share::Group => vec![Arc::new(union(picks))],
            Share::Head => picks.into_iter().map(Arc::new).collect(),
        };
        let lists = if self.config.share == Share::Group { 1 } else { group };
        let picks = picks.into_iter().cycle().take(lists).collect();
        Choice { lists: TokenLists::Picked(picks), bounds }
    }

    /// Samples the residual of each list, which is the second half of [`read`](Self::read).
    pub fn complete(&self, step: &Step<'_>, choice: &Choice) -> Reading {
        let rows = step.rows();
        let readers = rows.len() / choice.lists();
        let accumulators = rows.chunks(readers).map(ExactAccumulator::new);
        let reads = accumulators
            .enumerate()
            .map(|(i, mut accumulator)| self.sample(step, choice, i, &mut accumulator));
        Reading::new(reads.collect(), rows.len())
    }

    /// Samples the residual of one token list of a choice. The `accumulator` reads rows for the
    /// query heads that read the list. It reads nothing if there is no sampler, or if every token
    /// has been picked.
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
        let n_s = picks.visible() - picks.len();
        let residual = |bound: &Option<f32>| Residual {
            n_s,
            visible: picks.visible(),
            query_heads: step.site.shape.query_heads,
            max_norm_v: self.max_norm_v(picks.visible()),
            bound: *bound,
        };
        let residuals: Vec<Residual> =
            choice.bounds[list * readers..][..readers].iter().map(residual).collect();
        let sampling = self.config.sampler();
        let base = sampling.base().to_tokens(step.visible);
        let learns = self.learns_sizes();
        let expected = if learns { self.first_sizes.begin(list, step.step, base) } else { base };
        // A limited sample may begin with less than the base.
        let begins_with_it = learns && (expected > base || !self.has_limited_samples());
        if begins_with_it && expected.min(n_s) >= accumulator.dense_from(RemainingWork::Scan) {
            self.first_sizes.lower(list);
            return self.fall_back(step);
        }
        let first = if self.has_fixed_sizes() { base } else { expected };
        let rows = step.rows();
        let rows = &rows[list * readers..][..readers];
        let design = sampler.design(rows, picks, &self.sample_stream(step, list));
        let uniform = sampling.is_uniform();
        let sample = GrowingSample::new(design, uniform, first, picks, &residuals, accumulator);
        let Some((estimator, goal)) = self.config.estimator.as_ref().zip(self.config.goal()) else {
            return self.certify(step, picks, sample.draw_unchecked(picks), None);
        };
        let rounding = self.rounding_bounds(rows);
        match sample.run(&**estimator, goal, &rounding, picks, self.error_bars) {
            Outcome::FellBack(required) => {
                if let Some(required) = required.filter(|_| learns) {
                    self.first_sizes.learn_excess(list, required, base);
                }
                self.fall_back(step)
            }
            Outcome::Sampled(sample) => {
                if let Some(needed) = sample.needed.filter(|_| learns) {
                    self.first_sizes.learn(list, needed, base);
                }
                let budget = Some(sample.budget);
                self.certify(step, picks, sample, budget)
            }
        }
    }

    /// Returns true if the size that a sample will require is learned from the previous step. The
    /// next sample begins with this size, unless its sizes are [fixed](Self::has_fixed_sizes), or
    /// is not tried if reading every token is faster. For uniform samples, whose checks cost
    /// little, learning is not worth while.
    fn learns_sizes(&self) -> bool {
        let adapts = self.schedule().is_some_and(|schedule| schedule != Schedule::Before);
        adapts && !self.config.sampler().is_uniform()
    }

    /// Returns true if samples are checked at fixed sizes only, of which the first is the base.
    fn has_fixed_sizes(&self) -> bool {
        matches!(self.schedule(), Some(Schedule::FixedSizes { .. }))
    }

    /// Returns true if samples have a given or a largest size.
    fn has_limited_samples(&self) -> bool {
        self.config.goal().is_some_and(|goal| goal.size().or(goal.limit()).is_some())
    }

    fn schedule(&self) -> Option<Schedule> {
        self.config.estimator.as_ref().map(|estimator| estimator.schedule())
    }

    /// Result for a token list and its sample, with a certificate.
    fn certify(
        &self,
        step: &Step<'_>,
        picks: &Arc<Picks>,
        sample: FinishedSample,
        budget: Option<usize>,
    ) -> Read {
        let widest = sample.radii.iter().copied().reduce(f64::max);
        let certificate = Certificate {
            promise: if sample.withheld { None } else { self.config.promise() },
            bar: self.config.goal().zip(widest).map(|(goal, radius)| goal.bar(radius)),
            kind: sample.kind,
            assumes: sample.assumes,
            held: sample.held,
        };
        if picks.is_empty() && sample.tokens.is_empty() {
            return Read::only(newest(step), certificate);
        }
        Read::sampled(picks.clone(), sample, budget, certificate)
    }

    /// Result of reading every token because that is faster than the pipeline's choice.
    pub fn fall_back(&self, step: &Step<'_>) -> Read {
        let mut everything = Read::everything(step.visible, self.exact());
        everything.fell_back = true;
        everything
    }

    /// Runs the selectors in order; each adds to the picks of those before it. The selectors run
    /// once for the whole group until one of them picks different tokens for its members.
    fn select(&self, step: &Step<'_>) -> Vec<Picks> {
        let (rows, logits) = (step.rows(), GroupLogits::default());
        let mut picks = vec![Picks::new(step.visible)];
        if self.sampler.is_some() && self.config.sampler().needs_scores() {
            picks[0].store_scores();
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

    /// Random numbers of the sampler for one token list. Their purpose is 0, and their member
    /// number is that of the list's query head, or 255 if the group shares the list.
    pub fn sample_stream(&self, step: &Step<'_>, list: usize) -> Stream {
        let member = if self.config.share == Share::Group { SHARED } else { list };
        Stream::new(&self.site, 0, step.step, member)
    }

    /// Result of reading the picks of a token list without a sample.
    fn drop_residual(
        &self,
        step: &Step<'_>,
        picks: &Arc<Picks>,
        accumulator: &mut dyn Accumulator,
    ) -> Read {
        if picks.len() >= accumulator.dense_from(RemainingWork::Reading) {
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

    /// Certificate of rows that read every token.
    fn exact(&self) -> Certificate {
        Certificate::exact(self.config.goal())
    }
}

/// Picks of the newest token, for token lists that would be empty otherwise.
fn newest(step: &Step<'_>) -> Arc<Picks> {
    let mut picks = Picks::new(step.visible);
    picks.take(step.visible - 1);
    Arc::new(picks)
}

/// Union of the picks of all members.
fn union(picks: Vec<Picks>) -> Picks {
    let mut picks = picks.into_iter();
    let mut all = picks.next().expect("a group has at least one member");
    picks.for_each(|picks| all.union(&picks));
    all
}
