// Moments of each list's sample, for each query head of the list. A block adds ITEM tokens to the
// sums from which core's statistics follow (`Moments` in core's `stats.rs`).
//
// e = exp(logit − the sample's largest), o^ = N^/D^ is the estimated output, and w = e (v − o^).
// All means follow from sums over the whole sample, so that squares are taken of deviations,
// without cancellation. Values are in units of the largest norm, so that fourth powers stay in
// range.
//
// Constants: ELEMENT, HEAD_PADDED, VALUE_DIM, VALUE_PADDED, LOG2_PAGE, ITEM, MOMENTS.

const u32 THREADS = 128;
const u32 WARPS = THREADS / WARP;

/// Tokens of a warp.
const u32 SHARE = ITEM / WARPS;

/// Number of earlier pairs with whose differences the difference of a pair is multiplied, and the
/// number of tokens of these pairs.
const u32 LAGS = 4;
const u32 HALO = 2 * LAGS;

/// A lane has two adjacent columns of every 64.
const u32 PARTS = (VALUE_PADDED + 2 * WARP - 1) / (2 * WARP);
const u32 OF_LANE = 2 * PARTS;
const u32 COLUMNS = WARP * OF_LANE;

/// Sums over a list, relative to a shift, as `combine` writes them.
struct Sums {
    f64 shift, d;
    const f64* n;
};

DEVICE Sums sums_at(const f64* sums, u32 reader) {
    const f64* const at = sums + u64(reader) * (2 + VALUE_DIM);
    return {at[0], at[1], at + 2};
}

/// Factors that combine a query head's sums over the always-read tokens and over the sample, the
/// factor of the sample's e relative to the larger shift, and D^.
struct Estimate {
    f64 certain, sample, scale, d;
};

DEVICE Estimate estimate_of(const Sums& certain, const Sums& sample, u32 b, u32 n_s) {
    const f64 shift = fmax(certain.shift, sample.shift);
    Estimate estimate;
    estimate.certain = certain.d > 0 ? exp(certain.shift - shift) : 0;
    estimate.scale = exp(sample.shift - shift);
    estimate.sample = estimate.scale * (f64(n_s) / b);
    estimate.d = estimate.certain * certain.d + estimate.sample * sample.d;
    return estimate;
}

/// Subtrahends of each column: o^, and the means of e v and of w. In the padding of a value they
/// are 0, like the value.
struct Centre {
    f32 out[COLUMNS], mean_ev[COLUMNS], mean_w[COLUMNS];
};

/// Fills `centre`, in units of values, by the whole block, and returns this thread's part of |N^|².
DEVICE f64 centre_of(Centre& centre, const Sums& certain, const Sums& sample,
                     const Estimate& estimate, u32 b, f64 unit) {
    f64 norm_squared = 0;
    for (u32 x = threadIdx.x; x < COLUMNS; x += THREADS) {
        const f64 sampled = x < VALUE_DIM ? sample.n[x] : 0;
        const f64 n = x < VALUE_DIM ? estimate.certain * certain.n[x] + estimate.sample * sampled : 0;
        const f64 out = n / estimate.d;
        norm_squared += n * n;
        centre.out[x] = f32(out * unit);
        centre.mean_ev[x] = f32(sampled / b * unit);
        centre.mean_w[x] = f32((sampled - out * sample.d) / b * unit);
    }
    return norm_squared;
}

/// True if e v is so small, in units, that f32 loses the squares of w. That happens if single
/// tokens outweigh by many orders the tokens that carry the output. The variances then count as
/// infinite, so that everything is read.
DEVICE bool squares_are_lost(f64 mean_square, const Centre& centre) {
    const f64 least = 1e-24;
    for (u32 x = 0; x < VALUE_DIM; x++) mean_square += f64(centre.mean_ev[x]) * centre.mean_ev[x];
    return mean_square < least;
}

/// Reads two adjacent numbers.
DEVICE void read_two(const f32* from, f32& first, f32& second) {
    const uint2 two = *reinterpret_cast<const uint2*>(from);
    first = __uint_as_float(two.x);
    second = __uint_as_float(two.y);
}

template <typename T> DEVICE void read_two(const T* from, f32& first, f32& second) {
    widen(T(), *reinterpret_cast<const u32*>(from), first, second);
}

/// The lane's columns of a value, in units.
typedef f32 Value[OF_LANE];

DEVICE void read_value(const ELEMENT* value, f32 unit, Value& v) {
    const u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (u32 part = 0; part < PARTS; part++) {
        const u32 x = 2 * (part * WARP + lane);
        f32 first = 0, second = 0;
        if (x < VALUE_PADDED) read_two(value + x, first, second);
        v[2 * part] = first * unit;
        v[2 * part + 1] = second * unit;
    }
}

