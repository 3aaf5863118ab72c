//! Evaluation of a model with several pipelines on the cases of tasks.

use std::ops::ControlFlow;
use std::sync::Arc;

use vattention_core::{Backend, Options, PipelineConfig};
use vattention_experiments::{
    Digest, FileDigests, Incomplete, MissingUnit, Part, Variant, named_files,
};
use vattention_llm::{Config, Model, PrefillOptions, Prefilled, Session, Strategy, Tokenizer};
use vattention_tasks::{Case, Task, Texts};

use crate::answer_cache::AnswerCache;
use crate::collector::Collector;
use crate::error::{Error, Result};
use crate::observed::{ObservedBackend, ObservedSums};
use crate::parallel::run_in_parallel;
use crate::record::{CaseAnswer, Record};
use crate::report::EvaluationReport;
use crate::settings::{EvaluationSettings, Setup};
use crate::talk::ChatPrompt;
use crate::weights::LazyWeights;

/// A model, with the texts, the backend and the settings of its evaluation.
#[allow(missing_debug_implementations)]
pub struct Evaluation<'a> {
    /// Configuration of the model.
    pub config: &'a Config,
    /// Weights of the model.
    pub weights: LazyWeights<'a>,
    /// Digest of the model, by which answers are stored. See [`fingerprint`](crate::fingerprint).
    pub fingerprint: String,
    /// Tokenizer of the model.
    pub tokenizer: &'a Tokenizer,
    /// Source of the texts.
    pub texts: &'a Texts,
    /// Backend.
    pub backend: &'a dyn Backend,
    /// Settings of the evaluation.
    pub settings: EvaluationSettings,
    /// Digests of the files that pipelines name.
    pub files: FileDigests,
}

/// Tokens of a case's prompt.
pub(crate) struct CasePrompt {
    pub(crate) case: Case,
    /// Tokens that the prefill strategy reads.
    pub(crate) prefill: Vec<u32>,
    /// Tokens that the pipeline reads.
    pub(crate) sparse: Vec<u32>,
}

