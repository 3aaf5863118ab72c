//! What one KV head reads at one step.

use std::ops::Range;
use std::sync::Arc;

use crate::{
    pipeline::{RowReport, drawing::Drawn},
    promise::{Certificate, ErrorBar},
    step::Picks,
};

/// What the query heads of one KV head read at one step: one list for all, or one each.
#[derive(Clone, Debug)]
pub struct Reading {
    reads: Vec<Read>,
    by_group: usize,
    group: usize,
}

/// What the readers of one list read.
#[derive(Clone, Debug)]
pub struct Read {
    visible: usize,
    picks: Option<Arc<Picks>>,
    drawn: Vec<u32>,
    /// With which probability each of them was drawn, unless they are all alike.
    probabilities: Option<Vec<f32>>,
    /// How far each reader's output may be off, `[readers]`; empty if all have the certificate's bar.
    radii: Vec<f64>,
    /// Tokens that the estimator asked for at the last check.
    pub budget: Option<usize>,
    /// Whether everything was read because that is faster than so long a list.
    pub fell_back: bool,
    /// What is promised to every row that reads this. Its bar is the widest of any.
    pub certificate: Certificate,
}

/// Tokens to read, and what reading them is worth.
#[derive(Clone, Debug, PartialEq)]
pub struct List {
    /// Tokens, ascending, each once.
    pub indices: Vec<u32>,
    /// Their inclusion probabilities; a token weighs one over it.
    pub probabilities: Vec<f32>,
    /// How many of them were read by chance.
    pub sampled: usize,
    /// Tokens that the estimator asked for at the last check.
    pub budget: Option<usize>,
    /// What is promised to a row that reads this list.
    pub certificate: Certificate,
}

impl Read {
    /// All visible tokens.
    pub(crate) fn everything(visible: usize, certificate: Certificate) -> Self {
        Self {
            visible,
            picks: None,
            drawn: Vec::new(),
            probabilities: None,
            radii: Vec::new(),
            budget: None,
            fell_back: false,
            certificate,
        }
    }

    /// Some picks, and nothing else.
    pub(crate) fn only(picks: Arc<Picks>, certificate: Certificate) -> Self {
        let everything = Self::everything(picks.visible(), certificate);
        Self { picks: Some(picks), ..everything }
    }

    /// Certain picks, and a sample of the rest.
    pub(crate) fn sampled(
        picks: Arc<Picks>,
        sample: Drawn,
        budget: Option<usize>,
        certificate: Certificate,
    ) -> Self {
        let Drawn { tokens: drawn, probabilities, radii, .. } = sample;
        Self { drawn, probabilities, radii, budget, ..Self::only(picks, certificate) }
    }

    /// What is promised to one of the rows that read it.
    fn certificate_of(&self, reader: usize) -> Certificate {
        let own = self.radii.get(reader);
        let bar = self.certificate.bar;
        let bar = bar.map(|bar| ErrorBar { radius: *own.unwrap_or(&bar.radius), ..bar });
        Certificate { bar, ..self.certificate }
    }

    /// What the selectors picked, or `None` if all visible tokens are read and nobody picked.
    pub fn picks(&self) -> Option<&Picks> {
        self.picks.as_deref()
    }

    /// The sample of the rest, in draw order.
    pub fn drawn(&self) -> &[u32] {
        &self.drawn
    }

    /// The inclusion probability of each token of the sample, in draw order; of a uniform sample, whose
    /// tokens are all as likely, see [`uniform_probability`](Self::uniform_probability).
    pub fn probabilities(&self) -> Option<&[f32]> {
        self.probabilities.as_deref()
    }

    /// Inclusion probability of a token of a uniform sample: `b / n_s`.
    pub fn uniform_probability(&self) -> f32 {
        let n_s = self.visible - self.picks().map_or(0, Picks::len);
        (self.drawn.len() as f64 / n_s as f64) as f32
    }

    /// The tokens read: picks, ascending, then the sample, in draw order.
    pub fn tokens(&self) -> Vec<u32> {
        let Some(picks) = self.picks() else { return (0..self.visible as u32).collect() };
        let mut tokens = picks.indices();
        tokens.extend_from_slice(&self.drawn);
        tokens
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.picks().map_or(self.visible, |picks| picks.len() + self.drawn.len())
    }

    /// Whether nothing is read; it never is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many tokens were read by chance.
    pub fn sampled_len(&self) -> usize {
        self.probabilities
            .as_ref()
            .map_or(self.drawn.len(), |all| all.iter().filter(|&&p| p < 1.0).count())
    }

    /// The tokens in order, with their probabilities. O(visible / 64 + len log len).
    pub fn list(&self) -> List {
        let mut entries = self.entries();
        entries.sort_unstable_by_key(|&(token, _)| token);
        let (indices, probabilities) = entries.into_iter().unzip();
        let (sampled, budget, certificate) = (self.sampled_len(), self.budget, self.certificate);
        List { indices, probabilities, sampled, budget, certificate }
    }

    /// The [tokens](Self::tokens) read, each with its inclusion probability.
    pub fn entries(&self) -> Vec<(u32, f32)> {
        let Some(picks) = self.picks() else {
            return (0..self.visible as u32).map(|token| (token, 1.0)).collect();
        };
        let alike = self.uniform_probability();
        let p = |place: usize| self.probabilities.as_ref().map_or(alike, |all| all[place]);
        let picked = picks.indices().into_iter().map(|token| (token, 1.0));
        let drawn = self.drawn.iter().enumerate().map(|(place, &token)| (token, p(place)));
        picked.chain(drawn).collect()
    }
}

impl Reading {
    /// What the members of a group of `group` read: `reads` of all, or of each.
    pub fn new(reads: Vec<Read>, group: usize) -> Self {
        let by_group = match &reads[..] {
            [shared] => shared.len(),
            own => union_len(own),
        };
        Self { reads, by_group, group }
    }

    /// One for all members, or one for each.
    pub fn reads(&self) -> &[Read] {
        &self.reads
    }

    /// What a member of the group reads.
    pub fn read_by(&self, member: usize) -> &Read {
        self.reads.get(member).unwrap_or(&self.reads[0])
    }

    /// The list that a member reads; see [`Read::list`].
    pub fn list(&self, member: usize) -> List {
        self.read_by(member).list()
    }

    /// The members that read `reads()[index]`.
    pub fn readers(&self, index: usize) -> Range<usize> {
        if self.reads.len() == 1 { 0..self.group } else { index..index + 1 }
    }

    /// What to report of a member's row.
    pub fn report(&self, member: usize) -> RowReport {
        let read = self.read_by(member);
        let sampled = read.sampled_len();
        RowReport {
            visible: read.visible,
            certain: read.len() - sampled,
            sampled,
            read_by_group: self.by_group,
            budget: read.budget,
            fell_back: read.fell_back,
            unobserved: false,
            certificate: read.certificate_of(if self.reads.len() == 1 { member } else { 0 }),
        }
    }
}

/// How many different tokens are read.
fn union_len(reads: &[Read]) -> usize {
    let mut any = Picks::new(reads[0].visible);
    for read in reads {
        match read.picks() {
            None => return read.visible,
            Some(picks) => any.union(picks),
        }
        any.take_all(read.drawn.iter().map(|&token| token as usize));
    }
    any.len()
}
