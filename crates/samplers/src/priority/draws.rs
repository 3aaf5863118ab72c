//! Which tokens are drawn at a threshold.

use multiversion::multiversion;
use vattention_core::Uniforms;

use super::sizes::{RESOLUTION, Sizes};

/// Candidates are looked for up to this many times the threshold: those of further looks.
const AHEAD: f64 = 8.0;

/// Draws by a uniform number for each token.
#[derive(Debug)]
pub(super) struct Draws {
    uniforms: Uniforms,
    /// All tokens that are drawn at `reach`.
    candidates: Vec<Candidate>,
    reach: f64,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    token: u32,
    uniform: u32,
    /// About the threshold from which on it is drawn.
    from: f32,
}

/// More than that is off, as a share of it, where probabilities are large beside their resolution.
const NEAR: f32 = 1e-5;

impl Draws {
    pub(super) fn new(uniforms: Uniforms) -> Self {
        Self { uniforms, candidates: Vec::new(), reach: 0.0 }
    }

    /// The tokens that are drawn at `t`, but not `before`, by when they would be. O(visible), or of the candidates if
    /// `t` has been reached for.
    pub(super) fn beyond(
        &mut self,
        sizes: &Sizes,
        before: f64,
        t: f64,
    ) -> impl Iterator<Item = u32> {
        if t > self.reach {
            self.reach = AHEAD * t;
            self.candidates = self.candidates(sizes, self.reach as f32);
        }
        let is_drawn = |candidate: &Candidate, t: f64| match t as f32 {
            far if candidate.from < far * (1.0 - NEAR) => true,
            far if candidate.from > far * (1.0 + NEAR) => false,
            _ => {
                let uniform = f64::from(candidate.uniform) / f64::from(RESOLUTION);
                t > 0.0 && uniform < sizes.probability(candidate.token as usize, t)
            }
        };
        let (near, far) = (before as f32 * (1.0 - NEAR), t as f32 * (1.0 + NEAR));
        let is_new = |candidate: &&Candidate| {
            candidate.from >= near
                && candidate.from <= far
                && is_drawn(candidate, t)
                && !is_drawn(candidate, before)
        };
        let mut new: Vec<Candidate> = self.candidates.iter().filter(is_new).copied().collect();
        // Thresholds are positive: their bits are in the same order.
        let order = |new: &Candidate| u64::from(new.from.to_bits()) << 32 | u64::from(new.token);
        new.sort_unstable_by_key(order);
        new.into_iter().map(|candidate| candidate.token)
    }

    /// All tokens that are drawn at a threshold, and perhaps a few more.
    fn candidates(&self, sizes: &Sizes, t: f32) -> Vec<Candidate> {
        let shares = sizes.shares();
        let mut tokens = Vec::new();
        find(shares, self.uniforms, t, &mut tokens);
        let candidate = |token: u32| {
            let uniform = self.uniforms.at(token);
            let from = uniform as f32 / RESOLUTION / shares[token as usize];
            Candidate { token, uniform, from }
        };
        tokens.into_iter().map(candidate).collect()
    }
}

/// Tokens that are looked at together.
const LANES: usize = 16;

/// More than a uniform number of 24 bits and the probability are off.
const SLACK: f32 = 1.0 / (1 << 23) as f32;

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn find(shares: &[f32], uniforms: Uniforms, t: f32, out: &mut Vec<u32>) {
    let near = |token: u32, share: f32| {
        let uniform = (uniforms.at(token) >> 8) as f32 / (1 << 24) as f32;
        share > 0.0 && uniform <= t * share + SLACK
    };
    let (whole, rest) = shares.as_chunks::<LANES>();
    for (i, shares) in whole.iter().enumerate() {
        let first = (i * LANES) as u32;
        let mut found = [false; LANES];
        for (lane, found) in found.iter_mut().enumerate() {
            *found = near(first + lane as u32, shares[lane]);
        }
        if found.contains(&true) {
            out.extend((0..LANES).filter(|&lane| found[lane]).map(|lane| first + lane as u32));
        }
    }
    let first = shares.len() - rest.len();
    let rest = rest.iter().enumerate().map(|(i, share)| ((first + i) as u32, *share));
    out.extend(rest.filter(|&(token, share)| near(token, share)).map(|(token, _)| token));
}
