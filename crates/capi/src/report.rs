//! Reports of rows.

use vattention::plugin::{Assumption, Assumptions};
use vattention::{Fraction, Kind, RowReport, Target};

/// Ground that a promise and an error bar rest on, weakest first: VA_KIND_NONE, ...
pub type va_kind = u32;

/// Nothing is promised.
pub const VA_KIND_NONE: va_kind = 0;
/// The bound holds under the assumptions of the report.
pub const VA_KIND_ASYMPTOTIC: va_kind = 1;
/// Every quantity in the bound is proved.
pub const VA_KIND_FINITE_SAMPLE: va_kind = 2;
/// Every token was read.
pub const VA_KIND_EXACT: va_kind = 3;

/// Quantity whose error is bounded: VA_TARGET_OUTPUT, ...
pub type va_target = u32;

/// The attention output, in the Euclidean norm.
pub const VA_TARGET_OUTPUT: va_target = 0;
/// The softmax denominator.
pub const VA_TARGET_DENOMINATOR: va_target = 1;
/// The numerator of the output, in the Euclidean norm.
pub const VA_TARGET_NUMERATOR: va_target = 2;

/// Assumption: sums over the sample are approximately normal.
pub const VA_ASSUMES_NORMAL: u32 = 1;
/// Assumption: norms and variances estimated from the sample are close to the true ones.
pub const VA_ASSUMES_MOMENTS: u32 = 2;
/// Assumption: no undrawn token is much heavier than the drawn tokens.
pub const VA_ASSUMES_TAIL_SEEN: u32 = 4;

/// Flag: every token was read, or the last check found the sample large enough for the promise.
pub const VA_HELD: u32 = 1;
/// Flag: the row has a promise, with `epsilon` and `delta`.
pub const VA_PROMISED: u32 = 2;
/// Flag: every token was read, because that is faster than reading a long list.
pub const VA_FELL_BACK: u32 = 4;
/// Flag: a selector picked every token, because it has not observed a prompt.
pub const VA_UNOBSERVED: u32 = 8;

/// Report of one row: one query head at one query. Pr(relative error > epsilon) <= delta, if the
/// row has a promise; Pr(relative error > bar) <= delta, if `bar` is finite.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct va_report {
    /// Number of tokens that the row may read.
    pub visible: usize,
    /// Number of tokens that the row read: `certain + sampled`.
    pub read: usize,
    /// Number of tokens that are always read, which the selectors picked.
    pub certain: usize,
    /// Number of tokens that were drawn.
    pub sampled: usize,
    /// Number of distinct tokens that the query heads of the KV head read together.
    pub read_by_group: usize,
    /// Sample size that the estimator required at its last check; 0 without a check.
    pub budget: usize,
    /// Error bar: bound on the relative error, infinite if there is none.
    pub bar: f64,
    /// Relative error that the promise allows; 0 without a promise.
    pub epsilon: f64,
    /// Probability with which the error may exceed epsilon, or the bar; 0 without both.
    pub delta: f64,
    /// Quantity that promise and bar are about.
    pub target: va_target,
    /// Ground that promise and bar rest on.
    pub kind: va_kind,
    /// Assumptions that promise and bar rest on: a sum of VA_ASSUMES_NORMAL, ...
    pub assumes: u32,
    /// Sum of VA_HELD, VA_PROMISED, VA_FELL_BACK and VA_UNOBSERVED.
    pub flags: u32,
}

impl From<&RowReport> for va_report {
    fn from(row: &RowReport) -> Self {
        let certificate = &row.certificate;
        let (promise, bar) = (certificate.promise, certificate.bar);
        let delta = promise.map(|promise| promise.delta).or(bar.map(|bar| bar.delta));
        let target = promise.map(|promise| promise.target).or(bar.map(|bar| bar.target));
        Self {
            visible: row.visible,
            read: row.certain + row.sampled,
            certain: row.certain,
            sampled: row.sampled,
            read_by_group: row.read_by_group,
            budget: row.budget.unwrap_or(0),
            bar: bar.map_or(f64::INFINITY, |bar| bar.radius),
            epsilon: promise.map_or(0.0, |promise| promise.epsilon.get()),
            delta: delta.map_or(0.0, Fraction::get),
            target: target.map_or(VA_TARGET_OUTPUT, number_of_target),
            kind: number_of_kind(certificate.kind),
            assumes: number_of_assumptions(certificate.assumes),
            flags: flag(certificate.held, VA_HELD)
                | flag(promise.is_some(), VA_PROMISED)
                | flag(row.fell_back, VA_FELL_BACK)
                | flag(row.unobserved, VA_UNOBSERVED),
        }
    }
}

fn flag(is_set: bool, number: u32) -> u32 {
    if is_set { number } else { 0 }
}

fn number_of_target(target: Target) -> va_target {
    match target {
        Target::Sdpa => VA_TARGET_OUTPUT,
        Target::Denominator => VA_TARGET_DENOMINATOR,
        Target::Numerator => VA_TARGET_NUMERATOR,
    }
}

fn number_of_kind(kind: Kind) -> va_kind {
    match kind {
        Kind::None => VA_KIND_NONE,
        Kind::Asymptotic => VA_KIND_ASYMPTOTIC,
        Kind::FiniteSample => VA_KIND_FINITE_SAMPLE,
        Kind::Exact => VA_KIND_EXACT,
    }
}

fn number_of_assumptions(assumes: Assumptions) -> u32 {
    let number = |assumption| match assumption {
        Assumption::Normal => VA_ASSUMES_NORMAL,
        Assumption::Moments => VA_ASSUMES_MOMENTS,
        Assumption::TailSeen => VA_ASSUMES_TAIL_SEEN,
    };
    assumes.iter().map(number).sum()
}
