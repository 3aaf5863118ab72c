//! Texts of all tasks, and their sources.

use std::path::Path;

use crate::draw::SeededDraw;
use crate::fit::TokenLimit;
use crate::prose::Prose;
use crate::qa::QuestionSet;
use crate::source::WordSource;
use crate::vocabulary::Vocabulary;
use crate::words::Ruler;
use crate::{Benchmark, Case, Error, Result, Task, cwe, fwe, niah, qa_files, vt};

/// Words, sentences and files from which texts are generated.
#[derive(Clone, Debug)]
pub struct Texts {
    words: Words,
    squad: Option<QuestionSet>,
    hotpot: Option<QuestionSet>,
    benchmark: Option<Benchmark>,
}

#[derive(Clone, Debug)]
enum Words {
    Ruler(Ruler),
    Vocabulary(Box<Vocabulary>),
}

impl Texts {
    /// Returns texts with words in the style of RULER. The haystack of prose is sentences of random
    /// words.
    pub fn ruler() -> Self {
        Self::new(Words::Ruler(Ruler::default()))
    }

    fn new(words: Words) -> Self {
        Self { words, squad: None, hotpot: None, benchmark: None }
    }

    /// Returns texts that contain only the words of a vocabulary file, format
    /// "vattention-recall/1", for `niah_...` and `vt`.
    ///
    /// # Errors
    /// [`Error::File`], and [`Error::Malformed`] with the wrong place.
    pub fn open(vocabulary: &Path) -> Result<Self> {
        Ok(Self::new(Words::Vocabulary(Box::new(Vocabulary::open(vocabulary)?))))
    }

    /// Uses a text file as the haystack of prose, from its beginning; it is repeated if it is too
    /// short.
    ///
    /// # Errors
    /// [`Error::File`]; [`Error::Malformed`] if the file has no words, or these texts use a
    /// vocabulary, which has its own haystack.
    pub fn with_haystack(mut self, prose: &Path) -> Result<Self> {
        match &mut self.words {
            Words::Ruler(words) => words.prose = Some(Prose::open(prose)?),
            Words::Vocabulary(_) => {
                let reason = "a vocabulary has its own haystack; expected no other";
                return Err(Error::malformed(prose, reason));
            }
        }
        Ok(self)
    }

    /// Uses a file of SQuAD, 1.1 or 2.0, for the questions of `qa_1`.
    ///
    /// # Errors
    /// [`Error::File`], and [`Error::Malformed`] with the wrong place.
    pub fn with_squad(mut self, json: &Path) -> Result<Self> {
        self.squad = Some(qa_files::squad(json)?);
        Ok(self)
    }

    /// Uses a file of HotpotQA, with distractors, for the questions of `qa_2`.
    ///
    /// # Errors
    /// [`Error::File`], and [`Error::Malformed`] with the wrong place.
    pub fn with_hotpot(mut self, json: &Path) -> Result<Self> {
        self.hotpot = Some(qa_files::hotpot(json)?);
        Ok(self)
    }

    /// Uses a benchmark for the cases of datasets.
    #[must_use]
    pub fn with_benchmark(mut self, benchmark: Benchmark) -> Self {
        self.benchmark = Some(benchmark);
        self
    }

    /// Number of cases of a task, at most `limit`: a dataset has no more cases than its rows.
    pub fn cases(&self, task: Task, limit: usize) -> usize {
        match (task, &self.benchmark) {
            (Task::Dataset(dataset), Some(benchmark)) => benchmark.cases(dataset).min(limit),
            _ => limit,
        }
    }

    /// Generates the text of a task that is as long as possible within `tokens`, including
    /// [`Case::tokens`] for the answer. `count` returns the number of tokens of a text; it is
    /// called O(log `tokens`) times, for context and question separately. Equal `task`, `tokens`,
    /// `seed` and counts give equal texts. For a dataset, `seed` is the place in its file, modulo
    /// the number of cases.
    ///
    /// # Errors
    /// [`Error::TooShort`] if the shortest text does not fit, [`Error::Wordless`] if the vocabulary
    /// lacks words for the task, [`Error::MissingUnit`] if the task needs a file of questions.
    pub fn case(
        &self,
        task: Task,
        tokens: usize,
        seed: u64,
        count: &dyn Fn(&str) -> usize,
    ) -> Result<Case> {
        let length = TokenLimit { tokens, count };
        if let Task::Dataset(dataset) = task {
            let files = self.benchmark.as_ref();
            let files = files
                .ok_or(Error::MissingUnit { task: task.name(), what: "rows of a benchmark" })?;
            return files.case(dataset, seed, length);
        }
        let draw = SeededDraw::new(task, tokens, seed);
        if let (Words::Vocabulary(words), Task::Cwe | Task::Fwe | Task::Qa1 | Task::Qa2) =
            (&self.words, task)
        {
            return Err(Error::Wordless { path: words.path.clone(), task: task.name() });
        }
        match task {
            Task::Vt => vt::case(self.source(), length, &draw),
            Task::Cwe => cwe::case(length, &draw),
            Task::Fwe => fwe::case(length, &draw),
            Task::Qa1 => {
                require(self.squad.as_ref(), task, "paragraphs of SQuAD")?.case(task, length, &draw)
            }
            Task::Qa2 => require(self.hotpot.as_ref(), task, "paragraphs of HotpotQA")?
                .case(task, length, &draw),
            _ => niah::case(task, self.source(), length, &draw),
        }
    }

    fn source(&self) -> &dyn WordSource {
        match &self.words {
            Words::Ruler(words) => words,
            Words::Vocabulary(words) => words.as_ref(),
        }
    }
}

fn require<'a>(
    questions: Option<&'a QuestionSet>,
    task: Task,
    what: &'static str,
) -> Result<&'a QuestionSet> {
    questions.ok_or(Error::MissingUnit { task: task.name(), what })
}
