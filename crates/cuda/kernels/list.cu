// From bits to the tokens that they stand for, ascending.

const u32 THREADS = 256;

/// The word of this thread, of all bitmaps that are united in a list. taken
/// [lists][members][words].
DEVICE u32 united(const u32* taken, u32 members, u32 words) {
    const u32 word = blockIdx.x * THREADS + threadIdx.x;
    u32 bits = 0;
    if (word >= words) return bits;
    for (u32 member = 0; member < members; member++) {
        bits |= taken[u64(blockIdx.y * members + member) * words + word];
    }
    return bits;
}

/// counts [lists][gridDim.x]
KERNEL(count_taken, THREADS, const u32* taken, u32* counts, u32 members, u32 words) {
    __shared__ u32 held[THREADS / WARP];
    u32 total;
    sum_before(__popc(united(taken, members, words)), held, total);
    if (threadIdx.x == 0) counts[blockIdx.y * gridDim.x + blockIdx.x] = total;
}

/// tokens: those of a list from its start on. lengths [lists].
KERNEL(list_taken, THREADS, const u32* taken, const u32* counts, const u32* starts, u32* tokens,
       u32* lengths, u32 members, u32 words) {
    __shared__ u32 held[THREADS / WARP];
    u32 bits = united(taken, members, words);
    const u32 earlier = sum_of_first(counts + blockIdx.y * gridDim.x, blockIdx.x, held);
    u32 total;
    u32 at = earlier + sum_before(__popc(bits), held, total);
    const u32 word = blockIdx.x * THREADS + threadIdx.x;
    for (u32* out = tokens + starts[blockIdx.y]; bits; bits &= bits - 1) {
        out[at++] = word * WARP + __ffs(bits) - 1;
    }
    if (threadIdx.x == 0 && blockIdx.x == gridDim.x - 1) lengths[blockIdx.y] = earlier + total;
}
