// Selection of the k largest scores among the untaken tokens, lower tokens first among equals. The
// result is exact and does not depend on the order of additions, and nothing is sorted.
//
// A score is mapped to a key of the same order. From the highest 8-bit digit down, `count_digits`
// computes the histogram of the digit over the keys that agree with the cut so far, and `narrow`
// appends the digit of the k-th largest key to the cut. Then `count_equals` counts the keys that
// equal the cut, span by span, and `mark` takes the keys above it, and the first of its equals.
//
// The first pass over a row resets the cut, and each pass leaves the histogram zero, so that the
// same kernels can run again and again.
//
// Constants: SCORE, u16 or f32; PAGE, consecutive tokens that share a score. Rows of taken bits are
// `stride` tokens apart, a multiple of 64, and rows of scores the same number of tokens. `now`
// begins with the number of visible tokens.

const u32 THREADS = 256;
const u32 WARPS = THREADS / WARP;

/// Words of taken bits of a warp, and tokens of a block.
const u32 WORDS = 16;
const u32 SPAN = THREADS * WORDS;

/// Index of the highest digit of a key.
const u32 HIGHEST = sizeof(SCORE) - 1;

/// The smallest key that is selected, and the number of its equals to take.
struct Cut {
    u32 key;
    u32 wanted;
};

DEVICE u32 key_of(u16 score) { return score; }

