// Attention of a group of query heads over lists of rows. Each block computes the sums of one item
// of a list, ITEM rows. Every row is read once for the whole group: first all keys, then, once the
// weights are known, all values.
//
// A problem is a list of tokens and GROUP scaled queries. Without an array of tokens, the list is a
// prefix of the rows. The record of an item is, for each query head,
//
//     [Σ e v / p: VALUE_PADDED numbers | Σ e / p | shift | 2 unused],  e = exp(q·k − shift)
//
// Constants: those of rows.cuh and keys.cuh, which come before this file, and ITEM.

const u32 WARPS = THREADS / WARP;

/// Threads that share a value, and values that a block reads in parallel.
const u32 COLUMNS = VALUE_PADDED / CHUNK;
const u32 VALUES = THREADS / COLUMNS;

/// Values that a thread loads before it adds the first of them, to hide the memory's latency.
const u32 AHEAD = 4;

const u32 RECORD = VALUE_PADDED + 4;

/// Distance between the weights of consecutive rows: odd, so that a column has no bank conflicts.
const u32 STRIDE = GROUP | 1;

/// Size of shared memory for the exchange of half of the threads' sums.
const u32 HALVES = THREADS / 2 * CHUNK * GROUP;
const u32 BEFORE = GROUP * HEAD_PADDED + ITEM * STRIDE;

typedef f32 Sums[GROUP][CHUNK];

/// Writes the logits of `count` rows to `logits`, [ITEM][STRIDE].
DEVICE void read_keys(const ELEMENT* const* rows, u32 count, const f32* queries, f32* logits) {
    const u32 sharer = threadIdx.x % SHARERS;
    for (u32 first = 0; first < count; first += KEYS) {
        const u32 i = first + threadIdx.x / SHARERS;
        // Threads beyond the last row read that row too, because shuffles need the whole warp.
        const ELEMENT* key = rows[min(i, count - 1)];
        f32 products[GROUP];
        multiply_key(key, queries, products);
#pragma unroll
        for (u32 head = 0; head < GROUP; head++) {
            if (i < count && sharer == head % SHARERS) logits[i * STRIDE + head] = products[head];
        }
    }
}

/// Turns one head's logits into weights e / p, by one warp, and returns their sum and the shift.
DEVICE void weigh(f32* logits, const f32* inverses, u32 count, f32& sum, f32& shift) {
    const u32 lane = threadIdx.x % WARP;
    shift = MINUS_INFINITY;
    for (u32 i = lane; i < count; i += WARP) shift = fmaxf(shift, logits[i * STRIDE]);
    shift = warp_max(shift);
    sum = 0;
    for (u32 i = lane; i < count; i += WARP) {
        const f32 weight = expf(logits[i * STRIDE] - shift) * inverses[i];
        logits[i * STRIDE] = weight;
        sum += weight;
    }
    sum = warp_sum(sum);
}

/// Adds a value in the thread's columns, weighted for each head.
DEVICE void add_value(const Chunk<ELEMENT>& chunk, const f32* weights, Sums& sums) {
    f32 value[CHUNK];
    widen(chunk, value);
#pragma unroll
    for (u32 head = 0; head < GROUP; head++) {
        const f32 weight = weights[head];
#pragma unroll
        for (u32 x = 0; x < CHUNK; x++) sums[head][x] = fmaf(weight, value[x], sums[head][x]);
    }
}

/// Adds every VALUES-th value, starting at the thread's first one.
DEVICE void read_values(const ELEMENT* const* rows, u32 count, const f32* weights, Sums& sums) {
    const u32 place = threadIdx.x / COLUMNS;
    const u32 at = HEAD_PADDED + threadIdx.x % COLUMNS * CHUNK;
    if (place >= VALUES) return;
    for (u32 first = place; first < count; first += AHEAD * VALUES) {
        Chunk<ELEMENT> chunks[AHEAD];
#pragma unroll
        for (u32 ahead = 0; ahead < AHEAD; ahead++) {
            const u32 i = first + ahead * VALUES;
            if (i < count) chunks[ahead] = load_chunk(rows[i] + at);
        }
#pragma unroll
        for (u32 ahead = 0; ahead < AHEAD; ahead++) {
            const u32 i = first + ahead * VALUES;
            if (i < count) add_value(chunks[ahead], weights + i * STRIDE, sums);
        }
    }
}