/// Two consecutive tokens in draw order.
struct Pair {
    Value first, second;
};

DEVICE Pair read_pair(const ELEMENT* const* rows, f32 unit) {
    Pair pair;
    read_value(rows[0], unit, pair.first);
    read_value(rows[1], unit, pair.second);
    return pair;
}

/// A lane's part of the squared deviations of e v and of w, and of the fourth powers of those of w.
struct Squares {
    f64 ev, w, w_fourths;
};

/// Turns a value into w, and adds the squared deviations if the token counts. Returns the lane's
/// part of the squared deviation of w.
DEVICE f32 weigh(Value& v, f32 e, const Centre& centre, bool counts, Squares& squares) {
    const u32 lane = threadIdx.x % WARP;
    f32 ev_squared = 0, w_squared = 0;
#pragma unroll
    for (u32 i = 0; i < OF_LANE; i++) {
        const u32 x = 2 * (i / 2 * WARP + lane) + i % 2;
        const f32 ev = e * v[i] - centre.mean_ev[x];
        v[i] = e * (v[i] - centre.out[x]);
        const f32 w = v[i] - centre.mean_w[x];
        ev_squared = fmaf(ev, ev, ev_squared);
        w_squared = fmaf(w, w, w_squared);
    }
    if (!counts) return 0;
    squares.ev += f64(ev_squared);
    squares.w += f64(w_squared);
    return w_squared;
}

/// Adds the squares of two tokens' squared deviations, of which each lane has a part.
DEVICE void square(f32 first, f32 second, Squares& squares) {
    const bool odd = threadIdx.x & 1;
    f32 sum = odd ? second : first;
    sum += __shfl_xor_sync(EVERY_LANE, odd ? first : second, 1);
#pragma unroll
    for (u32 apart = 2; apart < WARP; apart *= 2) sum += __shfl_xor_sync(EVERY_LANE, sum, apart);
    // All even lanes have the same sum, and all odd lanes.
    if (threadIdx.x % WARP < 2) squares.w_fourths += f64(sum) * sum;
}

/// Warp sum of number `lane % 4` of four, with six exchanges instead of twenty.
DEVICE f32 sum_of_four(const f32 (&x)[4]) {
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    f32 low_pair = odd ? x[1] : x[0], high_pair = odd ? x[3] : x[2];
    low_pair += __shfl_xor_sync(EVERY_LANE, odd ? x[0] : x[1], 1);
    high_pair += __shfl_xor_sync(EVERY_LANE, odd ? x[2] : x[3], 1);
    f32 sum = high ? high_pair : low_pair;
    sum += __shfl_xor_sync(EVERY_LANE, high ? low_pair : high_pair, 2);
#pragma unroll
    for (u32 apart = 4; apart < WARP; apart *= 2) sum += __shfl_xor_sync(EVERY_LANE, sum, apart);
    return sum;
}

/// The last differences, newest first.
typedef Value Differences[LAGS];

/// Product of a difference with the one `lane % LAGS + 1` pairs before.
DEVICE f32 product_of(const Value& difference, const Differences& before) {
    f32 products[LAGS];
#pragma unroll
    for (u32 lag = 0; lag < LAGS; lag++) {
        products[lag] = 0;
#pragma unroll
        for (u32 i = 0; i < OF_LANE; i++) {
            products[lag] = fmaf(difference[i], before[lag][i], products[lag]);
        }
    }
    return sum_of_four(products);
}

DEVICE void remember(const Value& difference, Differences& before) {
#pragma unroll
    for (u32 i = 0; i < OF_LANE; i++) {
#pragma unroll
        for (u32 lag = LAGS - 1; lag > 0; lag--) before[lag][i] = before[lag - 1][i];
        before[0][i] = difference[i];
    }
}

/// Adds a warp's tokens, pair by pair. `rows` and `e` begin with the halo, which does not count;
/// `end` is the number of tokens with the halo, and one more row must be readable. Returns the
/// lane's part of the squared products.
DEVICE f64 walk(const ELEMENT* const* rows, const f32* e, u32 end, f32 unit, const Centre& centre,
                Squares& squares) {
    Differences before = {};
    f64 lagged = 0;
    for (u32 i = 0; i < HALO + SHARE && i < end; i += 2) {
        Pair pair = read_pair(rows + i, unit);
        const bool counts = i >= HALO, whole = i + 1 < end;
        const f32 first = weigh(pair.first, e[i], centre, counts, squares);
        const f32 second = weigh(pair.second, e[i + 1], centre, counts && whole, squares);
        Value difference;
#pragma unroll
        for (u32 x = 0; x < OF_LANE; x++) difference[x] = whole ? pair.first[x] - pair.second[x] : 0;
        if (counts) {
            square(first, second, squares);
            const f64 product = f64(product_of(difference, before));
            lagged += product * product;
        }
        remember(difference, before);
    }
    // Lanes with the same remainder by LAGS have the same products.
    return threadIdx.x % WARP < LAGS ? lagged : 0;
}

