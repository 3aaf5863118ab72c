//! Plug-ins with a planted mistake violate exactly the laws that the table lists; correct plug-ins
//! violate none.

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
    SelectorConfig, Site, Size, Target, Tokens,
    plugin::{AttentionWeights, Radius, Tunable, TunableGoal},
    promise::Assumptions,
    step::Score,
    typetag,
};

/// Picks every eighth token from an index, with at most one mistake.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Broken {
    mistake: Mistake,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Mistake {
    None,
    /// Picks an additional token, which depends on the number of earlier queries.
    CountsQueries,
    /// Counts appends instead of tokens.
    CountsAppends,
    /// Shares its list of tokens with its clones.
    SharedIndex,
    /// Shares a map from tokens to key elements with its clones.
    SharedByToken,
    /// Shares the state that it learns from feedback with its clones.
    SharedFeedback,
    /// Promises a bound that is true only if all tokens are visible.
    BoundOfAll,
    /// Removes earlier picks.
    RemovesPicks,
    /// Promises a bound that it does not know.
    GuessedBound,
    /// Claims to pick the same tokens for the whole group, but picks by member.
    PicksByMember,
    /// Claims to pick the same tokens for the whole group, but promises a bound for one member.
    BoundOfOneMember,
    /// Picks half of all appended tokens, visible or not.
    HalfOfAll,
    /// Picks groups of eight tokens by the mean of their keys, visible or not.
    MeanOfAll,
    /// Reports only the first tokens as live, but picks others.
    PicksEvicted,
    /// Reports all tokens as live if an even number of tokens is visible, and fewer otherwise.
    Revives,
    /// Picks by keys that were removed.
    KeepsRemoved,
    /// Loses the newest token of the index when it is shared.
    LosesShared,
    /// Claims to serve any sequence, but picks the token with the sequence's number.
    PicksBySequence,
}

/// Config that is read differently from what was written.
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

/// Selector whose index has as many tokens as it picks, although its size claims to be adjustable.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct FirstTokens {
    size: Size,
    #[serde(skip)]
    tokens: Vec<usize>,
}

#[typetag::serde(name = "first-tokens")]
impl SelectorConfig for FirstTokens {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sizes(vec![&mut self.size]))
    }
}

impl Selector for FirstTokens {
    fn append(&mut self, new: &NewTokens<'_>) {
        let Size::Tokens(size) = self.size else { return };
        self.tokens.extend((new.first..new.first + new.keys.len()).take_while(|&t| t < size));
    }

    fn adjustable(&mut self) -> Option<Tunable<'_>> {
        SelectorConfig::tunable(self)
    }

    fn select(&self, _: &Row<'_>, picks: &mut Picks) {
        picks.take_all(self.tokens.iter().copied());
    }
}

#[derive(Clone)]
struct Index {
    mistake: Mistake,
    sequence: u32,
    tokens: Vec<usize>,
    appends: usize,
    /// First element of each key.
    firsts: Vec<f32>,
    shared: Arc<Mutex<Vec<usize>>>,
    by_token: Arc<Mutex<BTreeMap<usize, f32>>>,
    calls: Arc<AtomicUsize>,
}

#[typetag::serde(name = "broken")]
impl SelectorConfig for Broken {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(Index {
            mistake: self.mistake,
            sequence: site.sequence,
            tokens: Vec::new(),
            appends: 0,
            firsts: Vec::new(),
            shared: Arc::default(),
            by_token: Arc::default(),
            calls: Arc::default(),
        }))
    }
}

impl Selector for Index {
    fn append(&mut self, new: &NewTokens<'_>) {
        if self.mistake == Mistake::CountsAppends {
            self.tokens.push(self.appends);
            self.appends += 1;
            return;
        }
        for token in 0..new.keys.len() {
            let first = new.keys.to_array(token..token + 1)[[0, 0]];
            self.by_token.lock().unwrap().insert(new.first + token, first);
            self.firsts.push(first);
        }
        let eighths = (new.first..new.first + new.keys.len()).filter(|token| token % 8 == 7);
        if self.mistake == Mistake::SharedIndex {
            // Indexes positions in the list of tokens that all clones append to.
            let mut shared = self.shared.lock().unwrap();
            let before = shared.len();
            shared.extend(new.first..new.first + new.keys.len());
            self.tokens.extend((before..shared.len()).filter(|place| place % 8 == 7));
        } else {
            self.tokens.extend(eighths);
        }
    }

