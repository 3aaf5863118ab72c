//! A model that is asked the cases of tasks by several pipelines.

use std::ops::ControlFlow;
use std::sync::Arc;

use vattention_core::{Backend, Options, PipelineConfig};
use vattention_experiments::{Digest, Files, Incomplete, Missing, Part, Variant, named_files};
use vattention_llm::{Config, Model, PrefillOptions, Prefilled, Session, Strategy, Tokenizer};
use vattention_tasks::{Case, Task, Texts};

use crate::answer_cache::AnswerCache;
use crate::at_once;
use crate::collector::Collector;
use crate::error::{Error, Result};
use crate::observed::{AttentionSums, ObservedBackend};
use crate::record::{CaseAnswer, Record};
use crate::report::EvaluationReport;
use crate::settings::{EvaluationSettings, Setup};
use crate::talk::Talk;
use crate::weights::LazyWeights;

/// A model, and everything that it is asked with.
#[allow(missing_debug_implementations)]
pub struct Evaluation<'a> {
    /// The model's settings.
    pub config: &'a Config,
    /// Its weights.
    pub weights: LazyWeights<'a>,
    /// Changes where the model does: answers are kept for it. See [`fingerprint`](crate::fingerprint).
    pub fingerprint: String,
    /// Its tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// Where texts come from.
    pub texts: &'a Texts,
    /// The machine.
    pub backend: &'a dyn Backend,
    /// What is asked.
    pub settings: EvaluationSettings,
    /// Files that pipelines name.
    pub files: Files,
}

/// A case in tokens.
pub(crate) struct CasePrompt {
    pub(crate) case: Case,
    /// Read by the prefill strategy.
    pub(crate) prefill: Vec<u32>,
    /// Read by the pipeline.
    pub(crate) sparse: Vec<u32>,
}