DEVICE u32 key_of(f32 score) {
    const u32 bits = __float_as_uint(score + 0.0f);  // −0 and 0 are equal
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/// The warp's tokens in a row.
struct Part {
    const SCORE* scores;
    u32* taken;
    /// The first token.
    u32 first;
    u32 visible;

    DEVICE Part(const SCORE* scores, u32* taken, const u32* now, u32 capacity, u32 stride)
        : scores(scores + u64(blockIdx.y) * ((stride + PAGE - 1) / PAGE)),
          taken(taken + u64(blockIdx.y) * (stride / WARP)),
          first(blockIdx.x * SPAN + threadIdx.x / WARP * (WARP * WORDS)),
          visible(min(now[0], capacity)) {}

    /// True if the block has no tokens.
    DEVICE bool beyond() const { return blockIdx.x * SPAN >= visible; }

    /// The token of this lane in a word.
    DEVICE u32 token(u32 word) const { return first + word * WARP + threadIdx.x % WARP; }

    DEVICE SCORE score(u32 token) const { return scores[token / PAGE]; }

    /// True if this lane has an untaken token in a word; returns its key.
    DEVICE bool open(u32 word, u32& key) const {
        const u32 at = token(word);
        if (at >= visible || taken[at / WARP] >> (at % WARP) & 1) return false;
        key = key_of(score(at));
        return true;
    }
};

/// counts [rows][256] must be zero before.
KERNEL(count_digits, THREADS, const u32* now, const SCORE* scores, u32* taken, const Cut* cuts,
       u32* counts, u32 digit, u32 capacity, u32 stride) {
    __shared__ u32 found[256];
    const Part part(scores, taken, now, capacity, stride);
    if (part.beyond()) return;
    const u32 above = digit == HIGHEST ? 0 : cuts[blockIdx.y].key;
    found[threadIdx.x] = 0;
    __syncthreads();
    for (u32 word = 0; word < WORDS; word++) {
        u32 key;
        if (!part.open(word, key)) continue;
        key >>= 8 * digit;
        if (u64(key) >> 8 == above) atomicAdd(&found[key & 255], 1u);
    }
    __syncthreads();
    const u32 count = found[threadIdx.x];
    if (count) atomicAdd(&counts[blockIdx.y * 256 + threadIdx.x], count);
}

/// One block for each row. wanted [rows]: the number of tokens to take. If there are fewer keys,
/// the cut stays 0, below all of them.
KERNEL(narrow, THREADS, const u32* wanted, Cut* cuts, u32* counts, u32 digit) {
    __shared__ u32 held[WARPS];
    Cut& cut = cuts[blockIdx.x];
    const Cut before = digit == HIGHEST ? Cut{0, wanted[blockIdx.x]} : cut;
    // The first thread has the largest value of the digit.
    const u32 value = 255 - threadIdx.x;
    u32& count = counts[blockIdx.x * 256 + value];
    u32 total;
    const u32 above = sum_before(count, held, total);
    const bool enough_above = threadIdx.x > 0 && above >= before.wanted;
    if (!enough_above && above + count >= before.wanted) {
        cut = {before.key << 8 | value, before.wanted - above};
    }
    if (threadIdx.x == 0 && total < before.wanted) cut = before;
    count = 0;
}

/// equals [rows][gridDim.x]
KERNEL(count_equals, THREADS, const u32* now, const SCORE* scores, u32* taken, const Cut* cuts,
       u32* equals, u32 capacity, u32 stride) {
    __shared__ u32 held[WARPS];
    const Part part(scores, taken, now, capacity, stride);
    if (part.beyond()) return;
    const u32 cut = cuts[blockIdx.y].key;
    u32 found = 0, total, key;
    for (u32 word = 0; word < WORDS; word++) found += part.open(word, key) && key == cut;
    sum_before(found, held, total);
    if (threadIdx.x == 0) equals[blockIdx.y * gridDim.x + blockIdx.x] = total;
}

KERNEL(mark, THREADS, const u32* now, const SCORE* scores, u32* taken, const Cut* cuts,
       const u32* equals, u32 capacity, u32 stride) {
    __shared__ u32 held[WARPS];
    const Part part(scores, taken, now, capacity, stride);
    if (part.beyond()) return;
    const Cut cut = cuts[blockIdx.y];
    const u32 lane = threadIdx.x % WARP;
    const u32 earlier = sum_of_first(equals + blockIdx.y * gridDim.x, blockIdx.x, held);

    // More than eight words in flight spill registers on sm_80. Each bit is a word: whether this
    // lane's token exceeds the cut, and whether it equals the cut.
    u32 above = 0, equal = 0, count = 0, total;
#pragma unroll 8
    for (u32 word = 0; word < WORDS; word++) {
        u32 key;
        const bool open = part.open(word, key);
        const bool is_equal = open && key == cut.key;
        above |= u32(open && key > cut.key) << word;
        equal |= u32(is_equal) << word;
        count += __popc(__ballot_sync(EVERY_LANE, is_equal));
    }
    u32 rank = earlier + sum_of_warps_before(count, held, total);

    const u32 lower = (1u << lane) - 1;
#pragma unroll 8
    for (u32 word = 0; word < WORDS; word++) {
        const bool is_equal = equal >> word & 1;
        const u32 equals = __ballot_sync(EVERY_LANE, is_equal);
        const bool first = is_equal && rank + __popc(equals & lower) < cut.wanted;
        const u32 bits = __ballot_sync(EVERY_LANE, first || (above >> word & 1));
        if (lane == 0 && bits) part.taken[part.token(word) / WARP] |= bits;
        rank += __popc(equals);
    }
}

/// Largest untaken score in each span of tokens, or −∞: an upper bound on the untaken scores.
/// best [rows][gridDim.x]; spans without visible tokens are not written.
KERNEL(best_left, THREADS, const u32* now, const SCORE* scores, u32* taken, f32* best,
       u32 capacity, u32 stride) {
    __shared__ f32 held[WARPS];
    const Part part(scores, taken, now, capacity, stride);
    if (part.beyond()) return;
    f32 most = MINUS_INFINITY;
    for (u32 word = 0; word < WORDS; word++) {
        u32 key;
        if (part.open(word, key)) most = fmaxf(most, f32(part.score(part.token(word))));
    }
    most = warp_max(most);
    if (threadIdx.x % WARP == 0) held[threadIdx.x / WARP] = most;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (u32 warp = 1; warp < WARPS; warp++) most = fmaxf(most, held[warp]);
    best[blockIdx.y * gridDim.x + blockIdx.x] = most;
}
