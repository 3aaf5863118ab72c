// Takes tokens by position: ranges, and drawn tokens.

const u32 THREADS = 256;

/// now: [0] visible tokens. ranges [rows][count][2]: first and end, in any order, clipped to the
/// visible tokens. taken [rows][words]: the bits are added, or, with `fresh`, replace the old ones.
KERNEL(take_ranges, THREADS, const u32* now, const u32* ranges, u32* taken, u32 count, u32 fresh,
       u32 capacity, u32 words) {
    const u32 word = blockIdx.x * THREADS + threadIdx.x, row = blockIdx.y;
    if (word >= words) return;
    const u32 begin = word * WARP, end = min(min(now[0], capacity), begin + WARP);
    u32 bits = 0;
    for (u32 i = row * count; i < (row + 1) * count; i++) {
        const u32 first = max(ranges[2 * i], begin), last = min(ranges[2 * i + 1], end);
        if (first < last) bits |= EVERY_LANE >> (WARP - (last - first)) << (first - begin);
    }
    u32* const out = taken + u64(row) * words + word;
    *out = fresh ? bits : *out | bits;
}

/// tokens [lists][capacity], of which ends[list] have been drawn. taken [lists][members][words]:
/// the tokens are added to the bits of a list's first row.
KERNEL(take_drawn, THREADS, const u32* ends, const u32* tokens, u32* taken, u32 members,
       u32 capacity, u32 words) {
    const u32 place = blockIdx.x * THREADS + threadIdx.x, list = blockIdx.y;
    if (place >= min(ends[list], capacity)) return;
    const u32 token = tokens[u64(list) * capacity + place];
    atomicOr(&taken[u64(list) * members * words + token / WARP], 1u << (token % WARP));
}
