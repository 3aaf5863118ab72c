// Sample size that a promise needs: a `Formula` of `formula.rs`, computed by a warp from core's
// statistics.
//
// Constant: LAGS, the number of lags of the products of differences.

/// Moments of a sample for a query head, relative to a shift.
struct Moments {
    f64 d, norm_squared, e_squares, ev_squares, w_squares, lagged, e_fourths, w_fourths;
};

/// Inputs of a query head's budget. Its list has n_s untaken tokens, of which b have been drawn.
struct Known {
    Moments sample;
    /// The always-read tokens' part of D^, and an upper bound on the e of the untaken tokens,
    /// relative to the same shift.
    f64 d_certain, bound;
    /// Largest norm of a value.
    f64 longest;
    u32 b, n_s;
};

/// Effective rank of the covariance of w, shrunk towards 1, which is the safe side.
DEVICE f64 effective_rank(u32 b, f64 trace, f64 lagged) {
    u32 products = 0;
    for (u32 lag = 1; lag <= LAGS; lag++) products += b / 2 > lag ? b / 2 - lag : 0;
    const f64 trace_of_square = products ? lagged / (4.0 * products) : 0;
    // A rank of 1 is safe, so fmax may drop a NaN.
    const f64 inverse = trace_of_square == 0 ? 0 : 1 / fmax(trace * trace / trace_of_square, 1.0);
    return fmax(1 / (inverse + 1.0 / b), 1.0);
}

/// Codes of numerators, denominators and populations, as in `budget_check.rs`.
const u32 OUTPUT = 0, ESTIMATED_NUMERATOR = 1, BOUNDED_NUMERATOR = 2;
const u32 ESTIMATED = 0, BOUNDED_DENOMINATOR = 1, PROVED = 2;
const u32 INFINITE = 0, FINITE = 1, SERFLING = 2;

/// A formula for budgets, as numbers: epsilon; the codes of numerator, denominator and population;
/// the number of their own standard errors by which variances are raised; then cap, kappa and z for
/// each way to divide delta.
struct Formula {
    const f64* numbers;
    u32 splits;

    DEVICE f64 epsilon() const { return numbers[0]; }
    DEVICE u32 numerator() const { return u32(numbers[1]); }
    DEVICE u32 denominator() const { return u32(numbers[2]); }
    DEVICE u32 population() const { return u32(numbers[3]); }
    DEVICE f64 allowance() const { return numbers[4]; }
};

/// (kurtosis − 1) / b: the squared relative standard error of a variance.
DEVICE f64 excess_of(u32 b, f64 squares, f64 fourths) {
    const f64 kurtosis = squares == 0 ? 1 : b * fourths / (squares * squares);
    // A NaN must propagate, which fmax would prevent.
    return kurtosis < 1 ? 0 : (kurtosis - 1) / b;
}

/// Deviation of the numerator at one draw; `raise` is the factor of the sample's variances.
DEVICE f64 numerator_of(const Known& known, u32 what, f64 trace_ev, f64 trace_w, f64 raise) {
    const f64 norm = sqrt(known.sample.norm_squared);
    if (what == BOUNDED_NUMERATOR) return known.n_s * known.bound * known.longest / norm;
    return known.n_s * sqrt(raise * (what == OUTPUT ? trace_w : trace_ev)) / norm;
}

/// Deviation of the denominator at one draw.
DEVICE f64 denominator_of(const Known& known, u32 what, f64 var_e) {
    const f64 deviation = what == ESTIMATED ? sqrt(var_e) : known.bound;
    return known.n_s * deviation / (what == PROVED ? known.d_certain : known.sample.d);
}

/// √b of the cheapest way to divide delta, computed by a warp; infinite if the inputs are NaN.
DEVICE f64 cheapest(const Formula& formula, f64 s, f64 s_d, f64 nu) {
    const f64 numerator = s / formula.epsilon(), root_nu = sqrt(nu);
    f64 root = -f64(MINUS_INFINITY);
    for (u32 i = threadIdx.x % WARP; i < formula.splits; i += WARP) {
        const f64* const split = formula.numbers + 5 + 3 * i;
        const f64 q = fmin(split[0], 1 + split[1] / root_nu), z = split[2];
        // A factor of 0 makes the term 0, even if the deviation is NaN.
        const f64 one = q > 0 ? sqrt(q) * numerator : 0, other = z > 0 ? z * s_d : 0;
        root = fmin(root, one + other);
    }
#pragma unroll
    for (u32 apart = WARP / 2; apart > 0; apart /= 2) {
        root = fmin(root, __shfl_xor_sync(EVERY_LANE, root, apart));
    }
    return root;
}

/// The least b that is at least b0 times the factor of Serfling's inequality; all n if b0 is
/// infinite.
DEVICE f64 serfling(f64 b0, f64 n) {
    if (!(b0 < -f64(MINUS_INFINITY))) return n;
    const f64 before = b0 * (n + 1) / (n + b0);
    if (before <= n / 2) return before;
    // b² (n + b0) = b k + b0 n.
    const f64 k = b0 * (n - 1), whole = n + b0;
    const f64 after = (k + sqrt(k * k + 4 * b0 * n * whole)) / (2 * whole);
    return fmin(before, fmax(after, n / 2));
}

/// Budget out of n_s tokens, from the budget for an infinite population.
DEVICE f64 out_of(f64 infinite, u32 n_s, u32 population) {
    // ∞ / ∞ is not a number.
    if (population == FINITE) return infinite / (1 + infinite / n_s);
    return population == SERFLING ? serfling(infinite, n_s) : infinite;
}

/// Budget rounded up to whole tokens, at least one and at most n_s.
DEVICE u32 whole_tokens(f64 b, u32 n_s) {
    // The comparison is false for a NaN, so everything is read.
    if (!(b < n_s)) return n_s;
    return min(u32(fmax(ceil(b - 1e-9 * fmax(b, 1.0)), 1.0)), n_s);
}

/// Budget of a query head, computed by a warp, for all lanes. With one drawn token the variances
/// are NaN, and everything is read.
DEVICE u32 budget_of(const Known& known, const Formula& formula) {
    const Moments& sample = known.sample;
    const f64 trace_w = sample.w_squares / (known.b - 1.0);
    const f64 trace_ev = sample.ev_squares / (known.b - 1.0);
    const f64 var_e = sample.e_squares / (known.b - 1.0);
    const f64 allowance = formula.allowance();
    const f64 excess_e = excess_of(known.b, sample.e_squares, sample.e_fourths);
    const f64 excess_w = excess_of(known.b, sample.w_squares, sample.w_fourths);
    const f64 raise_e = 1 + allowance * sqrt(excess_e), raise_w = 1 + allowance * sqrt(excess_w);
    const f64 s = numerator_of(known, formula.numerator(), trace_ev, trace_w, raise_w);
    const f64 s_d = denominator_of(known, formula.denominator(), raise_e * var_e);
    const f64 rank = effective_rank(known.b, trace_w, sample.lagged);
    const f64 nu = allowance > 0 ? 1 / (1 / rank + excess_w) : rank;
    const f64 root = cheapest(formula, s, s_d, nu);
    return whole_tokens(out_of(root * root, known.n_s, formula.population()), known.n_s);
}