impl Evaluation<'_> {
    /// Answers every case with every variant; stored answers are reused. `progress` is called with
    /// the number of finished answers and the number of all answers, once for each.
    ///
    /// Cost of a case: a prefill of its context, and for each variant a step per token of question
    /// and answer.
    ///
    /// # Errors
    /// If a text cannot be created at its length, the model cannot read it, a pipeline cannot run
    /// with the model, or answers cannot be stored;
    /// [`Incomplete`](vattention_experiments::Error::Incomplete) if answers are missing. A shard
    /// computes every n-th case.
    pub fn run(
        &self,
        variants: &[Variant],
        cache: &mut AnswerCache,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<EvaluationReport> {
        let places = self.places();
        let part = cache.part();
        let allowed: Vec<usize> = match part {
            Part::All | Part::Nothing { .. } => (0..places.len()).collect(),
            Part::Shard(shard) => {
                (0..places.len()).filter(|&place| shard.has_interleaved(place)).collect()
            }
        };
        let collector = Collector::new(cache, allowed.len() * variants.len(), progress);
        let no_prompt = || None;
        let at_once = self.settings.at_once;
        let answers = run_in_parallel(allowed.len(), at_once, no_prompt, |previous, i| {
            self.run_case(places[allowed[i]], variants, previous, &collector)
        })?;
        let (mut records, mut missing) = (Vec::new(), Vec::new());
        for (answers, place) in answers.into_iter().zip(&allowed) {
            for answer in answers {
                match answer {
                    Ok(record) => records.push(record),
                    Err(unit) => {
                        missing.push(MissingUnit { unit, shard: part.interleaved_shard(*place) });
                    }
                }
            }
        }
        if !missing.is_empty() || matches!(part, Part::Shard(_)) {
            let incomplete = Incomplete::new(missing, places.len() * variants.len());
            return Err(vattention_experiments::Error::Incomplete(incomplete).into());
        }
        Ok(EvaluationReport::new(
            &self.settings,
            &self.config.shape,
            self.backend.name(),
            variants,
            records,
        ))
    }

    /// Answers one case with every variant; stored answers are reused. `previous` is the prompt
    /// that was read last. If an answer is missing and may not be computed, the inner error is the
    /// name of its unit.
    fn run_case(
        &self,
        (task, context, case): (Task, usize, usize),
        variants: &[Variant],
        previous: &mut Option<Prefilled>,
        collector: &Collector<'_>,
    ) -> Result<Vec<Result<Record, String>>> {
        let prompt = self.prompt(task, context, case_seed(self.settings.seed, case))?;
        let place = (task, context, case);
        let mut prefilled = None;
        let mut records = Vec::with_capacity(variants.len());
        for variant in variants {
            let digest = self.digest(&variant.pipeline, task, &prompt, case)?;
            if let Some(attended) = collector.find(&digest) {
                records.push(Ok(Record::new(digest, variant, place, &prompt.case, attended)));
            } else if collector.only_stored() {
                let name = variant.name();
                records.push(Err(format!("{task}, {context} tokens, case {case}, {name}")));
            } else {
                let prefilled = match &prefilled {
                    Some(prefilled) => prefilled,
                    None => prefilled.insert(self.prefill(previous.as_ref(), &prompt)?),
                };
                let attended = self.attend(task, variant, &prompt, prefilled, case)?;
                let record = Record::new(digest, variant, place, &prompt.case, attended);
                collector.store(&record)?;
                records.push(Ok(record));
            }
            collector.count();
        }
        *previous = prefilled.or(previous.take());
        Ok(records)
    }

    /// Returns the places (task, length, case) of all cases.
    pub(crate) fn places(&self) -> Vec<(Task, usize, usize)> {
        let EvaluationSettings { tasks, contexts, cases, .. } = &self.settings;
        let mut places = Vec::new();
        for &context in contexts {
            for &task in tasks {
                let count = self.texts.cases(task, *cases);
                places.extend((0..count).map(|case| (task, context, case)));
            }
        }
        places
    }

    pub(crate) fn prompt(&self, task: Task, context: usize, seed: u64) -> Result<CasePrompt> {
        let talk = self.talk(task);
        let around = self.count_template_tokens(talk)?;
        // A text that cannot be tokenized counts as too long; its error is returned below.
        let count =
            |text: &str| self.tokenizer.next(text).map_or(usize::MAX, |tokens| tokens.len());
        let case = self.texts.case(task, context.saturating_sub(around), seed, &count)?;
        let (mut prefill, mut sparse) = self.tokens(talk, &case)?;
        if self.settings.setup == Setup::A {
            prefill.append(&mut sparse);
        }
        self.config.check_length(prefill.len() + sparse.len() + case.tokens)?;
        Ok(CasePrompt { case, prefill, sparse })
    }

    /// Returns the chat template for the prompts of a task.
    fn talk(&self, task: Task) -> Option<&ChatPrompt> {
        let talk = self.settings.talk.as_ref();
        talk.filter(|_| !matches!(task, Task::Dataset(dataset) if !dataset.as_chat()))
    }

    /// Number of tokens of a prompt around the texts of a case.
    fn count_template_tokens(&self, talk: Option<&ChatPrompt>) -> Result<usize> {
        Ok(match talk {
            None => self.tokenizer.first("")?.len(),
            Some(talk) => {
                let (before, after) = talk.tokens(self.tokenizer, "-", "", "", false)?;
                before.len() + after.len()
            }
        })
    }

    /// Tokenizes the context and the question of a case.
    fn tokens(&self, talk: Option<&ChatPrompt>, case: &Case) -> Result<(Vec<u32>, Vec<u32>)> {
        let Some(talk) = talk else {
            return Ok((
                self.tokenizer.first(&case.context)?,
                self.tokenizer.next(&case.question)?,
            ));
        };
        let question = case.question.strip_suffix(&case.beginning).unwrap_or(&case.question);
        let beginning = case.beginning.trim_start();
        let must_split = self.settings.setup == Setup::B && !question.trim().is_empty();
        Ok(talk.tokens(self.tokenizer, &case.context, question, beginning, must_split)?)
    }

    /// Reads a prompt, except for the beginning that it has in common with the previous one.
    pub(crate) fn prefill(
        &self,
        previous: Option<&Prefilled>,
        prompt: &CasePrompt,
    ) -> Result<Prefilled> {
        Ok(self.weights.model()?.prefill_after(
            previous,
            &prompt.prefill,
            self.prefill_options(),
        )?)
    }

    fn prefill_options(&self) -> PrefillOptions {
        PrefillOptions { strategy: self.settings.prefill, ..PrefillOptions::default() }
    }

    /// Answers a case with a variant.
    pub(crate) fn attend(
        &self,
        task: Task,
        variant: &Variant,
        prompt: &CasePrompt,
        prefilled: &Prefilled,
        case: usize,
    ) -> Result<CaseAnswer> {
        let failed = |source| Error::pipeline(variant.name(), source);
        let (model, errors) = (self.weights.model()?, self.settings.errors);
        let (tokens, sums) = self
            .generate(model, &variant.pipeline, prompt, prefilled, case, errors)
            .map_err(failed)?;
        let answer = self.tokenizer.decode(&tokens)?;
        let sparse = self.settings.prefill != Strategy::Dense;
        Ok(CaseAnswer {
            score: task.score(&prompt.case, &answer),
            answer,
            attention: sums.summary(),
            prefill_density: sparse.then(|| prefilled.density()),
        })
    }

    /// Generates the tokens of an answer, and sums over the rows of its attention.
    pub(crate) fn generate(
        &self,
        model: &Model,
        pipeline: &Arc<PipelineConfig>,
        prompt: &CasePrompt,
        prefilled: &Prefilled,
        case: usize,
        errors: bool,
    ) -> vattention_llm::Result<(Vec<u32>, ObservedSums)> {
        let observed = ObservedBackend::new(self.backend, errors, ObservedSums::default());
        let options = Options { sequence: case as u32, ..self.settings.options.clone() };
        let session = Session::new(model, &observed, pipeline, &options)?;
        let mut session = session.with_classes(self.tokenizer.classes_for(pipeline)?);
        let logits = session.begin(prefilled)?;
        let logits = session.steps(logits, &prompt.sparse)?;
        let generation = session
            .continue_generation(logits, prompt.case.tokens, |_, _| ControlFlow::Continue(()))?;
        let sums = *observed.observer();
        Ok((generation.tokens, sums))
    }

    /// Returns the digest of everything that an answer depends on, except the program itself.
    pub(crate) fn digest(
        &self,
        pipeline: &PipelineConfig,
        task: Task,
        prompt: &CasePrompt,
        case: usize,
    ) -> Result<String> {
        let EvaluationSettings { setup, errors, options, .. } = &self.settings;
        let digest = Digest::default().with(&self.fingerprint).with(&(
            self.backend.name(),
            setup,
            errors,
            format!("{:?}", options.storage),
        ));
        let mut digest = digest.with(pipeline).with(&(
            &prompt.prefill,
            &prompt.sparse,
            prompt.case.tokens,
            &prompt.case.answers,
            case,
        ));
        // RULER's synthetic tasks have one metric each. Scores by a dataset's other metrics are
        // computed from the stored answer.
        if let Task::Dataset(dataset) = task {
            digest = digest.with(&(dataset.name(), dataset.metric().name(), &prompt.case.labels));
        }
        // A sparse strategy depends on the size of blocks; dense attention does not.
        let PrefillOptions { strategy, block, .. } = self.prefill_options();
        if strategy != Strategy::Dense {
            digest = digest.with(&(strategy, block));
        }
        for file in named_files(pipeline) {
            digest = digest.with(&self.files.digest(file)?);
        }
        Ok(digest.finish())
    }
}

/// Returns the seed of a case's text.
fn case_seed(seed: u64, case: usize) -> u64 {
    seed.wrapping_mul(1 << 32).wrapping_add(case as u64)
}
