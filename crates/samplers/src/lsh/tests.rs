//! The laws of samplers, for the rules of the authors' code and of their paper.

use vattention_index::{HashTables, Rule, TableBits, Transform};

use super::*;

fn config(rule: Rule, transform: Transform, center: bool) -> LshSampler {
    let (tables, bits) = (std::num::NonZeroU16::new(12).unwrap(), TableBits::try_from(4).unwrap());
    LshSampler(HashTables { tables, bits, rule, transform, center })
}

vattention_testkit::sampler_laws!(authors, config(Rule::Two, Transform::Angular, true));
vattention_testkit::sampler_laws!(paper, config(Rule::Any, Transform::SimpleLsh, false));
