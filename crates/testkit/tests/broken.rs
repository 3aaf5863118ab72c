//! Parts that are broken on purpose fail exactly the laws that they break; good ones none.

#![allow(clippy::unwrap_used)]

#[path = "broken/samplers.rs"]
mod samplers;
#[path = "broken/table.rs"]
mod table;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Deserializer, Serialize};
use vattention_core::{
    Estimator, Fraction, Goal, Kind, NewTokens, Picks, Promise, Result, Row, SampleStats, Selector,
    SelectorConfig, Site, Size, Target,
    plugin::{Attended, Radius, TunableGoal},
    promise::Assumptions,
    step::Score,
    typetag,
};

/// Takes the last token appended of every eight, from an index; broken in one way, or none.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Broken {
    how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum How {
    NotAtAll,
    /// Counts how often it is asked.
    Moody,
    /// Counts appends, not tokens.
    CountsCalls,
    /// Shares its index with its clones.
    SharedIndex,
    /// Shares an index by token with its clones.
    SharedByToken,
    /// Shares what it learns from feedback with its clones.
    SharedFeedback,
    /// Promises a bound that is true only if all tokens are visible.
    BoundOfAll,
    /// Throws away what was picked before.
    Jealous,
    /// Promises a bound that it does not know.
    Boastful,
    /// Says that the group picks the same, and picks by member.
    Divided,
    /// Says that the group picks the same, and promises a true bound of one member.
    BoundOfOne,
    /// Takes half as many as have been appended.
    HalfOfAll,
    /// Takes every eight tokens whose keys are positive on average, those not visible included.
    MeanOfAll,
    /// Says that it holds only the first tokens.
    Undead,
    /// Says that it holds what it takes, and everything whenever an even number of tokens is visible.
    Returning,
}

/// Is read as another config than was written.
#[derive(Clone, Debug, Serialize)]
struct Lossy {
    tokens: usize,
}

impl<'de> Deserialize<'de> for Lossy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Fields {
            tokens: usize,
        }
        Ok(Self { tokens: Fields::deserialize(deserializer)?.tokens + 1 })
    }
}

#[typetag::serde(name = "lossy")]
impl SelectorConfig for Lossy {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }
}

impl Selector for Lossy {
    fn select(&self, _: &Row<'_>, picks: &mut Picks) {
        picks.take_all(0..self.tokens);
    }
}

#[derive(Clone)]
struct Index {
    how: How,
    tokens: Vec<usize>,
    seen: usize,
    /// The first number of each key.
    firsts: Vec<f32>,
    shared: Arc<Mutex<Vec<usize>>>,
    by_token: Arc<Mutex<BTreeMap<usize, f32>>>,
    asked: Arc<AtomicUsize>,
}

#[typetag::serde(name = "broken")]
impl SelectorConfig for Broken {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(Index {
            how: self.how,
            tokens: Vec::new(),
            seen: 0,
            firsts: Vec::new(),
            shared: Arc::default(),
            by_token: Arc::default(),
            asked: Arc::default(),
        }))
    }
}

impl Selector for Index {
    fn append(&mut self, new: &NewTokens<'_>) {
        if self.how == How::CountsCalls {
            self.tokens.push(self.seen);
            self.seen += 1;
            return;
        }
        for token in 0..new.keys.len() {
            let first = new.keys.to_array(token..token + 1)[[0, 0]];
            self.by_token.lock().unwrap().insert(new.first + token, first);
            self.firsts.push(first);
        }
        let eighths = (new.first..new.first + new.keys.len()).filter(|token| token % 8 == 7);
        if self.how == How::SharedIndex {
            // Indexes its own place in what all clones were given.
            let mut shared = self.shared.lock().unwrap();
            let before = shared.len();
            shared.extend(new.first..new.first + new.keys.len());
            self.tokens.extend((before..shared.len()).filter(|place| place % 8 == 7));
        } else {
            self.tokens.extend(eighths);
        }
    }

    fn group_wide(&self) -> bool {
        matches!(self.how, How::Divided | How::BoundOfOne)
    }

