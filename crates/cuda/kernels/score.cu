// Number of bits in which the hash codes of tokens agree with those of queries.

const u32 THREADS = 256;

/// Tokens that a thread scores.
const u32 TOKENS = 4;

/// now: [0] visible tokens. codes [rows][members]: addresses of the codes of all tokens,
/// [words][room]. queries [rows][members][words]. scores [rows][stride]: the bits in which codes
/// agree, of `bits` each, summed over the members. room and stride are multiples of 4 and at least
/// the capacity.
KERNEL(score, THREADS, const u32* now, const u64* codes, const u32* queries, u16* scores,
       u32 members, u32 words, u32 bits, u32 capacity, u32 room, u32 stride) {
    const u32 row = blockIdx.y, first = (blockIdx.x * THREADS + threadIdx.x) * TOKENS;
    if (first >= min(now[0], capacity)) return;
    u32 agreeing[TOKENS];
#pragma unroll
    for (u32 i = 0; i < TOKENS; i++) agreeing[i] = members * bits;
    for (u32 member = row * members; member < (row + 1) * members; member++) {
        const u32* const code = reinterpret_cast<const u32*>(codes[member]) + first;
        for (u32 word = 0; word < words; word++) {
            const u32 query = queries[member * words + word];
            const uint4 four = *reinterpret_cast<const uint4*>(code + u64(word) * room);
            agreeing[0] -= __popc(four.x ^ query);
            agreeing[1] -= __popc(four.y ^ query);
            agreeing[2] -= __popc(four.z ^ query);
            agreeing[3] -= __popc(four.w ^ query);
        }
    }
    uint2* const out = reinterpret_cast<uint2*>(scores + u64(row) * stride + first);
    *out = {agreeing[0] | agreeing[1] << 16, agreeing[2] | agreeing[3] << 16};
}
