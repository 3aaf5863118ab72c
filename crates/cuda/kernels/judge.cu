// How samples begin, and whether what looks found of them is enough: core's `sampler.rs`, with the
// statistics of core's `stats.rs` and the budget of core's `Formula`.
//
// Constants: MOMENTS, as `look` writes them, and LAGS, at which differences were multiplied.

const u32 THREADS = 128;
const u32 WARPS = THREADS / WARP;

/// With fewer tokens than this left over, the rest is drawn too.
const u32 NEAR_CENSUS = 32;

/// How far the sample of a list is: as in `progress.rs`, but for what follows from the rest.
struct Sample {
    u32 first, end, done, budget, held;
};

/// progress [7][lists]; the sample's tokens begin at list · capacity.
DEVICE void write_sample(u32* progress, u32 list, u32 lists, u32 capacity, const Sample& sample) {
    u32* const out = progress + list;
    out[0] = sample.first;
    out[lists] = sample.end;
    out[2 * lists] = list * capacity + sample.first;
    out[3 * lists] = sample.end - sample.first;
    out[4 * lists] = sample.done;
    out[5 * lists] = sample.budget;
    out[6 * lists] = sample.held;
}

/// Where a sample ends that is to have b tokens: at b, or at the end if that would leave only a few.
DEVICE u32 extend_or_finish(u32 b, u32 n_s) {
    return b >= n_s || n_s - b < NEAR_CENSUS ? n_s : b;
}

/// A list must hold something.
DEVICE u32 least(u32 certain_length) { return certain_length == 0; }

/// Begins all samples: one thread for each list. now: the visible tokens, and at 3 how many to look
/// at first; without looks (`looked` 0), how many to draw. certain_lengths [lists].
KERNEL(open_samples, THREADS, const u32* now, const u32* certain_lengths, u32* progress, u32 lists,
       u32 capacity, u32 looked) {
    const u32 list = blockIdx.x * THREADS + threadIdx.x;
    if (list >= lists) return;
    const u32 certain_length = certain_lengths[list], n_s = min(now[0], capacity) - certain_length;
    Sample sample = {};
    if (n_s == 0) {
        sample.done = sample.held = 1;
    } else if (looked) {
        sample.end = extend_or_finish(now[3], n_s);
    } else {
        sample.budget = sample.end = min(max(now[3], least(certain_length)), n_s);
        sample.done = 1;
        sample.held = sample.end == n_s;
    }
    write_sample(progress, list, lists, capacity, sample);
}

/// What a look found for a reader: sums over the sample, relative to any shift.
struct Moments {
    f64 d, norm_squared, e_squares, ev_squares, w_squares, lagged;
};

/// Merges the items of a reader by a warp, in a fixed order, for all lanes.
DEVICE Moments merge(const f64* items, u32 count) {
    f64 sums[MOMENTS] = {};
    for (u32 item = threadIdx.x % WARP; item < count; item += WARP) {
        for (u32 i = 0; i < MOMENTS; i++) sums[i] += items[u64(item) * MOMENTS + i];
    }
#pragma unroll
    for (u32 i = 0; i < MOMENTS; i++) sums[i] = warp_sum(sums[i]);
    return {sums[0], sums[1], sums[2], sums[3], sums[4], sums[5]};
}

/// |N|² without the sampling noise in it, at least a twentieth of the estimate.
DEVICE f64 debiased(f64 norm_squared, f64 trace_ev, u32 b, u32 n_s) {
    const f64 excess = f64(n_s) * n_s * trace_ev * fmax(1.0 / b - 1.0 / n_s, 0.0);
    return fmax(norm_squared - excess, 0.05 * norm_squared);
}

/// The effective rank of the covariance of w, shrunk to be safe.
DEVICE f64 effective_rank(u32 b, f64 trace, f64 lagged) {
    u32 products = 0;
    for (u32 lag = 1; lag <= LAGS; lag++) products += b / 2 > lag ? b / 2 - lag : 0;
    const f64 trace_of_square = products ? lagged / (4.0 * products) : 0;
    const f64 inverse = trace_of_square > 0 ? 1 / fmax(trace * trace / trace_of_square, 1.0) : 0;
    return fmax(1 / (inverse + 1.0 / b), 1.0);
}

/// A formula for budgets, as numbers: epsilon; whether the numerator's error is that of the output,
/// whether its norm is debiased, and whether the residual's end counts; then a cap, kappa and z for each
/// way to divide delta.
struct Formula {
    const f64* numbers;
    u32 splits;

    DEVICE f64 epsilon() const { return numbers[0]; }
    DEVICE bool of_output() const { return numbers[1] != 0; }
    DEVICE bool is_debiased() const { return numbers[2] != 0; }
    DEVICE bool is_finite() const { return numbers[3] != 0; }
};

