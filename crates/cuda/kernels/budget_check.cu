// Begins samples, and checks whether they are large enough: core's `sampler.rs`, with the
// statistics of core's `stats.rs`.
//
// Constants: MOMENTS, the number of moments that `look` writes, and those of budget.cuh.

const u32 THREADS = 128;
const u32 WARPS = THREADS / WARP;

/// If fewer tokens than this would remain undrawn, they are drawn too.
const u32 NEAR_CENSUS = 32;

/// Progress of a list's sample, as in `progress.rs`, without the numbers that follow from these.
struct Sample {
    u32 first, end, done, budget, held;
};

/// Writes to progress [7][lists]. The sample's tokens begin at list · capacity.
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

/// End of a sample of budget b: b, or n_s if only a few tokens would remain.
DEVICE u32 extend_or_finish(u32 b, u32 n_s) {
    return b >= n_s || n_s - b < NEAR_CENSUS ? n_s : b;
}

/// Minimum sample size: 1 if the list has no always-read token, because a list must not be empty.
DEVICE u32 least(u32 certain_length) { return certain_length == 0; }

/// Begins all samples, with one thread for each list. now: [0] visible tokens, [3] sample size of
/// the first check, or, if no check follows (`looked` is 0), of the only draw. certain_lengths
/// [lists].
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

/// Merges the items of a query head by a warp, in a fixed order, for all lanes.
DEVICE Moments merge(const f64* items, u32 count) {
    f64 sums[MOMENTS] = {};
    // There are few items, and unrolling the loop spills registers on sm_120.
#pragma unroll 1
    for (u32 item = threadIdx.x % WARP; item < count; item += WARP) {
        for (u32 i = 0; i < MOMENTS; i++) sums[i] += items[u64(item) * MOMENTS + i];
    }
#pragma unroll
    for (u32 i = 0; i < MOMENTS; i++) sums[i] = warp_sum(sums[i]);
    return {sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6], sums[7]};
}

/// Sums of query heads (readers) over their always-read tokens, [readers][2 + value_dim], as
/// `combine` writes them, and bounds on the untaken tokens: the largest logit of each span of tokens
/// of each query head, [readers][spans], and the largest norm of a value, [lists]. The bounds are
/// null for formulas that need none.
struct Proofs {
    const f64* certain;
    const f32* largest;
    const f64* longest;
    u32 span, spans, value_dim;

    /// Shift of the always-read tokens' sums.
    DEVICE f64 shift(u32 reader) const { return certain[u64(reader) * (2 + value_dim)]; }

    /// The always-read tokens' part of D^, relative to another shift that is not smaller.
    DEVICE f64 d_certain(u32 reader, f64 other) const {
        const f64 d = certain[u64(reader) * (2 + value_dim) + 1];
        return d > 0 ? d * exp(shift(reader) - other) : 0;
    }

    /// Largest e that an untaken token can have, computed by a warp, for all lanes.
    DEVICE f64 bound(u32 reader, u32 visible, f64 shift) const {
        if (!largest) return 0;
        const f32* const of_reader = largest + u64(reader) * spans;
        f32 most = MINUS_INFINITY;
        for (u32 i = threadIdx.x % WARP; i * span < visible; i += WARP) {
            most = fmaxf(most, of_reader[i]);
        }
        return exp(f64(warp_max(most)) - shift);
    }
};

/// Budget of a list, from the largest budget among each warp's query heads, `most`.
DEVICE u32 asked_by_all(u32 most, u32* held, u32 certain_length, u32 n_s) {
    if (threadIdx.x % WARP == 0) held[threadIdx.x / WARP] = most;
    __syncthreads();
    for (u32 i = 0; i < WARPS; i++) most = max(most, held[i]);
    return min(max(most, least(certain_length)), n_s);
}

