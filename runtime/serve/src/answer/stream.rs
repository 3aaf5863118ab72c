//! Answers that are sent token by token, as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio_stream::Stream;

use super::{AnswerFormat, AnswerHead, EventReader, PreparedRequest, TextPart, UsageField};
use crate::engine::Event;
use crate::error::ApiError;
use crate::jobs::SubmittedJobs;
use crate::params::StreamParams;
use crate::served::ServedModel;

/// Event that ends a stream.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// Body of a streamed answer. If the client disconnects, the body is dropped, which cancels the
/// jobs.
struct ChunkStream<F> {
    format: F,
    head: AnswerHead,
    params: StreamParams,
    reader: EventReader,
    jobs: SubmittedJobs,
    /// Events to send.
    ready: VecDeque<Bytes>,
    is_finished: bool,
}

/// Waits for the first event, and starts the stream.
///
/// # Errors
/// Returns the error of the job if the first event is a failure.
pub(crate) async fn respond<F: AnswerFormat>(
    format: F,
    params: StreamParams,
    request: PreparedRequest,
    mut jobs: SubmittedJobs,
    served: &ServedModel,
) -> Result<Response, ApiError> {
    let first = jobs.next().await;
    if let Some((_, Event::Failed(error))) = first {
        return Err(error.into());
    }
    let head = AnswerHead::new::<F>(request.model.clone());
    let reader = EventReader::new(request, served);
    let ready = VecDeque::new();
    let mut stream = ChunkStream { format, head, params, reader, jobs, ready, is_finished: false };
    stream.open();
    if let Some((index, event)) = first {
        stream.read(index, event);
    }
    let headers = [(CONTENT_TYPE, "text/event-stream; charset=utf-8"), (CACHE_CONTROL, "no-cache")];
    Ok((headers, Body::from_stream(stream)).into_response())
}

impl<F: AnswerFormat> ChunkStream<F> {
    fn open(&mut self) {
        for index in 0..self.reader.choices() {
            let opening = self.format.opening(index);
            self.push_choice(opening.into_iter().collect(), None);
            if let Some(part) = self.reader.opening(index) {
                self.push_part(index, part);
            }
        }
    }

    fn read(&mut self, index: usize, event: Event) {
        match self.reader.read(index, event) {
            Ok(part) => self.push_part(index, part),
            Err(error) => {
                self.push_event(&error.document());
                self.finish();
            }
        }
    }

    fn push_part(&mut self, index: usize, mut part: TextPart) {
        let is_empty = part.text.is_empty() && part.tokens.is_empty() && part.finish.is_none();
        if is_empty && part.report.is_none() {
            return;
        }
        let report = part.report.take();
        let delta = self.format.delta(index, part);
        self.push_choice(vec![delta], report);
    }

    fn push_choice(&mut self, deltas: Vec<F::Delta>, report: Option<crate::engine::StepReport>) {
        if deltas.is_empty() {
            return;
        }
        let head = self.head.clone();
        let mut body = head.body(F::CHUNK, deltas);
        body.usage = self.params.usage.then_some(UsageField::Later(()));
        body.vattention = report;
        self.push_event(&body);
    }

    fn push_event(&mut self, event: &impl Serialize) {
        // These types have string keys and no fallible serializers, so an error cannot occur.
        let json = serde_json::to_string(event).unwrap_or_default();
        self.ready.push_back(format!("data: {json}\n\n").into());
    }

    fn push_usage(&mut self) {
        let head = self.head.clone();
        let mut body = head.body(F::CHUNK, Vec::<F::Delta>::new());
        body.usage = Some(UsageField::Complete(self.reader.usage()));
        self.push_event(&body);
    }

    fn finish(&mut self) {
        self.ready.push_back(Bytes::from_static(DONE));
        self.is_finished = true;
    }
}

impl<F: AnswerFormat> Stream for ChunkStream<F> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let stream = self.get_mut();
        loop {
            if let Some(event) = stream.ready.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if stream.is_finished {
                return Poll::Ready(None);
            }
            if let Some((index, event)) = ready!(stream.jobs.poll_next(context)) {
                stream.read(index, event);
                continue;
            }
            if stream.params.usage {
                stream.push_usage();
            }
            stream.finish();
        }
    }
}
