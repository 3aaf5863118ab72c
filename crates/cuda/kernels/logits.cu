// Scores of all visible tokens by their logits. Each key is read once for GROUP rows of scores.
//
// Constants: those of rows.cuh and keys.cuh, which come before this file.

/// Tokens that a block scores.
const u32 SPAN = 256;

/// now: [0] visible tokens. tables [rows]: addresses of page tables, the same for GROUP consecutive
/// rows. queries [rows][HEAD_DIM], scaled. scores [rows][stride].
KERNEL(score_logits, THREADS, const u32* now, const u64* tables, const f32* queries, f32* scores,
       u32 capacity, u32 stride) {
    __shared__ __align__(16) f32 held[GROUP * HEAD_PADDED];
    const u32 visible = min(now[0], capacity), first = blockIdx.x * SPAN;
    if (first >= visible) return;
    const u32 row = blockIdx.y * GROUP, end = min(first + SPAN, visible);
    hold_queries(queries + u64(row) * HEAD_DIM, held);
    __syncthreads();

    const u64* const pages = reinterpret_cast<const u64*>(tables[row]);
    for (u32 next = first; next < end; next += KEYS) {
        const u32 token = next + threadIdx.x / SHARERS;
        f32 products[GROUP];
        // Threads beyond the last token read it too, because shuffles need the whole warp.
        multiply_key(row_of(pages, min(token, end - 1)), held, products);
#pragma unroll
        for (u32 head = 0; head < GROUP; head++) {
            if (token < end && threadIdx.x % SHARERS == head % SHARERS) {
                scores[u64(row + head) * stride + token] = products[head];
            }
        }
    }
}
