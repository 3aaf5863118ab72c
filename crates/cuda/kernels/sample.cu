// The first part of a keyed random order of the visible tokens, without the taken ones. The order
// is that of core's `order.rs`, bit for bit.
//
// `now` has the number of visible tokens and the sides a and b of the order.
//
// The candidates 0, 1, … of a bijection of 0..a·b are cut into spans, one for each block.
// `count_open` counts the candidates of a span whose image is an untaken token; `draw` derives
// their places in the sample from these counts.

const u32 THREADS = 256;
const u32 WARPS = THREADS / WARP;

/// Candidates of a thread, and of a block.
const u32 CANDIDATES = 16;
const u32 SPAN = THREADS * CANDIDATES;

/// A random order of the tokens below `visible`.
struct Order {
    u32 keys[8];
    u32 a, b, visible;
};

DEVICE Order order_of(const u32* now, const u32* keys, u32 capacity) {
    Order order = {{}, now[1], now[2], min(now[0], capacity)};
#pragma unroll
    for (u32 i = 0; i < 8; i++) order.keys[i] = keys[blockIdx.y * 8 + i];
    return order;
}

/// True if the order has no candidates for this block.
DEVICE bool beyond(const u32* now) { return blockIdx.x * SPAN >= now[1] * now[2]; }

/// A keyed hash of x, scaled to 0..range.
DEVICE u32 scaled_hash(u32 x, u32 key, u32 range) {
    u32 h = x * 0x9E3779B1u + key;
    h = (h ^ h >> 16) * 0x21f0aaadu;
    h = (h ^ h >> 15) * 0x735a2d97u;
    return __umulhi(h ^ h >> 15, range);
}

/// (x + y) mod modulus, for x, y < modulus.
DEVICE u32 add_below(u32 x, u32 y, u32 modulus) {
    const u32 sum = x + y;
    return sum < modulus ? sum : sum - modulus;
}

/// The image of a candidate: eight rounds of an alternating Feistel network over Z_a × Z_b.
DEVICE u32 image_of(const Order& order, u32 candidate) {
    u32 left = candidate / order.b, right = candidate % order.b;
#pragma unroll
    for (u32 i = 0; i < 8; i += 2) {
        left = add_below(left, scaled_hash(right, order.keys[i], order.a), order.a);
        right = add_below(right, scaled_hash(left, order.keys[i + 1], order.b), order.b);
    }
    return left * order.b + right;
}

/// Bits of the tokens that the rows of a list have taken, [members][words].
struct Taken {
    const u32* bits;
    u32 members, words;
};

DEVICE Taken taken_of(const u32* taken, u32 members, u32 words) {
    return {taken + u64(blockIdx.y) * members * words, members, words};
}

DEVICE bool is_taken(const Taken& taken, u32 token) {
    u32 bits = 0;
    for (u32 member = 0; member < taken.members; member++) {
        bits |= taken.bits[u64(member) * taken.words + token / WARP];
    }
    return bits >> (token % WARP) & 1;
}

/// True if the image of the warp's i-th candidate in this lane is an untaken token.
DEVICE bool is_open(const Order& order, const Taken& taken, u32 i, u32& token) {
    const u32 in_warp = threadIdx.x / WARP * (WARP * CANDIDATES) + i * WARP + threadIdx.x % WARP;
    const u32 candidate = blockIdx.x * SPAN + in_warp;
    if (candidate >= order.a * order.b) return false;
    token = image_of(order, candidate);
    return token < order.visible && !is_taken(taken, token);
}

/// keys [lists][8]. taken [lists][members][words]. counts [lists][gridDim.x].
KERNEL(count_open, THREADS, const u32* now, const u32* keys, const u32* taken, u32* counts,
       u32 members, u32 capacity, u32 words) {
    __shared__ u32 held[WARPS];
    if (beyond(now)) return;
    const Order order = order_of(now, keys, capacity);
    const Taken together = taken_of(taken, members, words);
    u32 count = 0, token, total;
    for (u32 i = 0; i < CANDIDATES; i++) count += is_open(order, together, i, token);
    sum_before(count, held, total);
    if (threadIdx.x == 0) counts[blockIdx.y * gridDim.x + blockIdx.x] = total;
}

/// Writes the tokens at the places firsts[list]..ends[list] of each list's sample to the same
/// places of tokens, [lists][capacity].
KERNEL(draw, THREADS, const u32* now, const u32* keys, const u32* taken, const u32* counts,
       const u32* firsts, const u32* ends, u32* tokens, u32 members, u32 capacity, u32 words) {
    __shared__ u32 held[WARPS];
    const u32 list = blockIdx.y, first = firsts[list], end = min(ends[list], capacity);
    if (first >= end || beyond(now)) return;
    const u32 earlier = sum_of_first(counts + list * gridDim.x, blockIdx.x, held);
    const u32 here = counts[list * gridDim.x + blockIdx.x];
    if (earlier >= end || earlier + here <= first) return;

    const Order order = order_of(now, keys, capacity);
    const Taken together = taken_of(taken, members, words);
    u32 image[CANDIDATES], open[CANDIDATES], count = 0, total;
#pragma unroll
    for (u32 i = 0; i < CANDIDATES; i++) {
        open[i] = __ballot_sync(EVERY_LANE, is_open(order, together, i, image[i]));
        count += __popc(open[i]);
    }
    u32 place = earlier + sum_of_warps_before(count, held, total);
    const u32 lane = threadIdx.x % WARP, lower = (1u << lane) - 1;
#pragma unroll
    for (u32 i = 0; i < CANDIDATES; i++) {
        const u32 at = place + __popc(open[i] & lower);
        if ((open[i] >> lane & 1) && first <= at && at < end) {
            tokens[u64(list) * capacity + at] = image[i];
        }
        place += __popc(open[i]);
    }
}