/// Begins samples whose size is proved, so that they are drawn in one step. There is one block for
/// each list, and its warps take turns over the `group` query heads.
KERNEL(open_proved, THREADS, const u32* now, const u32* certain_lengths, const f64* form,
       const f64* certain, const f32* largest, u32* progress, u32 group, u32 capacity, u32 splits,
       u32 span, u32 spans, u32 value_dim) {
    __shared__ u32 held[WARPS];
    const u32 list = blockIdx.x, certain_length = certain_lengths[list];
    const u32 visible = min(now[0], capacity), n_s = visible - certain_length;
    const Proofs proofs = {certain, largest, nullptr, span, spans, value_dim};
    u32 most = 0;
    for (u32 reader = threadIdx.x / WARP; reader < group; reader += WARPS) {
        const u32 at = list * group + reader;
        const f64 shift = proofs.shift(at);
        Known known = {};
        known.d_certain = proofs.d_certain(at, shift);
        known.bound = proofs.bound(at, visible, shift);
        known.n_s = n_s;
        most = max(most, budget_of(known, {form, splits}));
    }
    const u32 budget = asked_by_all(most, held, certain_length, n_s);
    if (threadIdx.x != 0) return;
    const Sample sample = {0, extend_or_finish(budget, n_s), 1, budget, 1};
    write_sample(progress, list, gridDim.x, capacity, sample);
}

/// State of a sample after a check at `drawn` tokens that resulted in the budget `asked`.
DEVICE Sample next_part(u32 drawn, u32 asked, u32 n_s, bool last) {
    Sample sample = {drawn, drawn, 1, asked, 1};
    if (drawn == n_s || asked <= drawn) return sample;
    sample.end = extend_or_finish(last ? asked : max(asked, drawn + drawn / 8), n_s);
    sample.done = last;
    sample.held = last && sample.end == n_s;
    return sample;
}

/// Checks samples. There is one block for each list, and its warps take turns over the `group`
/// query heads. moments [lists][group][items][MOMENTS], where items have `item` tokens and moments
/// are relative to the larger shift of both sums. sample: the query heads' sums over it, laid out
/// like `certain`. form: the numbers of a formula. The next part of a finished list is empty.
KERNEL(budget_check, THREADS, const u32* now, const u32* certain_lengths, const f64* moments,
       const f64* form, const f64* certain, const f64* sample, const f32* largest,
       const f64* longest, u32* progress, u32 group, u32 item, u32 items, u32 capacity, u32 splits,
       u32 span, u32 spans, u32 value_dim, u32 last) {
    __shared__ u32 held[WARPS];
    const u32 list = blockIdx.x, lists = gridDim.x;
    u32* const of_list = progress + list;
    const u32 drawn = of_list[lists];
    if (of_list[4 * lists]) {
        const Sample before = {drawn, drawn, 1, of_list[5 * lists], of_list[6 * lists]};
        __syncthreads();  // all threads have read the old state
        if (threadIdx.x == 0) write_sample(progress, list, lists, capacity, before);
        return;
    }
    const u32 certain_length = certain_lengths[list], visible = min(now[0], capacity);
    const u32 n_s = visible - certain_length;
    const Proofs proofs = {certain, largest, longest, span, spans, value_dim};
    u32 most = 0;
    for (u32 reader = threadIdx.x / WARP; reader < group; reader += WARPS) {
        const u32 at = list * group + reader;
        const f64 shift = fmax(proofs.shift(at), sample[u64(at) * (2 + value_dim)]);
        Known known;
        known.d_certain = proofs.d_certain(at, shift);
        known.bound = proofs.bound(at, visible, shift);
        known.sample = merge(moments + u64(at) * items * MOMENTS, (drawn + item - 1) / item);
        known.longest = longest ? longest[list] : 0;
        known.b = drawn;
        known.n_s = n_s;
        most = max(most, budget_of(known, {form, splits}));
    }
    const u32 budget = asked_by_all(most, held, certain_length, n_s);
    if (threadIdx.x != 0) return;
    write_sample(progress, list, lists, capacity, next_part(drawn, budget, n_s, last));
}
