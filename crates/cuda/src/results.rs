//! Converts the results of a routine into the outputs of query heads.

use vattention_backends::{HeadInput, HeadOutput, RowOutput, RowSums};
use vattention_core::{
    Certificate, Kind, RowReport, engine::Timings, pipeline::List, promise::Assumptions,
    step::Softmax,
};

use crate::formula::ClosedForm;
use crate::launch::SampleState;
use crate::plan::Plan;
use crate::routine::{ListTokens, RoutineKind, RoutineOutput};

/// Results of a routine at one step of all KV heads.
pub(crate) struct StepResults<'a> {
    pub(crate) kind: &'a RoutineKind,
    pub(crate) plan: &'a Plan,
    pub(crate) found: RoutineOutput,
    pub(crate) tokens: Option<ListTokens>,
}

impl StepResults<'_> {
    /// Returns the output of one KV head.
    pub(crate) fn head_output(&self, kv_head: usize, head: &HeadInput<'_>) -> HeadOutput {
        let group = self.kind.shape.group();
        let row = |member: usize| {
            let query_head = kv_head * group + member;
            let list = query_head / self.kind.heads_per_list();
            let report = self.report(head, kv_head, list);
            RowOutput {
                sums: RowSums { sums: self.sums(head, query_head, list), logits: Vec::new() },
                list: self.tokens.as_ref().map(|tokens| tokens.list(list, &report)),
                report,
            }
        };
        HeadOutput { rows: (0..group).map(row).collect(), timings: Timings::default() }
    }

    /// Report of the query heads that read token list `list`.
    fn report(&self, head: &HeadInput<'_>, kv_head: usize, list: usize) -> RowReport {
        let SampleState { drawn, budget, held } = self.progress(list);
        let (visible, certain) = (head.step.visible, self.found.taken[list]);
        let sample = self.plan.sample.as_ref().filter(|_| certain < visible);
        let (kind, assumes) = match sample.map(|sample| &sample.budget) {
            _ if certain + drawn == visible => (Kind::Exact, Assumptions::NONE),
            Some(ClosedForm::Formula { kind, assumes, .. }) => (*kind, *assumes),
            Some(ClosedForm::Size(_)) | None => (Kind::None, Assumptions::NONE),
        };
        let exact = kind == Kind::Exact;
        let config = head.pipeline.config();
        RowReport {
            visible,
            certain,
            sampled: drawn,
            read_by_group: self.found.read[kv_head],
            budget: sample.map(|_| budget),
            fell_back: false,
            unobserved: false,
            rounding: None,
            certificate: Certificate {
                promise: config.promise(),
                bar: config.goal().filter(|_| exact).map(|goal| goal.bar(0.0)),
                kind,
                assumes,
                held: exact || (sample.is_some() && held),
            },
        }
    }

    fn progress(&self, list: usize) -> SampleState {
        self.found.progress.get(list).copied().unwrap_or_default()
    }

    /// Sums over the always-read tokens, plus the Horvitz-Thompson estimate from the sample.
    fn sums(&self, head: &HeadInput<'_>, query_head: usize, list: usize) -> Softmax {
        let mut sums = self.found.certain[query_head].clone();
        let drawn = self.progress(list).drawn;
        if drawn > 0 {
            let mut sample = self.found.sample[query_head].clone();
            let p = probability(drawn, head.step.visible - self.found.taken[list]);
            sample.scale(1.0 / f64::from(p));
            sums.merge(&sample);
        }
        sums
    }
}

/// Inclusion probability of each of the `rest` tokens in a uniform sample of `drawn`.
fn probability(drawn: usize, rest: usize) -> f32 {
    (drawn as f64 / rest as f64) as f32
}

impl ListTokens {
    /// Tokens of a list with their inclusion probabilities, in ascending order.
    fn list(&self, list: usize, report: &RowReport) -> List {
        let taken = self.taken[list].iter().map(|&token| (token, 1.0));
        let p = probability(report.sampled, report.visible - report.certain);
        let drawn = self.drawn.get(list).into_iter().flatten().map(|&token| (token, p));
        let mut entries: Vec<(u32, f32)> = taken.chain(drawn).collect();
        entries.sort_unstable_by_key(|&(token, _)| token);
        let (indices, probabilities) = entries.into_iter().unzip();
        let RowReport { sampled, budget, certificate, .. } = *report;
        List { indices, probabilities, sampled, budget, certificate }
    }
}