    fn feedback(&mut self, _: &Row<'_>, _: &Attended<'_>) {
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    fn live(&self, live: &mut Picks) {
        match self.how {
            How::Undead => live.take_range(0..4),
            How::Returning if live.visible() % 2 == 1 => live.take_all(self.tokens.iter().copied()),
            _ => live.take_range(0..live.visible()),
        }
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        match self.how {
            How::SharedByToken => {
                let index = self.by_token.lock().unwrap();
                picks.take_all(index.iter().filter(|(_, x)| **x > 0.5).map(|(token, _)| *token));
            }
            How::Divided => picks.take(row.member()),
            How::BoundOfOne => {
                let visible = (0..row.visible()).map(|token| row.logit(token));
                picks.bound_residual(visible.fold(f32::NEG_INFINITY, f32::max));
            }
            How::HalfOfAll => return picks.take_range(0..self.firsts.len() / 2),
            How::MeanOfAll => {
                let means = self.firsts.chunks(8).map(|firsts| firsts.iter().sum::<f32>());
                for (block, _) in means.enumerate().filter(|&(_, sum)| sum > 0.0) {
                    picks.take_range(8 * block..8 * block + 8);
                }
                return;
            }
            How::SharedFeedback if self.asked.load(Ordering::Relaxed) > 0 => picks.take(0),
            How::BoundOfAll => {
                if row.visible() == self.firsts.len() {
                    let all = (0..row.visible()).map(|token| row.logit(token));
                    picks.bound_residual(all.fold(f32::NEG_INFINITY, f32::max));
                } else {
                    picks.bound_residual(-1.0);
                }
            }
            _ => {}
        }
        if self.how == How::Jealous {
            *picks = Picks::new(row.visible());
        }
        picks.take_all(self.tokens.iter().copied());
        if self.how == How::Moody {
            picks.take(self.asked.fetch_add(1, Ordering::Relaxed) % row.visible());
        }
        if self.how == How::Boastful {
            picks.bound_residual(-1.0);
        }
    }
}

vattention_testkit::laws!(
    top_k_by_head,
    vattention_selectors::OracleTopK { size: Size::Tokens(7), score: Score::Head }
);
vattention_testkit::laws!(
    top_k_by_group,
    vattention_selectors::OracleTopK { size: Size::Tokens(7), score: Score::Group }
);

/// An estimator of which what is set is not what it demands.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Deaf {
    epsilon: Fraction,
    ignored: Fraction,
}

#[typetag::serde(name = "deaf")]
impl Estimator for Deaf {
    fn radius(&self, _: &SampleStats) -> Radius {
        Radius::new(0.0, Kind::Asymptotic, Assumptions::ALL)
    }

    fn goal(&self) -> Result<Goal, &'static str> {
        Ok(Promise::new(Target::Sdpa, self.epsilon, self.epsilon).into())
    }

    fn tunable(&mut self) -> Option<TunableGoal<'_>> {
        let Self { epsilon, ignored } = self;
        Some(TunableGoal { epsilon: Some(ignored), size: None, delta: epsilon })
    }
}

/// An estimator that drops a shift that is not a number.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Trusting {
    epsilon: Fraction,
}

#[typetag::serde(name = "trusting")]
impl Estimator for Trusting {
    fn radius(&self, stats: &SampleStats) -> Radius {
        let shift = stats.unseen.as_ref().map_or(0.0, |unseen| 1.0 + unseen.numerator);
        let radius = (1.0 / (stats.b as f64).sqrt()).max(shift);
        Radius::new(radius, Kind::Asymptotic, Assumptions::ALL)
    }

    fn goal(&self) -> Result<Goal, &'static str> {
        Ok(Promise::new(Target::Sdpa, self.epsilon, self.epsilon).into())
    }
}

/// An estimator whose rule changes at an epsilon of 0.3, and asks for more beyond it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Jumping {
    epsilon: Fraction,
    delta: Fraction,
}

#[typetag::serde(name = "jumping")]
impl Estimator for Jumping {
    fn radius(&self, stats: &SampleStats) -> Radius {
        let factor = if self.epsilon.get() > 0.3 { 2.0 } else { 1.0 };
        let radius = factor / (stats.b as f64).sqrt();
        Radius::new(radius, Kind::Asymptotic, Assumptions::ALL)
    }

    fn goal(&self) -> Result<Goal, &'static str> {
        Ok(Promise::new(Target::Sdpa, self.epsilon, self.delta).into())
    }

    fn tunable(&mut self) -> Option<TunableGoal<'_>> {
        let Self { epsilon, delta } = self;
        Some(TunableGoal { epsilon: Some(epsilon), size: None, delta })
    }
}
