//! From what a routine found to the answers of rows.

use vattention_backends::{HeadInput, HeadOutput, RowOutput, RowSums};
use vattention_core::{
    Certificate, Kind, RowReport, engine::Timings, pipeline::List, promise::Assumptions,
    step::Softmax,
};

use crate::formula::ClosedForm;
use crate::launch::Progressed;
use crate::plan::Plan;
use crate::routine::{Found, RoutineKind, Tokens};

/// What a routine found at one step of all KV heads.
pub(crate) struct Answered<'a> {
    pub(crate) kind: &'a RoutineKind,
    pub(crate) plan: &'a Plan,
    pub(crate) found: Found,
    pub(crate) tokens: Option<Tokens>,
}

impl Answered<'_> {
    /// What it is for one KV head.
    pub(crate) fn head(&self, kv_head: usize, head: &HeadInput<'_>) -> HeadOutput {
        let group = self.kind.shape.group();
        let row = |member: usize| {
            let query_head = kv_head * group + member;
            let list = query_head / self.kind.readers();
            let report = self.report(head, kv_head, list);
            RowOutput {
                sums: RowSums { sums: self.sums(head, query_head, list), logits: Vec::new() },
                list: self.tokens.as_ref().map(|tokens| tokens.list(list, &report)),
                report,
            }
        };
        HeadOutput { rows: (0..group).map(row).collect(), timings: Timings::default() }
    }

    /// The report of a row that reads a list.
    fn report(&self, head: &HeadInput<'_>, kv_head: usize, list: usize) -> RowReport {
        let Progressed { drawn, budget, held } = self.progress(list);
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
            certificate: Certificate {
                promise: config.promise(),
                bar: config.goal().filter(|_| exact).map(|goal| goal.bar(0.0)),
                kind,
                assumes,
                held: exact || (sample.is_some() && held),
            },
        }
    }

    fn progress(&self, list: usize) -> Progressed {
        self.found.progress.get(list).copied().unwrap_or_default()
    }

    /// The certain part, and the sample for all of the rest.
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

/// With which a token of a sample of the rest was drawn.
fn probability(drawn: usize, rest: usize) -> f32 {
    (drawn as f64 / rest as f64) as f32
}

impl Tokens {
    /// The tokens of a list, in order.
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
