//! Answers of a model in a conversation.

use std::path::Path;
use std::time::{Duration, Instant};

use vattention::experiments::{Entry, available_memory};
use vattention::{Backend, Options, Storage};
use vattention_llm::{GenerationParams, Model, SamplingParams, Session, Stop, TextGenerator};

use super::conversation::Conversation;
use super::sequence::ChatSequence;
use crate::fail::{Failure, note};
use crate::models::checkpoint::{ModelFiles, row_bytes};
use crate::models::generate::{AnswerStream, StepTally};
use crate::models::sampling_args::name_option;
use crate::models::speculation_args::check_drafts;
use crate::outputs::Interrupt;
use crate::pipelines::{Changes, fits_model};

/// Model of a chat, and the options of its sessions.
#[derive(Clone, Copy)]
pub(super) struct ChatModel<'m> {
    pub(super) model: &'m Model,
    pub(super) checkpoint: &'m ModelFiles<'m>,
    pub(super) backend: &'m dyn Backend,
    pub(super) options: &'m Options,
    /// Maximum number of tokens of a conversation.
    pub(super) limit: usize,
}

/// Conversation with a model, which answers with a pipeline.
pub(super) struct ChatSession<'m> {
    pub(super) model: ChatModel<'m>,
    pub(super) conversation: Conversation,
    /// Pipeline of the next answer.
    pub(super) entry: Entry,
    pub(super) sequence: ChatSequence<'m>,
    /// Totals over the steps of the answers with this pipeline.
    pub(super) tally: StepTally<'static>,
    params: GenerationParams,
    interrupt: Interrupt,
}

/// Answer to a conversation.
pub(super) struct ChatAnswer {
    pub(super) text: String,
    pub(super) stop: Stop,
    /// Number of tokens.
    pub(super) tokens: usize,
    /// Time to read the new tokens of the conversation.
    pub(super) reading: Duration,
}

impl<'m> ChatModel<'m> {
    /// Returns an empty sequence with a pipeline.
    fn start(&self, entry: &Entry) -> Result<ChatSequence<'m>, Failure> {
        let session = Session::new(self.model, self.backend, &entry.pipeline, self.options)?;
        check_drafts(&session, self.options.rewindable)?;
        let classes = self.checkpoint.tokenizer.classes_for(&entry.pipeline)?;
        Ok(ChatSequence::new(session.with_classes(classes)))
    }

    /// Bytes of keys and values of a number of tokens.
    pub(super) fn row_bytes(&self, tokens: usize) -> u64 {
        let config = self.model.config();
        row_bytes(&config.shape, self.options.storage, config.layers, tokens)
    }

    /// Returns the maximum number of tokens of an answer to a conversation of `tokens` tokens, of
    /// which `new` are not read yet.
    fn find_room(&self, tokens: usize, new: usize) -> Result<usize, Failure> {
        if tokens >= self.limit {
            let limit = self.limit;
            return Err(Failure::input(format!(
                "the context is full: the conversation would have {tokens} tokens; expected less \
                 than {limit}, so that an answer fits"
            )));
        }
        // Dense attention reads a whole conversation in f32, before the cache converts its rows.
        let config = self.model.config();
        let read = row_bytes(&config.shape, Storage::F32, config.layers, new);
        let needed = self.row_bytes(new) + if new == tokens { read } else { 0 };
        match available_memory() {
            Some(available) if needed > available => Err(Failure::input(format!(
                "{needed} bytes of memory needed for keys and values of {new} tokens; {available} \
                 are available"
            ))),
            _ => Ok(self.limit - tokens),
        }
    }
}

impl<'m> ChatSession<'m> {
    pub(super) fn new(
        model: ChatModel<'m>,
        conversation: Conversation,
        entry: Entry,
        params: GenerationParams,
        interrupt: Interrupt,
    ) -> Result<Self, Failure> {
        let (sequence, tally) = (model.start(&entry)?, StepTally::new(None));
        Ok(Self { model, conversation, entry, sequence, tally, params, interrupt })
    }

    /// Begins a new conversation.
    pub(super) fn reset(&mut self) -> Result<(), Failure> {
        self.conversation.clear();
        self.tally = StepTally::new(None);
        self.restart()
    }

