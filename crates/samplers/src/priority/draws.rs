//! Which tokens are drawn at a threshold.

use multiversion::multiversion;
use vattention_core::Uniforms;

use super::sizes::{RESOLUTION, Sizes};

/// Candidates are those of further looks, too: at up to this many times the threshold, but of all tokens a share, as going over
/// these costs less than having candidates that are not needed.
const AHEAD: (f64, f64) = (1.5, 16.0);
const TOKENS_TO_ONE: f64 = 16.0;

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
            let enough = sizes.shares().len() as f64 / TOKENS_TO_ONE;
            self.reach = enough.clamp(AHEAD.0 * t, AHEAD.1 * t);
            self.candidates.clear();
            find(sizes.shares(), self.uniforms, self.reach as f32, &mut self.candidates);
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
}

/// Tokens that are looked at together.
const LANES: usize = 16;

/// More than a uniform number of 24 bits and the probability are off.
const SLACK: f32 = 1.0 / (1 << 23) as f32;

/// Finds all tokens that are drawn at a threshold, and perhaps a few more.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn find(shares: &[f32], uniforms: Uniforms, t: f32, out: &mut Vec<Candidate>) {
    let near = |uniform: u32, share: f32| {
        let uniform = (uniform >> 8) as f32 / (1 << 24) as f32;
        share > 0.0 && uniform <= t * share + SLACK
    };
    let (whole, rest) = shares.as_chunks::<LANES>();
    let mut last = [0.0; LANES];
    last[..rest.len()].copy_from_slice(rest);
    for (i, shares) in whole.iter().chain([&last]).enumerate() {
        let first = (i * LANES) as u32;
        let (mut found, mut numbers) = ([false; LANES], [0; LANES]);
        for lane in 0..LANES {
            numbers[lane] = uniforms.at(first + lane as u32);
            found[lane] = near(numbers[lane], shares[lane]);
        }
        if !found.contains(&true) {
            continue;
        }
        let mut left = (0..LANES).fold(0_u32, |bits, lane| bits | u32::from(found[lane]) << lane);
        while left != 0 {
            let lane = left.trailing_zeros() as usize;
            let (token, uniform) = (first + lane as u32, numbers[lane]);
            out.push(Candidate {
                token,
                uniform,
                from: uniform as f32 / RESOLUTION / shares[lane],
            });
            left &= left - 1;
        }
    }
}
