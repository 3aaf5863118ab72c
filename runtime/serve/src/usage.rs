//! Token counts of a request, and statistics of its attention.

use serde::Serialize;

use crate::engine::JobUsage;

/// Object `usage` of the API.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct UsageBody {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptDetails,
    vattention: AttentionUsage,
}

/// Object `usage.prompt_tokens_details`.
#[derive(Clone, Debug, Serialize)]
struct PromptDetails {
    cached_tokens: usize,
}

/// Object `usage.vattention`: statistics of the pipeline's attention.
#[derive(Clone, Debug, Serialize)]
struct AttentionUsage {
    /// Mean share of the visible tokens that decode steps read; `None` if there was no decode step.
    read: Option<f64>,
    /// Share of the rows whose certificate states that the promise held.
    held: Option<f64>,
    /// Largest error bar of a row.
    largest_bar: Option<f64>,
    /// Size of the indexes at the end of the jobs, in bytes.
    index_bytes: usize,
}

/// Sums over the jobs of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct UsageSum {
    prompt_tokens: usize,
    cached_tokens: usize,
    completion_tokens: usize,
    read: WeightedMean,
    held: WeightedMean,
    largest_bar: Option<f64>,
    index_bytes: usize,
}

/// Weighted mean that ignores missing values.
#[derive(Clone, Debug, Default)]
struct WeightedMean {
    sum: f64,
    weight: f64,
}

impl WeightedMean {
    fn add(&mut self, value: Option<f64>, weight: f64) {
        if let Some(value) = value {
            self.sum += value * weight;
            self.weight += weight;
        }
    }

    fn value(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }
}

impl UsageSum {
    /// Adds a job. `counts_prompt` is true for the first of the jobs that share a prompt; `steps`
    /// is the number of prompt tokens that were decoded by the pipeline.
    pub(crate) fn add(&mut self, job: &JobUsage, counts_prompt: bool, steps: usize) {
        if counts_prompt {
            self.prompt_tokens += job.prompt_tokens;
            self.cached_tokens += job.cached_tokens;
        }
        self.completion_tokens += job.completion_tokens;
        let weight = (steps + job.completion_tokens).max(1) as f64;
        self.read.add(job.read, weight);
        self.held.add(job.held, weight);
        self.largest_bar =
            [self.largest_bar, job.largest_bar].into_iter().flatten().reduce(f64::max);
        self.index_bytes += job.index_bytes;
    }

    pub(crate) fn body(&self) -> UsageBody {
        UsageBody {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            total_tokens: self.prompt_tokens + self.completion_tokens,
            prompt_tokens_details: PromptDetails { cached_tokens: self.cached_tokens },
            vattention: AttentionUsage {
                read: self.read.value(),
                held: self.held.value(),
                largest_bar: self.largest_bar,
                index_bytes: self.index_bytes,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_of_a_prompt_count_it_once() {
        let job = |read, completion_tokens| JobUsage {
            prompt_tokens: 5,
            completion_tokens,
            read,
            largest_bar: read,
            ..JobUsage::default()
        };
        let mut sum = UsageSum::default();
        sum.add(&job(Some(0.5), 1), true, 0);
        sum.add(&job(Some(0.25), 3), false, 0);
        sum.add(&job(None, 9), true, 0);
        let body = sum.body();
        assert_eq!((body.prompt_tokens, body.completion_tokens, body.total_tokens), (10, 13, 23));
        assert_eq!(body.vattention.read, Some((0.5 + 3.0 * 0.25) / 4.0));
        assert_eq!(body.vattention.largest_bar, Some(0.5));
        assert_eq!(body.vattention.held, None);
    }
}
