// Products of keys with queries: SHARERS threads read a key in parallel, once for GROUP queries.
//
// Constants: those of rows.cuh, HEAD_DIM and GROUP.

const u32 THREADS = 128;

/// Threads that share a key, and keys that a block reads in parallel.
const u32 SHARERS = 4;
const u32 KEYS = THREADS / SHARERS;

/// Chunks of a key that each sharer reads.
const u32 PARTS = HEAD_PADDED / (SHARERS * CHUNK);

/// Copies queries, [GROUP][HEAD_DIM], to shared memory, [GROUP][HEAD_PADDED], by a whole block.
DEVICE void hold_queries(const f32* queries, f32* held) {
    for (u32 i = threadIdx.x; i < GROUP * HEAD_PADDED; i += THREADS) {
        const u32 head = i / HEAD_PADDED, x = i % HEAD_PADDED;
        held[i] = x < HEAD_DIM ? queries[head * HEAD_DIM + x] : 0;
    }
}

/// Adds a chunk's part of the product of each query with a key.
DEVICE void add_products(const f32 (&key)[CHUNK], const f32* queries, f32 (&products)[GROUP]) {
#pragma unroll
    for (u32 head = 0; head < GROUP; head++) {
        const float4* query = reinterpret_cast<const float4*>(queries + head * HEAD_PADDED);
        const float4 a = query[0], b = query[1];
        f32 sum = products[head];
        sum = fmaf(a.x, key[0], sum);
        sum = fmaf(a.y, key[1], sum);
        sum = fmaf(a.z, key[2], sum);
        sum = fmaf(a.w, key[3], sum);
        sum = fmaf(b.x, key[4], sum);
        sum = fmaf(b.y, key[5], sum);
        sum = fmaf(b.z, key[6], sum);
        products[head] = fmaf(b.w, key[7], sum);
    }
}

/// Products of a row's key with each query in shared memory, for all of the key's sharers. Whole
/// warps must call it.
DEVICE void multiply_key(const ELEMENT* row, const f32* held, f32 (&products)[GROUP]) {
    const u32 sharer = threadIdx.x % SHARERS;
    Chunk<ELEMENT> chunks[PARTS];
#pragma unroll
    for (u32 part = 0; part < PARTS; part++) {
        chunks[part] = load_chunk(row + (part * SHARERS + sharer) * CHUNK);
    }
#pragma unroll
    for (u32 head = 0; head < GROUP; head++) products[head] = 0;
#pragma unroll
    for (u32 part = 0; part < PARTS; part++) {
        f32 numbers[CHUNK];
        widen(chunks[part], numbers);
        add_products(numbers, held + (part * SHARERS + sharer) * CHUNK, products);
    }
#pragma unroll
    for (u32 head = 0; head < GROUP; head++) {
        products[head] += __shfl_xor_sync(EVERY_LANE, products[head], 1);
        products[head] += __shfl_xor_sync(EVERY_LANE, products[head], 2);
    }
}