    fn can_truncate(&self) -> bool {
        self.mistake == Mistake::KeepsRemoved || self.sharing_obstacle().is_none()
    }

    fn truncate(&mut self, keys: &Tokens<'_>) {
        self.tokens.retain(|&token| token < keys.len());
        if self.mistake != Mistake::KeepsRemoved {
            self.firsts.truncate(keys.len());
        }
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        let shares = [Mistake::None, Mistake::LosesShared, Mistake::PicksBySequence];
        if shares.contains(&self.mistake) { None } else { Some("has another mistake") }
    }

    fn share(&mut self) {
        if self.mistake == Mistake::LosesShared {
            self.tokens.pop();
        }
    }

    fn group_wide(&self) -> bool {
        matches!(self.mistake, Mistake::PicksByMember | Mistake::BoundOfOneMember)
    }

    fn feedback(&mut self, _: &Row<'_>, _: &AttentionWeights<'_>) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    fn live(&self, live: &mut Picks) {
        match self.mistake {
            Mistake::PicksEvicted => live.take_range(0..4),
            Mistake::Revives if live.visible() % 2 == 1 => {
                live.take_all(self.tokens.iter().copied());
            }
            _ => live.take_range(0..live.visible()),
        }
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        match self.mistake {
            Mistake::SharedByToken => {
                let index = self.by_token.lock().unwrap();
                picks.take_all(index.iter().filter(|(_, x)| **x > 0.5).map(|(token, _)| *token));
            }
            Mistake::PicksByMember => picks.take(row.member()),
            Mistake::PicksBySequence => picks.take(self.sequence as usize % row.visible()),
            Mistake::BoundOfOneMember => {
                let visible = (0..row.visible()).map(|token| row.logit(token));
                picks.bound_residual(visible.fold(f32::NEG_INFINITY, f32::max));
            }
            Mistake::HalfOfAll => return picks.take_range(0..self.firsts.len() / 2),
            Mistake::MeanOfAll => {
                let means = self.firsts.chunks(8).map(|firsts| firsts.iter().sum::<f32>());
                for (block, _) in means.enumerate().filter(|&(_, sum)| sum > 0.0) {
                    picks.take_range(8 * block..8 * block + 8);
                }
                return;
            }
            Mistake::KeepsRemoved => {
                let large = (0..row.visible()).filter(|&token| self.firsts[token] > 0.5);
                picks.take_all(large);
            }
            Mistake::SharedFeedback if self.calls.load(Ordering::Relaxed) > 0 => picks.take(0),
            Mistake::BoundOfAll => {
                if row.visible() == self.firsts.len() {
                    let all = (0..row.visible()).map(|token| row.logit(token));
                    picks.bound_residual(all.fold(f32::NEG_INFINITY, f32::max));
                } else {
                    picks.bound_residual(-1.0);
                }
            }
            _ => {}
        }
        if self.mistake == Mistake::RemovesPicks {
            *picks = Picks::new(row.visible());
        }
        picks.take_all(self.tokens.iter().copied());
        if self.mistake == Mistake::CountsQueries {
            picks.take(self.calls.fetch_add(1, Ordering::Relaxed) % row.visible());
        }
        if self.mistake == Mistake::GuessedBound {
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

/// Estimator that ignores values set by `tunable()`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct IgnoresSettings {
    epsilon: Fraction,
    ignored: Fraction,
}

#[typetag::serde(name = "ignores-settings")]
impl Estimator for IgnoresSettings {
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

/// Estimator that ignores a statistic that is NaN.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct IgnoresNan {
    epsilon: Fraction,
}

#[typetag::serde(name = "ignores-nan")]
impl Estimator for IgnoresNan {
    fn radius(&self, stats: &SampleStats) -> Radius {
        let shift = stats.unseen.as_ref().map_or(0.0, |unseen| 1.0 + unseen.numerator);
        let radius = (1.0 / (stats.b as f64).sqrt()).max(shift);
        Radius::new(radius, Kind::Asymptotic, Assumptions::ALL)
    }

    fn goal(&self) -> Result<Goal, &'static str> {
        Ok(Promise::new(Target::Sdpa, self.epsilon, self.epsilon).into())
    }
}

/// Estimator whose rule changes at an epsilon of 0.3, above which it needs more tokens.
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
