//! Answers that are sent when they are complete.

use axum::Json;
use axum::response::{IntoResponse, Response};

use super::{AnswerFormat, AnswerHead, EventReader, PreparedRequest, TextPart, UsageField};
use crate::error::ApiError;
use crate::jobs::SubmittedJobs;
use crate::served::ServedModel;

/// Waits for the end of all jobs, and returns the answer.
///
/// # Errors
/// Returns the error of the first job that fails; the others are then cancelled.
pub(crate) async fn respond<F: AnswerFormat>(
    format: &F,
    request: PreparedRequest,
    mut jobs: SubmittedJobs,
    served: &ServedModel,
) -> Result<Response, ApiError> {
    let head = AnswerHead::new::<F>(request.model.clone());
    let mut reader = EventReader::new(request, served);
    let opening = |index| reader.opening(index).unwrap_or_default();
    let mut wholes: Vec<TextPart> = (0..reader.choices()).map(opening).collect();
    while let Some((index, event)) = jobs.next().await {
        wholes[index].append(reader.read(index, event)?);
    }
    let choices = wholes.into_iter().enumerate();
    let choices = choices.map(|(index, whole)| format.choice(index, whole)).collect();
    let mut body = head.body(F::OBJECT, choices);
    body.usage = Some(UsageField::Complete(reader.usage()));
    Ok(Json(body).into_response())
}

impl TextPart {
    fn append(&mut self, next: Self) {
        self.text.push_str(&next.text);
        self.tokens.extend(next.tokens);
        self.offsets.extend(next.offsets);
        self.finish = next.finish.or(self.finish);
    }
}