impl Evaluation<'_> {
    /// Asks every case of every variant, but for those whose answers are kept. `progress` is
    /// called with the number of answers and of all, once for each.
    ///
    /// Cost of a case: a prefill of its context, and for each variant a step per token of
    /// question and answer.
    ///
    /// # Errors
    /// A text that cannot be made so short, a model that cannot take it, a pipeline that cannot run
    /// with the model, answers that cannot be kept, or
    /// [`Incomplete`](vattention_experiments::Error::Incomplete) if others are missing: of a shard, all cases but
    /// every n-th.
    pub fn run(
        &self,
        variants: &[Variant],
        kept: &mut AnswerCache,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<EvaluationReport> {
        let places = self.places();
        let part = kept.part();
        let own: Vec<usize> = match part {
            Part::All | Part::Nothing { .. } => (0..places.len()).collect(),
            Part::Shard(shard) => {
                (0..places.len()).filter(|&place| shard.has_by_turns(place)).collect()
            }
        };
        let collector = Collector::new(kept, own.len() * variants.len(), progress);
        let nothing_read = || None;
        let asked = at_once::each(own.len(), self.settings.at_once, nothing_read, |before, i| {
            self.ask(places[own[i]], variants, before, &collector)
        })?;
        let (mut records, mut missing) = (Vec::new(), Vec::new());
        for (answer, place) in asked.into_iter().zip(&own) {
            for one in answer {
                match one {
                    Ok(record) => records.push(record),
                    Err(unit) => missing.push(Missing { unit, shard: part.shard_by_turns(*place) }),
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

    /// Asks one case of every variant, but for those whose answers are kept. `before` is the prompt
    /// that was read last. An answer that is missing and may not be asked for is said in words.
    fn ask(
        &self,
        (task, context, case): (Task, usize, usize),
        variants: &[Variant],
        before: &mut Option<Prefilled>,
        collector: &Collector<'_>,
    ) -> Result<Vec<Result<Record, String>>> {
        let prompt = self.prompt(task, context, case_seed(self.settings.seed, case))?;
        let place = (task, context, case);
        let mut read = None;
        let mut records = Vec::with_capacity(variants.len());
        for variant in variants {
            let digest = self.digest(&variant.pipeline, task, &prompt, case)?;
            if let Some(attended) = collector.find(&digest) {
                records.push(Ok(Record::new(digest, variant, place, &prompt.case, attended)));
            } else if collector.only_kept() {
                let name = variant.name();
                records.push(Err(format!("{task}, {context} tokens, case {case}, {name}")));
            } else {
                let prefilled = match &read {
                    Some(prefilled) => prefilled,
                    None => read.insert(self.read(before.as_ref(), &prompt)?),
                };
                let attended = self.attend(task, variant, &prompt, prefilled, case)?;
                let record = Record::new(digest, variant, place, &prompt.case, attended);
                collector.keep(&record)?;
                records.push(Ok(record));
            }
            collector.count();
        }
        *before = read.or(before.take());
        Ok(records)
    }

    /// Every task at every length, case by case.
    pub(crate) fn places(&self) -> Vec<(Task, usize, usize)> {
        let EvaluationSettings { tasks, contexts, cases, .. } = &self.settings;
        let of = |context: usize, task: Task| {
            (0..self.texts.cases(task, *cases)).map(move |case| (task, context, case))
        };
        let at = |&context: &usize| tasks.iter().flat_map(move |&task| of(context, task));
        contexts.iter().flat_map(at).collect()
    }

    pub(crate) fn prompt(&self, task: Task, context: usize, seed: u64) -> Result<CasePrompt> {
        let talk = self.talk(task);
        let around = self.around(talk)?;
        // A text that cannot be counted fits nowhere; it is refused below, where it is encoded.
        let count = |text: &str| self.tokenizer.next(text).map_or(usize::MAX, |it| it.len());
        let case = self.texts.case(task, context.saturating_sub(around), seed, &count)?;
        let (mut prefill, mut sparse) = self.tokens(talk, &case)?;
        if self.settings.setup == Setup::A {
            prefill.append(&mut sparse);
        }
        self.config.check_length(prefill.len() + sparse.len() + case.tokens)?;
        Ok(CasePrompt { case, prefill, sparse })
    }

    /// How a task is put to a model that chats.
    fn talk(&self, task: Task) -> Option<&Talk> {
        let talk = self.settings.talk.as_ref();
        talk.filter(|_| !matches!(task, Task::Dataset(dataset) if !dataset.as_chat()))
    }

    /// Tokens of a prompt that are of no text of a case.
    fn around(&self, talk: Option<&Talk>) -> Result<usize> {
        Ok(match talk {
            None => self.tokenizer.first("")?.len(),
            Some(talk) => {
                let (before, after) = talk.tokens(self.tokenizer, "-", "", "", false)?;
                before.len() + after.len()
            }
        })
    }

    /// The tokens of context and question.
    fn tokens(&self, talk: Option<&Talk>, case: &Case) -> Result<(Vec<u32>, Vec<u32>)> {
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

    /// Reads a prompt, but for the beginning that it has in common with the one before.
    pub(crate) fn read(
        &self,
        before: Option<&Prefilled>,
        prompt: &CasePrompt,
    ) -> Result<Prefilled> {
        Ok(self.weights.model()?.prefill_after(before, &prompt.prefill, self.reading())?)
    }

    fn reading(&self) -> PrefillOptions {
        PrefillOptions { strategy: self.settings.prefill, ..PrefillOptions::default() }
    }

    /// What a variant answers, and what its attention did meanwhile.
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
        let (tokens, seen) = self
            .answer(model, &variant.pipeline, prompt, prefilled, case, errors)
            .map_err(failed)?;
        let answer = self.tokenizer.decode(&tokens)?;
        let sparse = self.settings.prefill != Strategy::Dense;
        Ok(CaseAnswer {
            score: task.score(&prompt.case, &answer),
            answer,
            attention: seen.summary(),
            prefill_density: sparse.then(|| prefilled.density()),
        })
    }

    pub(crate) fn answer(
        &self,
        model: &Model,
        pipeline: &Arc<PipelineConfig>,
        prompt: &CasePrompt,
        prefilled: &Prefilled,
        case: usize,
        errors: bool,
    ) -> vattention_llm::Result<(Vec<u32>, AttentionSums)> {
        let observed = ObservedBackend::new(self.backend, errors, AttentionSums::default());
        let options = Options { sequence: case as u32, ..self.settings.options.clone() };
        let session = Session::new(model, &observed, pipeline, &options)?;
        let mut session = session.with_classes(self.tokenizer.classes_for(pipeline)?);
        let logits = session.begin(prefilled)?;
        let logits = session.steps(logits, &prompt.sparse)?;
        let generation =
            session.go_on(logits, prompt.case.tokens, |_, _| ControlFlow::Continue(()))?;
        let seen = *observed.observer();
        Ok((generation.tokens, seen))
    }

    /// Changes with everything that an answer depends on, but for the program itself.
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
        // RULER's synthetic tasks have one metric each.
        if let Task::Dataset(dataset) = task {
            digest = digest.with(&(dataset.name(), dataset.metric().name(), &prompt.case.labels));
        }
        // A strategy chooses block by block; dense attention gives the same in blocks of any size.
        let PrefillOptions { strategy, block, .. } = self.reading();
        if strategy != Strategy::Dense {
            digest = digest.with(&(strategy, block));
        }
        for learnt in named_files(pipeline) {
            digest = digest.with(&self.files.digest(learnt)?);
        }
        Ok(digest.finish())
    }
}

/// The seed of a case's text.
fn case_seed(seed: u64, case: usize) -> u64 {
    seed.wrapping_mul(1 << 32).wrapping_add(case as u64)
}
