//! Tokens that one KV head reads at one step.

use std::ops::Range;
use std::sync::Arc;

use crate::{
    pipeline::{RowReport, drawing::FinishedSample},
    promise::{Certificate, ErrorBar},
    step::Picks,
};

/// Tokens that the query heads of one KV head read at one step: one token list that the group
/// shares, or one list for each member.
#[derive(Clone, Debug)]
pub struct Reading {
    reads: Vec<Read>,
    /// Number of distinct tokens that the group reads.
    read_by_group: usize,
    group: usize,
}

/// Tokens of one token list, and the certificate of the query heads that read it.
#[derive(Clone, Debug)]
pub struct Read {
    visible: usize,
    picks: Option<Arc<Picks>>,
    drawn: Vec<u32>,
    /// Inclusion probability of each drawn token; `None` if all are equal.
    probabilities: Option<Vec<f32>>,
    /// Radius of each query head's error bar; empty if all have the certificate's bar.
    radii: Vec<f64>,
    /// Sample size that the estimator required at the last check, if there was one.
    pub budget: Option<usize>,
    /// True if every token was read because that is faster than reading a long token list.
    pub fell_back: bool,
    /// Certificate that holds for every row that reads the list. Its error bar is the widest of the
    /// rows' error bars.
    pub certificate: Certificate,
}

/// A token list in ascending order, with inclusion probabilities and a certificate.
#[derive(Clone, Debug, PartialEq)]
pub struct List {
    /// Tokens, ascending, each once.
    pub indices: Vec<u32>,
    /// Inclusion probability of each token. Estimates weight a token by its inverse.
    pub probabilities: Vec<f32>,
    /// Number of drawn tokens. A token of a non-uniform sample counts only if its inclusion
    /// probability is below 1.
    pub sampled: usize,
    /// Sample size that the estimator required at the last check, if there was one.
    pub budget: Option<usize>,
    /// Certificate that holds for every row that reads the list.
    pub certificate: Certificate,
}

impl Read {
    /// Result of reading all visible tokens.
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

    /// Result of reading picks without a sample.
    pub(crate) fn only(picks: Arc<Picks>, certificate: Certificate) -> Self {
        let everything = Self::everything(picks.visible(), certificate);
        Self { picks: Some(picks), ..everything }
    }

    /// Result of reading picks and a sample of the residual.
    pub(crate) fn sampled(
        picks: Arc<Picks>,
        sample: FinishedSample,
        budget: Option<usize>,
        certificate: Certificate,
    ) -> Self {
        let FinishedSample { tokens: drawn, probabilities, radii, .. } = sample;
        Self { drawn, probabilities, radii, budget, ..Self::only(picks, certificate) }
    }

    /// Certificate of one of the query heads that read the list.
    fn certificate_of(&self, reader: usize) -> Certificate {
        let radius = self.radii.get(reader);
        let bar = self.certificate.bar;
        let bar = bar.map(|bar| ErrorBar { radius: *radius.unwrap_or(&bar.radius), ..bar });
        Certificate { bar, ..self.certificate }
    }

    /// Tokens that the selectors picked; `None` if all visible tokens are read.
    pub fn picks(&self) -> Option<&Picks> {
        self.picks.as_deref()
    }

    /// Tokens drawn from the residual, in draw order.
    pub fn drawn(&self) -> &[u32] {
        &self.drawn
    }

    /// Inclusion probability of each drawn token, in draw order. `None` for a uniform sample; see
    /// [`uniform_probability`](Self::uniform_probability).
    pub fn probabilities(&self) -> Option<&[f32]> {
        self.probabilities.as_deref()
    }

    /// Inclusion probability of the tokens of a uniform sample: `b / n_s`.
    pub fn uniform_probability(&self) -> f32 {
        let n_s = self.visible - self.picks().map_or(0, Picks::len);
        (self.drawn.len() as f64 / n_s as f64) as f32
    }

    /// Tokens read: picks, ascending, then drawn tokens, in draw order.
    pub fn tokens(&self) -> Vec<u32> {
        let Some(picks) = self.picks() else { return (0..self.visible as u32).collect() };
        let mut tokens = picks.indices();
        tokens.extend_from_slice(&self.drawn);
        tokens
    }

    /// Number of tokens read.
    pub fn len(&self) -> usize {
        self.picks().map_or(self.visible, |picks| picks.len() + self.drawn.len())
    }

    /// Returns true if no token is read, which never happens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of drawn tokens. A token of a non-uniform sample counts only if its inclusion
    /// probability is below 1.
    pub fn sampled_len(&self) -> usize {
        self.probabilities
            .as_ref()
            .map_or(self.drawn.len(), |all| all.iter().filter(|&&p| p < 1.0).count())
    }

    /// Tokens read, ascending, with inclusion probabilities. O(visible / 64 + len log len).
    pub fn list(&self) -> List {
        let mut entries = self.entries();
        entries.sort_unstable_by_key(|&(token, _)| token);
        let (indices, probabilities) = entries.into_iter().unzip();
        let (sampled, budget, certificate) = (self.sampled_len(), self.budget, self.certificate);
        List { indices, probabilities, sampled, budget, certificate }
    }

    /// Tokens read, in the order of [`tokens`](Self::tokens), each with its inclusion probability.
    pub fn entries(&self) -> Vec<(u32, f32)> {
        let Some(picks) = self.picks() else {
            return (0..self.visible as u32).map(|token| (token, 1.0)).collect();
        };
        let uniform = self.uniform_probability();
        let p = |place: usize| self.probabilities.as_ref().map_or(uniform, |all| all[place]);
        let picked = picks.indices().into_iter().map(|token| (token, 1.0));
        let drawn = self.drawn.iter().enumerate().map(|(place, &token)| (token, p(place)));
        picked.chain(drawn).collect()
    }
}

impl Reading {
    /// Creates the reading of a KV head with `group` query heads, from one read that they share, or
    /// one for each of them.
    pub fn new(reads: Vec<Read>, group: usize) -> Self {
        let read_by_group = match &reads[..] {
            [shared] => shared.len(),
            separate => union_len(separate),
        };
        Self { reads, read_by_group, group }
    }

    /// The read that all members of the group share, or one read for each member.
    pub fn reads(&self) -> &[Read] {
        &self.reads
    }

    /// Tokens that a member of the group reads.
    pub fn read_by(&self, member: usize) -> &Read {
        self.reads.get(member).unwrap_or(&self.reads[0])
    }

    /// Token list that a member reads; see [`Read::list`].
    pub fn list(&self, member: usize) -> List {
        self.read_by(member).list()
    }

    /// Members that read `reads()[index]`.
    pub fn readers(&self, index: usize) -> Range<usize> {
        if self.reads.len() == 1 { 0..self.group } else { index..index + 1 }
    }

    /// Report of a member's row.
    pub fn report(&self, member: usize) -> RowReport {
        let read = self.read_by(member);
        let sampled = read.sampled_len();
        RowReport {
            visible: read.visible,
            certain: read.len() - sampled,
            sampled,
            read_by_group: self.read_by_group,
            budget: read.budget,
            fell_back: read.fell_back,
            unobserved: false,
            rounding: None,
            certificate: read.certificate_of(if self.reads.len() == 1 { member } else { 0 }),
        }
    }
}

/// Number of distinct tokens in several reads.
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
