// Scores of pages: upper bounds on the products of queries with the keys of a page.
//
// Constants: those of rows.cuh and keys.cuh, which come before this file; PAGE, tokens of a page.
// The bounds of a page are the smallest and the largest number of each channel, [2][HEAD_PADDED].

/// Threads that compute the bounds of a page, and pages whose bounds a block computes in parallel.
const u32 FINDERS = HEAD_PADDED / CHUNK;
const u32 PAGES = THREADS / FINDERS;

/// Writes one chunk of both bounds of some keys.
DEVICE void bound_keys(const u64* pages, u32 first, u32 end, u32 begin, ELEMENT* bounds) {
    f32 least[CHUNK], largest[CHUNK];
    widen(load_chunk(row_of(pages, first) + begin), least);
#pragma unroll
    for (u32 x = 0; x < CHUNK; x++) largest[x] = least[x];
#pragma unroll 4
    for (u32 token = first + 1; token < end; token++) {
        f32 key[CHUNK];
        widen(load_chunk(row_of(pages, token) + begin), key);
#pragma unroll
        for (u32 x = 0; x < CHUNK; x++) {
            least[x] = fminf(least[x], key[x]);
            largest[x] = fmaxf(largest[x], key[x]);
        }
    }
    store_chunk(least, bounds + begin);
    store_chunk(largest, bounds + HEAD_PADDED + begin);
}

/// now: [0] visible tokens. tables, known, bounds [heads]: the address of a page table, the number
/// of pages with bounds, and the address of the bounds. Computes the bounds of the other pages with
/// visible tokens, over these tokens alone.
KERNEL(bound_pages, THREADS, const u32* now, const u64* tables, const u32* known, const u64* bounds,
       u32 capacity) {
    const u32 head = blockIdx.y, visible = min(now[0], capacity);
    if (threadIdx.x >= PAGES * FINDERS) return;
    const u64* const pages = reinterpret_cast<const u64*>(tables[head]);
    ELEMENT* const out = reinterpret_cast<ELEMENT*>(bounds[head]);
    const u32 count = (visible + PAGE - 1) / PAGE;
    const u32 mine = known[head] + blockIdx.x * PAGES + threadIdx.x / FINDERS;
    for (u32 page = mine; page < count; page += gridDim.x * PAGES) {
        const u32 end = min(page * PAGE + PAGE, visible), begin = threadIdx.x % FINDERS * CHUNK;
        bound_keys(pages, page * PAGE, end, begin, out + u64(page) * (2 * HEAD_PADDED));
    }
}

/// Pages that a block scores.
const u32 SPAN = 256;

/// now: [0] visible tokens. bounds [rows]: addresses, the same for GROUP consecutive rows. queries
/// [2][rows][HEAD_DIM]: the factors of the smallest keys, and those of the largest keys. scores
/// [rows][stride].
KERNEL(score_pages, THREADS, const u32* now, const u64* bounds, const f32* queries, f32* scores,
       u32 capacity, u32 stride) {
    __shared__ __align__(16) f32 of_least[GROUP * HEAD_PADDED];
    __shared__ __align__(16) f32 of_largest[GROUP * HEAD_PADDED];
    const u32 visible = min(now[0], capacity), count = (visible + PAGE - 1) / PAGE;
    const u32 first = blockIdx.x * SPAN, rows = gridDim.y * GROUP;
    if (first >= count) return;
    const u32 row = blockIdx.y * GROUP, end = min(first + SPAN, count);
    hold_queries(queries + u64(row) * HEAD_DIM, of_least);
    hold_queries(queries + u64(rows + row) * HEAD_DIM, of_largest);
    __syncthreads();

    const ELEMENT* const of_pages = reinterpret_cast<const ELEMENT*>(bounds[row]);
    for (u32 next = first; next < end; next += KEYS) {
        const u32 page = next + threadIdx.x / SHARERS;
        // Threads beyond the last page read it too, because shuffles need the whole warp.
        const ELEMENT* const least = of_pages + u64(min(page, end - 1)) * (2 * HEAD_PADDED);
        f32 products[GROUP], more[GROUP];
        multiply_key(least, of_least, products);
        multiply_key(least + HEAD_PADDED, of_largest, more);
#pragma unroll
        for (u32 head = 0; head < GROUP; head++) {
            if (page < end && threadIdx.x % SHARERS == head % SHARERS) {
                scores[u64(row + head) * stride + page] = products[head] + more[head];
            }
        }
    }
}
