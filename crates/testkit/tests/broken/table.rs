//! Table of mistakes, and of the laws that find them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use vattention_core::{Estimator, Fraction, SamplerConfig, SelectorConfig, Size};
use vattention_testkit::{
    EstimatorLaw, LAWS, SamplerLaw, Verdict, estimator_laws, run, run_estimator, run_sampler,
    sampler_laws,
};

use crate::samplers::{Fault, Independent};
use crate::{Broken, FirstTokens, IgnoresNan, IgnoresSettings, Jumping, Lossy, Mistake};

const SAMPLER_LAWS: [(&str, SamplerLaw); 10] = [
    ("round_trips", sampler_laws::round_trips),
    ("repeats", sampler_laws::repeats),
    ("grows", sampler_laws::grows),
    ("forks", sampler_laws::forks),
    ("causal", sampler_laws::causal),
    ("truncates", sampler_laws::truncates),
    ("shares", sampler_laws::shares),
    ("excludes", sampler_laws::excludes),
    ("nests", sampler_laws::nests),
    ("covers", sampler_laws::covers),
];

/// A law over many sequences.
type SamplingLaw = fn(&dyn SamplerConfig) -> Verdict;

const SAMPLING_LAWS: [(&str, SamplingLaw); 2] =
    [("includes", sampler_laws::includes), ("predicts", sampler_laws::predicts)];

const ESTIMATOR_LAWS: [(&str, EstimatorLaw); 7] = [
    ("round_trips", estimator_laws::round_trips),
    ("falls", estimator_laws::falls),
    ("agrees", estimator_laws::agrees),
    ("scales", estimator_laws::scales),
    ("is_set", estimator_laws::is_set),
    ("distrusts", estimator_laws::distrusts),
    ("is_monotone", estimator_laws::is_monotone),
];

/// A plug-in with at most one mistake.
enum Part {
    Selector(Box<dyn SelectorConfig>),
    Sampler(Fault),
    Estimator(Box<dyn Estimator>),
}

impl Part {
    /// Names of the laws that the plug-in violates.
    fn broken_laws(&self) -> Vec<&'static str> {
        match self {
            Self::Selector(config) => find_broken_laws(&LAWS, |law| run(law, &**config, 64)),
            Self::Sampler(fault) => {
                let config = Independent { fault: *fault };
                let mut laws = find_broken_laws(&SAMPLER_LAWS, |law| run_sampler(law, &config, 64));
                laws.extend(find_broken_laws(&SAMPLING_LAWS, |law| law(&config).unwrap()));
                laws
            }
            Self::Estimator(estimator) => {
                find_broken_laws(&ESTIMATOR_LAWS, |law| run_estimator(law, &**estimator, 64))
            }
        }
    }
}

fn find_broken_laws<L: Copy>(laws: &[(&'static str, L)], run: impl Fn(L)) -> Vec<&'static str> {
    let breaks = |law| catch_unwind(AssertUnwindSafe(|| run(law))).is_err();
    laws.iter().filter(|(_, law)| breaks(*law)).map(|(name, _)| *name).collect()
}

fn selector(mistake: Mistake) -> Part {
    Part::Selector(Box::new(Broken { mistake }))
}

#[test]
fn every_mistake_breaks_exactly_its_laws() {
    let tenth = Fraction::try_from(0.1).unwrap();
    let table: Vec<(Part, &[&str])> = vec![
        (selector(Mistake::None), &[]),
        (Part::Selector(Box::new(Lossy { tokens: 3 })), &["round_trips"]),
        // Clones share the number of queries.
        (selector(Mistake::CountsQueries), &["repeats", "forks"]),
        // Appends of tokens that are not visible count too.
        (selector(Mistake::CountsAppends), &["grows", "causal"]),
        (selector(Mistake::RemovesPicks), &["adds"]),
        (selector(Mistake::SharedIndex), &["forks"]),
        (selector(Mistake::SharedByToken), &["forks"]),
        (selector(Mistake::SharedFeedback), &["forks"]),
        // Later tokens change the bound.
        (selector(Mistake::BoundOfAll), &["bounds", "causal"]),
        (selector(Mistake::GuessedBound), &["bounds"]),
        (selector(Mistake::PicksByMember), &["agrees"]),
        (selector(Mistake::BoundOfOneMember), &["agrees"]),
        (selector(Mistake::HalfOfAll), &["causal"]),
        (selector(Mistake::MeanOfAll), &["causal"]),
        (selector(Mistake::PicksEvicted), &["evicts"]),
        (selector(Mistake::Revives), &["evicts"]),
        (selector(Mistake::KeepsRemoved), &["truncates"]),
        (selector(Mistake::LosesShared), &["shares"]),
        (selector(Mistake::PicksBySequence), &["shares"]),
        (
            Part::Selector(Box::new(FirstTokens { size: Size::Tokens(2), tokens: Vec::new() })),
            &["adjusts"],
        ),
        (Part::Sampler(Fault::None), &[]),
        (Part::Sampler(Fault::Understates), &["includes", "predicts"]),
        (Part::Sampler(Fault::SmallVariance), &["predicts"]),
        (Part::Sampler(Fault::Redraws), &["nests", "predicts"]),
        (Part::Sampler(Fault::DrawsPicked), &["excludes", "nests"]),
        (Part::Sampler(Fault::DrawsInvisible), &["causal", "excludes"]),
        (Part::Sampler(Fault::KeepsRemoved), &["truncates"]),
        (Part::Sampler(Fault::LosesShared), &["shares"]),
        (Part::Sampler(Fault::Miscounts), &["nests", "covers", "includes"]),
        (
            Part::Estimator(Box::new(IgnoresSettings { epsilon: tenth, ignored: tenth })),
            &["is_set"],
        ),
        (Part::Estimator(Box::new(IgnoresNan { epsilon: tenth })), &["distrusts"]),
        (Part::Estimator(Box::new(Jumping { epsilon: tenth, delta: tenth })), &["is_monotone"]),
    ];
    let wrong: Vec<String> = table
        .iter()
        .enumerate()
        .map(|(row, (part, laws))| (row, part.broken_laws(), laws))
        .filter(|(_, found, laws)| found != *laws)
        .map(|(row, found, laws)| format!("row {row}: breaks {found:?}, not {laws:?}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
