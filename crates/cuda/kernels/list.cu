// Converts bits to lists of tokens, ascending.

const u32 THREADS = 256;

/// Tokens of a block.
const u32 SPAN = THREADS * WARP;

/// Rows of taken bits that form a list: `now` begins with the number of visible tokens, taken is
/// [lists][members][words].
struct Rows {
    const u32* taken;
    u32 visible, members, words;
};

DEVICE Rows rows_of(const u32* now, const u32* taken, u32 members, u32 capacity, u32 words) {
    return {taken + u64(blockIdx.y) * members * words, min(now[0], capacity), members, words};
}

/// Visible bits of this thread's word in the union of a list's rows.
DEVICE u32 united(const Rows& rows) {
    const u32 word = blockIdx.x * THREADS + threadIdx.x, first = word * WARP;
    u32 bits = 0;
    if (first >= rows.visible) return bits;
    for (u32 member = 0; member < rows.members; member++) {
        bits |= rows.taken[u64(member) * rows.words + word];
    }
    const u32 visible = rows.visible - first;
    return visible < WARP ? bits & ((1u << visible) - 1) : bits;
}

/// Counts the taken tokens of each block, counts [lists][gridDim.x].
KERNEL(count_taken, THREADS, const u32* now, const u32* taken, u32* counts, u32 members,
       u32 capacity, u32 words) {
    __shared__ u32 held[THREADS / WARP];
    const Rows rows = rows_of(now, taken, members, capacity, words);
    if (blockIdx.x * SPAN >= rows.visible) return;
    u32 total;
    sum_before(__popc(united(rows)), held, total);
    if (threadIdx.x == 0) counts[blockIdx.y * gridDim.x + blockIdx.x] = total;
}

/// totals [lists]: the sums of counts [lists][blocks], with one block for each list.
KERNEL(sum_counts, THREADS, const u32* now, const u32* counts, u32* totals, u32 capacity,
       u32 blocks) {
    __shared__ u32 held[THREADS / WARP];
    const u32 visible = min(now[0], capacity), counted = (visible + SPAN - 1) / SPAN;
    const u32 total = sum_of_first(counts + blockIdx.x * blocks, counted, held);
    if (threadIdx.x == 0) totals[blockIdx.x] = total;
}

/// tokens: each list is written from its start on. lengths [lists].
KERNEL(list_taken, THREADS, const u32* now, const u32* taken, const u32* counts, const u32* starts,
       u32* tokens, u32* lengths, u32 members, u32 capacity, u32 words) {
    __shared__ u32 held[THREADS / WARP];
    const Rows rows = rows_of(now, taken, members, capacity, words);
    const u32 first = blockIdx.x * SPAN;
    if (first > 0 && first >= rows.visible) return;
    u32 bits = united(rows);
    const u32 earlier = sum_of_first(counts + blockIdx.y * gridDim.x, blockIdx.x, held);
    u32 total;
    u32 at = earlier + sum_before(__popc(bits), held, total);
    if (threadIdx.x == 0 && first + SPAN >= rows.visible) lengths[blockIdx.y] = earlier + total;
    const u32 begin = first + threadIdx.x * WARP;
    for (u32* out = tokens + starts[blockIdx.y]; bits; bits &= bits - 1) {
        out[at++] = begin + __ffs(bits) - 1;
    }
}
