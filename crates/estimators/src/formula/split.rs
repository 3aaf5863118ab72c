//! Division of delta between two failure events.

/// Returns the least `cost(delta − x, x)` over `x` in `(0, delta)`, and the two parts at this
/// minimum.
///
/// The search is a coarse scan over the logarithm of the parts' ratio, followed by a golden-section
/// search, which assumes that `cost` has one minimum near the best point of the scan.
pub(crate) fn split(delta: f64, cost: impl Fn(f64, f64) -> f64) -> (f64, f64, f64) {
    let value = |u: f64| {
        let (first, second) = parts(delta, u);
        cost(first, second)
    };
    let coarse: Vec<f64> = (-30..=30).map(f64::from).collect();
    let best = coarse.iter().copied().min_by(|&a, &b| value(a).total_cmp(&value(b)));
    let best = best.expect("the scan is not empty");
    let u = golden_section(best - 1.0, best + 1.0, &value);
    let u = if value(u) <= value(best) { u } else { best };
    let (first, second) = parts(delta, u);
    (value(u), first, second)
}

/// Returns the two parts of delta with `ln(first / second) = −u`.
fn parts(delta: f64, u: f64) -> (f64, f64) {
    (delta / (1.0 + u.exp()), delta / (1.0 + (-u).exp()))
}

fn golden_section(mut low: f64, mut high: f64, value: &impl Fn(f64) -> f64) -> f64 {
    let ratio = (5.0_f64.sqrt() - 1.0) / 2.0;
    let (mut a, mut b) = (high - ratio * (high - low), low + ratio * (high - low));
    let (mut value_a, mut value_b) = (value(a), value(b));
    while high - low > 1e-7 {
        if value_a <= value_b {
            (high, b, value_b) = (b, a, value_a);
            a = high - ratio * (high - low);
            value_a = value(a);
        } else {
            (low, a, value_a) = (a, b, value_b);
            b = low + ratio * (high - low);
            value_b = value(b);
        }
    }
    f64::midpoint(low, high)
}
