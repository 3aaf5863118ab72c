//! Mistakes, and the laws that find them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use vattention_core::{Estimator, Fraction, SamplerConfig, SelectorConfig};
use vattention_testkit::{
    EstimatorLaw, LAWS, SamplerLaw, Verdict, estimator_laws, run, run_estimator, run_sampler,
    sampler_laws,
};

use crate::samplers::{ByItself, Fault};
use crate::{Broken, Deaf, How, Jumping, Lossy, Trusting};

const SAMPLER_LAWS: [(&str, SamplerLaw); 8] = [
    ("round_trips", sampler_laws::round_trips),
    ("repeats", sampler_laws::repeats),
    ("grows", sampler_laws::grows),
    ("forks", sampler_laws::forks),
    ("causal", sampler_laws::causal),
    ("leaves", sampler_laws::leaves),
    ("nests", sampler_laws::nests),
    ("answers", sampler_laws::answers),
];

/// A law over many sequences.
type SamplingLaw = fn(&dyn SamplerConfig) -> Verdict;

const SAMPLING_LAWS: [(&str, SamplingLaw); 2] =
    [("includes", sampler_laws::includes), ("foretells", sampler_laws::foretells)];

const ESTIMATOR_LAWS: [(&str, EstimatorLaw); 7] = [
    ("round_trips", estimator_laws::round_trips),
    ("falls", estimator_laws::falls),
    ("agrees", estimator_laws::agrees),
    ("scales", estimator_laws::scales),
    ("is_set", estimator_laws::is_set),
    ("distrusts", estimator_laws::distrusts),
    ("is_monotone", estimator_laws::is_monotone),
];

/// A part with one mistake, or none.
enum Part {
    Selector(Box<dyn SelectorConfig>),
    Sampler(Fault),
    Estimator(Box<dyn Estimator>),
}

impl Part {
    /// Names of the laws that it breaks.
    fn broken_laws(&self) -> Vec<&'static str> {
        match self {
            Self::Selector(config) => broken(&LAWS, |law| run(law, &**config, 64)),
            Self::Sampler(how) => {
                let config = ByItself { how: *how };
                let mut laws = broken(&SAMPLER_LAWS, |law| run_sampler(law, &config, 64));
                laws.extend(broken(&SAMPLING_LAWS, |law| law(&config).unwrap()));
                laws
            }
            Self::Estimator(it) => broken(&ESTIMATOR_LAWS, |law| run_estimator(law, &**it, 64)),
        }
    }
}

fn broken<L: Copy>(laws: &[(&'static str, L)], run: impl Fn(L)) -> Vec<&'static str> {
    let breaks = |law| catch_unwind(AssertUnwindSafe(|| run(law))).is_err();
    laws.iter().filter(|(_, law)| breaks(*law)).map(|(name, _)| *name).collect()
}

fn selector(how: How) -> Part {
    Part::Selector(Box::new(Broken { how }))
}

#[test]
fn every_mistake_breaks_exactly_its_laws() {
    let tenth = Fraction::try_from(0.1).unwrap();
    let table: Vec<(Part, &[&str])> = vec![
        (selector(How::NotAtAll), &[]),
        (Part::Selector(Box::new(Lossy { tokens: 3 })), &["round_trips"]),
        // Its clones share the mood.
        (selector(How::Moody), &["repeats", "forks"]),
        // Later calls count too.
        (selector(How::CountsCalls), &["grows", "causal"]),
        (selector(How::Jealous), &["adds"]),
        (selector(How::SharedIndex), &["forks"]),
        (selector(How::SharedByToken), &["forks"]),
        (selector(How::SharedFeedback), &["forks"]),
        // Later tokens change the bound.
        (selector(How::BoundOfAll), &["bounds", "causal"]),
        (selector(How::Boastful), &["bounds"]),
        (selector(How::Divided), &["agrees"]),
        (selector(How::BoundOfOne), &["agrees"]),
        (selector(How::HalfOfAll), &["causal"]),
        (selector(How::MeanOfAll), &["causal"]),
        (selector(How::Undead), &["evicts"]),
        (selector(How::Returning), &["evicts"]),
        (Part::Sampler(Fault::None), &[]),
        (Part::Sampler(Fault::Understates), &["includes", "foretells"]),
        (Part::Sampler(Fault::Confident), &["foretells"]),
        (Part::Sampler(Fault::Afresh), &["nests", "foretells"]),
        (Part::Sampler(Fault::Greedy), &["leaves", "nests"]),
        (Part::Sampler(Fault::LooksAhead), &["causal", "leaves"]),
        (Part::Sampler(Fault::Miscounts), &["nests", "answers", "includes"]),
        (Part::Estimator(Box::new(Deaf { epsilon: tenth, ignored: tenth })), &["is_set"]),
        (Part::Estimator(Box::new(Trusting { epsilon: tenth })), &["distrusts"]),
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