/// Sums over all threads with the same columns, for the first of them. In each round the upper half
/// of the threads hands its sums to the lower half.
DEVICE void gather(Sums& sums, f32* handed) {
    const u32 place = threadIdx.x / COLUMNS;
    for (u32 left = VALUES; left > 1;) {
        const u32 half = (left + 1) / 2;
        const u32 other = threadIdx.x - half * COLUMNS;
        __syncthreads();
        if (half <= place && place < left) {
#pragma unroll
            for (u32 x = 0; x < GROUP * CHUNK; x++) {
                handed[x * (THREADS / 2) + other] = sums[x / CHUNK][x % CHUNK];
            }
        }
        __syncthreads();
        if (place + half < left) {
#pragma unroll
            for (u32 x = 0; x < GROUP * CHUNK; x++) {
                sums[x / CHUNK][x % CHUNK] += handed[x * (THREADS / 2) + threadIdx.x];
            }
        }
        left = half;
    }
}

/// tables [problems]: addresses of page tables. starts, lengths [problems]: ranges of the lists in
/// tokens and probabilities. queries [problems][GROUP][HEAD_DIM].
/// records [problems][gridDim.x][GROUP][RECORD]. logits_out [problems][GROUP][stride], or null: the
/// logits of a list begin at places[problem], or at 0 without places.
KERNEL(attend, THREADS, const u64* tables, const u32* starts, const u32* lengths, const u32* tokens,
       const f32* probabilities, const f32* queries, f32* records, f32* logits_out,
       const u32* places, u32 stride) {
    __shared__ const ELEMENT* rows[ITEM];
    __shared__ f32 inverses[ITEM];
    __shared__ __align__(16) f32 scratch[BEFORE > HALVES ? BEFORE : HALVES];
    f32* const query = scratch;
    f32* const logits = scratch + GROUP * HEAD_PADDED;

    const u32 problem = blockIdx.y, first = blockIdx.x * ITEM;
    const u32 start = starts[problem], length = lengths[problem];
    if (first >= length) return;
    const u32 count = min(u32(ITEM), length - first);

    const u64* pages = reinterpret_cast<const u64*>(tables[problem]);
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        const u32 listed = start + first + i;
        const u32 token = tokens ? tokens[listed] : first + i;
        rows[i] = row_of(pages, token);
        inverses[i] = probabilities ? 1 / probabilities[listed] : 1;
    }
    hold_queries(queries + u64(problem) * (GROUP * HEAD_DIM), query);
    __syncthreads();
    read_keys(rows, count, query, logits);
    __syncthreads();

    f32* const record = records + u64(problem * gridDim.x + blockIdx.x) * (GROUP * RECORD);
    for (u32 head = threadIdx.x / WARP; head < GROUP; head += WARPS) {
        if (logits_out) {
            const u32 place = (places ? places[problem] : 0) + first;
            f32* const out = logits_out + u64(problem * GROUP + head) * stride + place;
            for (u32 i = threadIdx.x % WARP; i < count; i += WARP) out[i] = logits[i * STRIDE + head];
        }
        f32 sum, shift;
        weigh(logits + head, inverses, count, sum, shift);
        if (threadIdx.x % WARP == 0) {
            record[head * RECORD + VALUE_PADDED] = sum;
            record[head * RECORD + VALUE_PADDED + 1] = shift;
        }
    }
    __syncthreads();

    Sums sums = {};
    read_values(rows, count, logits, sums);
    gather(sums, scratch);
    if (threadIdx.x >= COLUMNS) return;
#pragma unroll
    for (u32 head = 0; head < GROUP; head++) {
        float4* out = reinterpret_cast<float4*>(record + head * RECORD + threadIdx.x * CHUNK);
        out[0] = {sums[head][0], sums[head][1], sums[head][2], sums[head][3]};
        out[1] = {sums[head][4], sums[head][5], sums[head][6], sums[head][7]};
    }
}