/// Sums over a whole block, in the order of its warps, for its first thread.
DEVICE void sum_of_block(f64 (&sums)[MOMENTS], f64 (&held)[MOMENTS][WARPS]) {
#pragma unroll
    for (u32 i = 0; i < MOMENTS; i++) {
        sums[i] = warp_sum(sums[i]);
        if (threadIdx.x % WARP == 0) held[i][threadIdx.x / WARP] = sums[i];
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (u32 i = 0; i < MOMENTS; i++) {
        for (u32 warp = 1; warp < WARPS; warp++) sums[i] += held[i][warp];
    }
}

/// Computes moments, with one block for each item and each query head that reads a list (reader).
/// `group` query heads read each list.
/// tables, units, certain_lengths [lists]. tokens [lists][capacity], of which the first ends[list]
/// are drawn; lists with dones[list] are skipped. certain and sample [readers][2 + VALUE_DIM].
/// logits [readers][stride]. moments [readers][gridDim.x][MOMENTS]: D^ and |N^|², in the first item
/// only; the item's part of the squared deviations of e, of e v and of w, of the squared products,
/// and of the fourth powers of the deviations of e and of w. now: [0] visible tokens.
KERNEL(look, THREADS, const u32* now, const u64* tables, const u32* tokens, const u32* ends,
       const u32* dones, const u32* certain_lengths, const f32* units, const f64* certain,
       const f64* sample, const f32* logits, f64* moments, u32 group, u32 capacity, u32 stride) {
    __shared__ const ELEMENT* rows[HALO + ITEM];
    __shared__ f32 e[HALO + ITEM];
    __shared__ Centre centre;
    __shared__ f64 held[MOMENTS][WARPS];

    const u32 reader = blockIdx.y, list = reader / group, first = blockIdx.x * ITEM;
    const u32 b = ends[list];
    if (dones[list] || first >= b) return;
    const u32 count = min(u32(ITEM), b - first), n_s = min(now[0], capacity) - certain_lengths[list];

    const Sums known = sums_at(certain, reader), drawn = sums_at(sample, reader);
    const Estimate estimate = estimate_of(known, drawn, b, n_s);
    const f32 unit = units[list];
    const u64* const pages = reinterpret_cast<const u64*>(tables[list]);
    const f64 mean_e = drawn.d / b;
    f64 e_squares = 0, e_fourths = 0;
    for (u32 i = threadIdx.x; i < HALO + ITEM; i += THREADS) {
        // The halo and the padding get tokens of weight 0; reading an existing token does no harm.
        const u32 place = first + i - HALO;
        const bool is_there = first + i >= HALO && place < b;
        const u32 token = tokens[u64(list) * capacity + (is_there ? place : first)];
        rows[i] = row_of(pages, token) + HEAD_PADDED;
        e[i] = is_there ? expf(logits[u64(reader) * stride + place] - f32(drawn.shift)) : 0;
        const f64 apart = f64(e[i]) - mean_e;
        if (!is_there || i < HALO) continue;
        e_squares += apart * apart;
        e_fourths += apart * apart * apart * apart;
    }
    const f64 norm_squared = centre_of(centre, known, drawn, estimate, b, unit);
    __syncthreads();

    const u32 share = threadIdx.x / WARP * SHARE;
    const u32 end = HALO + count > share ? HALO + count - share : 0;
    Squares squares = {};
    const f64 lagged = walk(rows + share, e + share, end, unit, centre, squares);

    const bool is_first = blockIdx.x == 0;
    f64 sums[MOMENTS] = {0,         is_first ? norm_squared : 0, e_squares, squares.ev,
                         squares.w, lagged,                      e_fourths, squares.w_fourths};
    sum_of_block(sums, held);
    if (threadIdx.x != 0) return;
    const f64 e_squared = estimate.scale * estimate.scale;
    const f64 ev_squared = e_squared / (f64(unit) * f64(unit));
    f64* const out = moments + (u64(reader) * gridDim.x + blockIdx.x) * MOMENTS;
    out[0] = is_first ? estimate.d : 0;
    out[1] = sums[1];
    out[2] = sums[2] * e_squared;
    out[3] = sums[3] * ev_squared;
    out[4] = sums[4] * ev_squared;
    out[5] = sums[5] * ev_squared * ev_squared;
    out[6] = sums[6] * e_squared * e_squared;
    out[7] = sums[7] * ev_squared * ev_squared;
    if (squares_are_lost(sums[3] / count, centre)) out[3] = out[4] = -f64(MINUS_INFINITY);
}