    /// Switches to another pipeline for the following answers.
    pub(super) fn use_pipeline(&mut self, file: &Path, changes: &Changes) -> Result<(), Failure> {
        let (entry, _) = changes.load_one(file)?;
        fits_model(&entry, &self.model.checkpoint.layers(), self.model.backend)
            .map_err(|reason| Failure::input(format!("{}: {reason}", entry.file)))?;
        self.sequence = self.model.start(&entry)?;
        self.entry = entry;
        self.tally = StepTally::new(None);
        Ok(())
    }

    /// Forgets the sequence, so that the next answer reads the conversation from its beginning.
    fn restart(&mut self) -> Result<(), Failure> {
        self.sequence = self.model.start(&self.entry)?;
        Ok(())
    }

    /// Answers the conversation's last message, and prints the answer as it arrives unless `silent`
    /// is true. The message is taken back after an error, or after Ctrl-C before the first word.
    pub(super) fn answer(&mut self, silent: bool) -> Result<ChatAnswer, Failure> {
        self.interrupt.stop_work_first();
        let answer = self.try_answer(silent);
        self.interrupt.end_work();
        match &answer {
            Ok(ChatAnswer { stop: Stop::Interrupted, text, .. }) if text.is_empty() => {
                self.conversation.take_back();
                note("interrupted before the answer began; the message was taken back");
            }
            Ok(answer) => self.conversation.push_answer(&answer.text),
            Err(_) => self.conversation.take_back(),
        }
        answer
    }

    fn try_answer(&mut self, silent: bool) -> Result<ChatAnswer, Failure> {
        let rendered = self.conversation.render()?;
        let new = self.find_new_tokens(&rendered)?;
        let read = self.sequence.session.len();
        let room = self.model.find_room(read + new.len(), new.len())?;
        let answer = self.read_and_stream(rendered, new, room, silent);
        if answer.is_err() {
            self.restart()?;
        }
        let answer = answer?;
        if answer.stop == Stop::Length && room < self.params.max_tokens {
            let limit = self.model.limit;
            note(&format!(
                "the context of {limit} tokens is full, so the answer ends; /reset begins a new \
                 conversation"
            ));
        }
        Ok(answer)
    }

    /// Returns the tokens to read before the answer. If the template has changed earlier messages,
    /// so that the conversation does not continue the sequence, an empty sequence replaces it.
    fn find_new_tokens(&mut self, rendered: &str) -> Result<Vec<u32>, Failure> {
        let tokenizer = &self.model.checkpoint.tokenizer;
        if let Some(new) = self.sequence.find_new_tokens(rendered, tokenizer)? {
            return Ok(new);
        }
        self.restart()?;
        let new = tokenizer.next(rendered)?;
        note(&format!(
            "the conversation in its template differs from what the model has read; its {} tokens \
             are read again",
            new.len()
        ));
        Ok(new)
    }

    fn read_and_stream(
        &mut self,
        rendered: String,
        new: Vec<u32>,
        room: usize,
        silent: bool,
    ) -> Result<ChatAnswer, Failure> {
        let begin = Instant::now();
        let logits = self.sequence.read(rendered, new, &self.interrupt)?;
        let reading = begin.elapsed();
        let Some(logits) = logits else {
            return Ok(ChatAnswer {
                text: String::new(),
                stop: Stop::Interrupted,
                tokens: 0,
                reading,
            });
        };
        let params = self.params_of_answer(room);
        let (tokenizer, config) = (&self.model.checkpoint.tokenizer, self.model.model.config());
        let prompt = self.sequence.tokens().to_vec();
        let generator = TextGenerator::new(&params, tokenizer, config, &prompt);
        self.tally.skip_steps(&self.sequence.session);
        let mut stream = AnswerStream::new(
            &mut self.sequence.session,
            prompt,
            &self.interrupt,
            generator.map_err(name_option)?,
            &mut self.tally,
        );
        stream.silent = silent;
        let stop = stream.write_answer(logits)?;
        let AnswerStream { text, generator, .. } = stream;
        let generated = generator.tokens();
        self.sequence.end_answer(generated, &tokenizer.decode(generated)?);
        Ok(ChatAnswer { text, stop, tokens: generated.len(), reading })
    }

    /// Returns the parameters of the next answer. Each answer draws from a random stream of its
    /// own.
    fn params_of_answer(&self, room: usize) -> GenerationParams {
        let params = self.params.clone();
        let number = self.conversation.count_answers() as u64;
        let seed = params.sampling.seed.wrapping_add(number);
        GenerationParams {
            max_tokens: params.max_tokens.min(room),
            sampling: SamplingParams { seed, ..params.sampling },
            ..params
        }
    }
}
