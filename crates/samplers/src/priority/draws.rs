//! Which tokens are drawn at a threshold.

#[cfg(target_arch = "x86_64")]
mod avx512;

use multiversion::multiversion;
use multiversion::target::match_target;
use vattention_core::sample::Uniforms;

use super::sizes::{RESOLUTION, Sizes};

/// Candidates are those of further checks, too: at up to this many times the threshold, but of all tokens a share, as going over
/// these costs less than having candidates that are not needed.
const AHEAD: (f64, f64) = (1.5, 16.0);
const TOKENS_TO_ONE: f64 = 16.0;

/// More than the threshold from which on a token is drawn is off, as a share of it.
const NEAR: f32 = 1e-5;

/// Draws by a uniform number for each token.
#[derive(Debug)]
pub(super) struct Draws {
    uniforms: Uniforms,
    /// All tokens that are drawn at `reach`.
    candidates: CandidateQueue,
    reach: f64,
}

/// Tokens that are drawn from some threshold on.
#[derive(Debug, Default)]
struct CandidateQueue {
    tokens: Vec<u32>,
    uniforms: Vec<u32>,
    /// About these thresholds.
    from: Vec<f32>,
}

impl Draws {
    pub(super) fn new(uniforms: Uniforms) -> Self {
        Self { uniforms, candidates: CandidateQueue::default(), reach: 0.0 }
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
            let far = self.reach as f32 * (1.0 + NEAR);
            find(sizes.shares(), self.uniforms, far, &mut self.candidates);
        }
        let CandidateQueue { tokens, uniforms, from } = &self.candidates;
        let is_drawn = |i: usize, t: f64| match t as f32 {
            far if from[i] < far * (1.0 - NEAR) => true,
            far if from[i] > far * (1.0 + NEAR) => false,
            _ => {
                let uniform = f64::from(uniforms[i]) / f64::from(RESOLUTION);
                t > 0.0 && uniform < sizes.probability(tokens[i] as usize, t)
            }
        };
        let perhaps = before as f32 * (1.0 - NEAR)..=t as f32 * (1.0 + NEAR);
        let mut new = Vec::new();
        for (i, from) in from.iter().enumerate().filter(|(_, from)| perhaps.contains(from)) {
            if is_drawn(i, t) && !is_drawn(i, before) {
                // Thresholds are positive: their bits are in the same order.
                new.push(u64::from(from.to_bits()) << 32 | u64::from(tokens[i]));
            }
        }
        new.sort_unstable();
        new.into_iter().map(|both| both as u32)
    }
}

/// Tokens that are looked at together.
const LANES: usize = 16;

/// Those of some tokens that are candidates, in front, and how many they are.
struct DrawCandidate {
    count: usize,
    tokens: [u32; LANES],
    uniforms: [u32; LANES],
    from: [f32; LANES],
}

/// Finds all tokens that are drawn at up to a threshold.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn find(shares: &[f32], uniforms: Uniforms, far: f32, out: &mut CandidateQueue) {
    let (whole, rest) = shares.as_chunks::<LANES>();
    let mut last = [0.0; LANES];
    last[..rest.len()].copy_from_slice(rest);
    let mut count = 0;
    for (i, shares) in whole.iter().chain([&last]).enumerate() {
        let first = (i * LANES) as u32;
        let (mut numbers, mut from) = ([0; LANES], [0.0; LANES]);
        for lane in 0..LANES {
            numbers[lane] = uniforms.at(first + lane as u32);
            // No threshold draws a token without a size.
            let share = if shares[lane] > 0.0 { shares[lane] } else { f32::NAN };
            from[lane] = numbers[lane] as f32 / RESOLUTION / share;
        }
        let found = match_target! {
            "x86_64+avx512f" => avx512::found(first, numbers, from, far),
            _ => found(first, numbers, from, far),
        };
        let Some(found) = found else { continue };
        out.reserve(count);
        out.tokens[count..count + LANES].copy_from_slice(&found.tokens);
        out.uniforms[count..count + LANES].copy_from_slice(&found.uniforms);
        out.from[count..count + LANES].copy_from_slice(&found.from);
        count += found.count;
    }
    out.truncate(count);
}

/// Those of a few tokens that are drawn at up to a threshold; `None` if none is.
#[inline(always)]
fn found(
    first: u32,
    uniforms: [u32; LANES],
    from: [f32; LANES],
    far: f32,
) -> Option<DrawCandidate> {
    if !from.map(|from| from <= far).contains(&true) {
        return None;
    }
    let (tokens, no_thresholds) = ([0; LANES], [0.0; LANES]);
    let mut found = DrawCandidate { count: 0, tokens, uniforms: tokens, from: no_thresholds };
    for lane in (0..LANES).filter(|&lane| from[lane] <= far) {
        found.tokens[found.count] = first + lane as u32;
        found.uniforms[found.count] = uniforms[lane];
        found.from[found.count] = from[lane];
        found.count += 1;
    }
    Some(found)
}

impl CandidateQueue {
    /// Makes room for some more than there are.
    fn reserve(&mut self, count: usize) {
        if count + LANES > self.tokens.len() {
            let len = (2 * count).max(32 * LANES);
            self.tokens.resize(len, 0);
            self.uniforms.resize(len, 0);
            self.from.resize(len, 0.0);
        }
    }

    fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.uniforms.truncate(len);
        self.from.truncate(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[multiversion(targets("x86_64+avx512f"))]
    fn found_here(
        first: u32,
        uniforms: [u32; LANES],
        from: [f32; LANES],
        far: f32,
    ) -> Option<DrawCandidate> {
        match_target! {
            "x86_64+avx512f" => avx512::found(first, uniforms, from, far),
            _ => found(first, uniforms, from, far),
        }
    }

    #[test]
    fn every_machine_finds_the_same() {
        let uniforms: [u32; LANES] = std::array::from_fn(|i| 1000 + i as u32);
        for set in 0..1_u32 << LANES {
            let of = |i: usize| if set >> i & 1 == 1 { 1.0 + i as f32 } else { 100.0 };
            let mut from: [f32; LANES] = std::array::from_fn(of);
            from[3] = if set & 8 == 8 { from[3] } else { f32::NAN };
            let list = |of: Option<DrawCandidate>| {
                of.map(|of| {
                    let (tokens, uniforms) = (&of.tokens[..of.count], &of.uniforms[..of.count]);
                    (tokens.to_vec(), uniforms.to_vec(), of.from[..of.count].to_vec())
                })
            };
            let plain = list(found(32, uniforms, from, 16.0));
            assert_eq!(plain, list(found_here(32, uniforms, from, 16.0)));
            let tokens: Vec<u32> = (0..16).filter(|i| set >> i & 1 == 1).map(|i| 32 + i).collect();
            assert_eq!(plain.map_or_else(Vec::new, |plain| plain.0), tokens);
        }
    }
}