/// √b by the cheapest way to divide delta, by a warp; infinite if what it follows from is not numbers.
DEVICE f64 cheapest(const Formula& formula, f64 s, f64 s_d, f64 nu) {
    const f64 numerator = s / formula.epsilon(), root_nu = sqrt(nu);
    f64 root = -f64(MINUS_INFINITY);
    for (u32 i = threadIdx.x % WARP; i < formula.splits; i += WARP) {
        const f64* const split = formula.numbers + 4 + 3 * i;
        const f64 q = fmin(split[0], 1 + split[1] / root_nu), z = split[2];
        // What does not count may be no number.
        const f64 one = q > 0 ? sqrt(q) * numerator : 0, other = z > 0 ? z * s_d : 0;
        root = fmin(root, one + other);
    }
#pragma unroll
    for (u32 apart = WARP / 2; apart > 0; apart /= 2) {
        root = fmin(root, __shfl_xor_sync(EVERY_LANE, root, apart));
    }
    return root;
}

/// Rounded up to whole tokens, at least one and at most n_s.
DEVICE u32 whole_tokens(f64 b, u32 n_s) {
    // What is not a number is not less, so everything is read.
    if (!(b < n_s)) return n_s;
    return min(u32(fmax(ceil(b - 1e-9 * fmax(b, 1.0)), 1.0)), n_s);
}

/// The budget of a reader of b drawn tokens out of n_s, by a warp, for all lanes.
DEVICE u32 budget_of(const Moments& found, const Formula& formula, u32 b, u32 n_s) {
    if (b < 2) return n_s;  // there are no variances
    const f64 trace_w = found.w_squares / (b - 1.0), trace_ev = found.ev_squares / (b - 1.0);
    const bool is_debiased = formula.is_debiased();
    const f64 squared = is_debiased ? debiased(found.norm_squared, trace_ev, b, n_s) : found.norm_squared;
    const f64 s = n_s * sqrt(formula.of_output() ? trace_w : trace_ev) / sqrt(squared);
    const f64 s_d = n_s * sqrt(found.e_squares / (b - 1.0)) / found.d;
    const f64 root = cheapest(formula, s, s_d, effective_rank(b, trace_w, found.lagged));
    const f64 infinite = root * root;
    // ∞ / ∞ is not a number.
    return whole_tokens(formula.is_finite() ? infinite / (1 + infinite / n_s) : infinite, n_s);
}

/// What follows a look at all that is drawn, which asks for `asked` tokens.
DEVICE Sample next_part(u32 drawn, u32 asked, u32 n_s, bool last) {
    Sample sample = {drawn, drawn, 1, asked, 1};
    if (drawn == n_s || asked <= drawn) return sample;
    sample.end = extend_or_finish(last ? asked : max(asked, drawn + drawn / 8), n_s);
    sample.done = last;
    sample.held = last && sample.end == n_s;
    return sample;
}

/// One block for each list, a warp for each of its `group` readers in turn. moments
/// [lists][group][items][MOMENTS], each of `item` tokens. form: the numbers of a formula. Without a part
/// that is left to draw, where all is done.
KERNEL(judge, THREADS, const u32* now, const u32* certain_lengths, const f64* moments,
       const f64* form, u32* progress, u32 group, u32 item, u32 items, u32 capacity, u32 splits,
       u32 last) {
    __shared__ u32 asked[WARPS];
    const u32 list = blockIdx.x, lists = gridDim.x, warp = threadIdx.x / WARP;
    u32* const of_list = progress + list;
    const u32 drawn = of_list[lists];
    if (of_list[4 * lists]) {
        const Sample before = {drawn, drawn, 1, of_list[5 * lists], of_list[6 * lists]};
        __syncthreads();  // all have read
        if (threadIdx.x == 0) write_sample(progress, list, lists, capacity, before);
        return;
    }
    const u32 certain_length = certain_lengths[list], n_s = min(now[0], capacity) - certain_length;
    const Formula formula = {form, splits};
    u32 most = 0;
    for (u32 reader = warp; reader < group; reader += WARPS) {
        const f64* const found = moments + u64(list * group + reader) * items * MOMENTS;
        const Moments merged = merge(found, (drawn + item - 1) / item);
        most = max(most, budget_of(merged, formula, drawn, n_s));
    }
    if (threadIdx.x % WARP == 0) asked[warp] = most;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (u32 i = 0; i < WARPS; i++) most = max(most, asked[i]);
    const u32 budget = min(max(most, least(certain_length)), n_s);
    write_sample(progress, list, lists, capacity, next_part(drawn, budget, n_s, last));
}
